/* The reading end of a pipe that processes write to, with what came out of it. */
#ifndef STREAM_H
#define STREAM_H

#include "capture.h"
#include "loop.h"

struct stream {
    struct source source;
    struct capture capture;
    bool may_spill;
    bool released;
    void (*heard)(void *by); /* told of what was added; NULL: nobody is */
    void *by;
};

/* What `fd`, which does not block and is the stream's from now on, can be read from; NULL and an errno: then it is closed. */
struct stream *stream_over(int fd, size_t head_cap, size_t tail_cap);
/* A pipe: `*write_end` is for the processes. NULL (and errno) when there is none to be had. */
struct stream *stream_open(size_t head_cap, size_t tail_cap, int *write_end);
/* Reads what is in the pipe now, and no more: whoever fills it without end does not hold the answer up. */
void stream_drain(struct stream *stream);
/* The same of a terminal, which cannot say how much that is: at most what one holds. */
void stream_drain_terminal(struct stream *stream);
/* Lets go: the rest is read and thrown away for as long as somebody writes, so that no process left behind dies of
   a broken pipe; *stream becomes NULL. */
void stream_release(struct stream **stream);

#endif
