#include "loop.h"

#include <errno.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

/* While a deadline is pending, this process wakes up so often that a longer gap is a standstill. */
#define TICK_US 1000000u
#define SLACK_US 1000000u

static int epoll_fd = -1;
static uint64_t seen_at, wait_us; /* when loop_lost last looked; the wait since then, 0 for one without limit */

bool loop_init(void)
{
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    return epoll_fd >= 0;
}

bool loop_add(struct source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    return !epoll_ctl(epoll_fd, EPOLL_CTL_ADD, source->fd, &event);
}

void loop_change(struct source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, source->fd, &event);
}

void loop_close(struct source *source)
{
    if (source->fd < 0)
        return;
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
    close(source->fd);
    source->fd = -1;
}

uint64_t loop_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

uint64_t loop_lost(uint64_t *now)
{
    uint64_t before = seen_at;
    *now = seen_at = loop_now();
    uint64_t gap = seen_at - before;
    return wait_us && gap > wait_us + SLACK_US ? gap - wait_us : 0;
}

void loop_step(uint64_t deadline)
{
    wait_us = deadline ? TICK_US : 0;
    if (deadline && deadline < seen_at + TICK_US)
        wait_us = deadline > seen_at ? deadline - seen_at : 1;
    struct epoll_event event;
    if (epoll_wait(epoll_fd, &event, 1, deadline ? (int)((wait_us + 999) / 1000) : -1) == 1) {
        struct source *source = event.data.ptr;
        source->ready(source, event.events);
    }
}
