/* Jobs: commands in the background, each on a terminal of its own, that are heard and typed to later. */
#ifndef JOB_H
#define JOB_H

#include "call.h"

struct job;

/* A job that has not begun; NULL and an errno where there is no room for one. */
struct job *job_new(const char *command, int *error);
/* Begins `call->job` and answers the call. `state`: a file that holds, from `offset` on, what its shell is to know (-1:
   nothing); `shell`: a process in whose directory it begins (0: where every command does). */
void job_start(struct call *call, int state, off_t offset, pid_t shell);
/* Answers the call with an errno; `call->job` never begins. */
void job_give_up(struct call *call, int error);
/* False when the body is malformed; otherwise the call is under way or answered. */
bool job_listen(struct call *call, struct reader *body);
/* 0 or an errno; how many of the bytes were taken goes into the answer. */
int job_type(uint32_t number, const uint8_t *data, size_t len, struct buffer *out);
/* 0 or an errno. Kills its process tree, also what it left when it ended. */
int job_end(uint32_t number);
/* The job that our child `pid` leads, or 0. */
uint32_t job_of(pid_t pid);
/* Our child `pid` has ended. */
void job_reaped(pid_t pid, int status);

#endif
