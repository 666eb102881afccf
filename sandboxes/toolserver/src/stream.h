/* The reading end of a pipe or terminal that processes write to, with its output. */
#ifndef STREAM_H
#define STREAM_H

#include "capture.h"
#include "loop.h"

struct stream {
    struct source source;
    struct capture capture;
    bool may_spill;
    bool released;
    void (*on_output)(void *by); /* called after output was added; may be NULL */
    void *by;
};

/* Make a stream of the non-blocking `fd`, which it owns. On failure close `fd` and return NULL and an errno. */
struct stream *stream_over(int fd, size_t head_cap, size_t tail_cap);
/* Make a stream with a pipe: `*write_end` is for the processes. Return NULL and an errno without a pipe. */
struct stream *stream_open(size_t head_cap, size_t tail_cap, int *write_end);
/* Read what is in the pipe now, and no more, so that an endless writer does not delay the answer. */
void stream_drain(struct stream *stream);
/* The same for a terminal, which does not report its fill level: read at most its capacity. */
void stream_drain_terminal(struct stream *stream);
/* Drop a stream and set *stream to NULL. Later output is read and thrown away while there are writers, so that no
   background process is killed by SIGPIPE. */
void stream_release(struct stream **stream);

#endif
