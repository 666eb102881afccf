/* Jobs: commands in the background, each on its own terminal, with later output and input. */
#ifndef JOB_H
#define JOB_H

#include "call.h"

struct job;

/* Make a job that has not started. Return NULL and an errno without memory. */
struct job *job_new(const char *command, int *error);
/* Start `call->job` and answer the call. `state`: file with the shell state of the session from `offset` on (-1: none).
   `shell`: process in whose directory the job starts (0: the server's). */
void job_start(struct call *call, int state, off_t offset, pid_t shell);
/* Answer the call with an errno; `call->job` never starts. */
void job_give_up(struct call *call, int error);
/* Wait for output. Return false if the body is malformed. */
bool job_listen(struct call *call, struct reader *body);
/* Type `data`. Return 0 or an errno, and put the number of accepted bytes. */
int job_type(uint32_t number, const uint8_t *data, size_t len, struct buffer *out);
/* Kill the job's process tree, also what it left when it ended. Return 0 or an errno. */
int job_end(uint32_t number);
/* Return the number of the job whose shell is child `pid`, or 0. */
uint32_t job_of(pid_t pid);
/* Handle the end of child `pid`. */
void job_reaped(pid_t pid, int status);

#endif
