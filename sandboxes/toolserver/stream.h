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
};

/* A pipe: `*write_end` is for the processes. NULL (and errno) when there is none to be had. */
struct stream *stream_open(size_t head_cap, size_t tail_cap, int *write_end);
/* Reads what is in the pipe now, and no more: whoever fills it without end does not hold the answer up. */
void stream_drain(struct stream *stream);
/* Lets go: the rest is read and thrown away for as long as somebody writes, so that no process left behind dies of
   a broken pipe; *stream becomes NULL. */
void stream_release(struct stream **stream);

#endif
