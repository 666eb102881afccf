#include "loop.h"

#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static int epoll_fd = -1;

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

void loop_step(uint64_t deadline)
{
    int timeout_ms = -1;
    if (deadline) {
        uint64_t now = loop_now();
        uint64_t left_ms = deadline > now ? (deadline - now + 999) / 1000 : 0;
        timeout_ms = left_ms > INT_MAX ? INT_MAX : (int)left_ms;
    }
    struct epoll_event event;
    if (epoll_wait(epoll_fd, &event, 1, timeout_ms) == 1) {
        struct source *source = event.data.ptr;
        source->ready(source, event.events);
    }
}
