#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define RELEASED_MAX 64
#define TERMINAL_CAPACITY (256u << 10)

static uint8_t chunk[65536];
static size_t released_count;

static void stream_free(struct stream *stream)
{
    if (stream->released)
        released_count--;
    loop_close(&stream->source);
    capture_free(&stream->capture);
    free(stream);
}

static void stream_ready(struct source *source, uint32_t events)
{
    (void)events;
    struct stream *stream = (struct stream *)source;
    ssize_t n = read(source->fd, chunk, sizeof chunk);
    if (n > 0) {
        if (!stream->released)
            capture_add(&stream->capture, chunk, (size_t)n, stream->may_spill);
        if (stream->on_output)
            stream->on_output(stream->by);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        if (stream->released)
            stream_free(stream);
        else
            loop_close(source);
    }
}

struct stream *stream_over(int fd, size_t head_cap, size_t tail_cap)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        close(fd);
        return NULL;
    }
    stream->source = (struct source){fd, stream_ready};
    capture_init(&stream->capture, head_cap, tail_cap);
    if (!loop_add(&stream->source, EPOLLIN)) {
        stream_free(stream);
        return NULL;
    }
    return stream;
}

struct stream *stream_open(size_t head_cap, size_t tail_cap, int *write_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return NULL;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    struct stream *stream = stream_over(ends[0], head_cap, tail_cap);
    if (stream)
        *write_end = ends[1];
    else
        close(ends[1]);
    return stream;
}

void stream_drain_terminal(struct stream *stream)
{
    for (size_t left = TERMINAL_CAPACITY; stream->source.fd >= 0 && left;) {
        ssize_t n = read(stream->source.fd, chunk, left < sizeof chunk ? left : sizeof chunk);
        if (n <= 0)
            return;
        capture_add(&stream->capture, chunk, (size_t)n, stream->may_spill);
        left -= (size_t)n;
    }
}

void stream_drain(struct stream *stream)
{
    int left = 0;
    if (!stream || stream->source.fd < 0 || ioctl(stream->source.fd, FIONREAD, &left))
        return;
    while (left > 0) {
        ssize_t n = read(stream->source.fd, chunk, (size_t)left < sizeof chunk ? (size_t)left : sizeof chunk);
        if (n <= 0)
            return;
        capture_add(&stream->capture, chunk, (size_t)n, stream->may_spill);
        left -= (int)n;
    }
}

void stream_release(struct stream **owned)
{
    struct stream *stream = *owned;
    *owned = NULL;
    if (!stream)
        return;
    if (stream->source.fd < 0 || released_count >= RELEASED_MAX) {
        stream_free(stream);
        return;
    }
    capture_free(&stream->capture);
    stream->released = true;
    released_count++;
}
