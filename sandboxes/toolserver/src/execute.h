/* Calls that are processes: programs, and file operations that may take long. */
#ifndef EXECUTE_H
#define EXECUTE_H

#include "call.h"

#define CAP_MAX (16u << 20)

enum exec_flags { EXEC_MERGE = 1, EXEC_LOGGED_IN = 2 };
enum result_flags { TIMED_OUT = 1, SHELL_LOST = 2, RUNS_STILL = 4 };

struct caps {
    uint32_t timeout_ms, head, tail;
};

/* Parses and checks what EXEC and SHELL have in common. */
struct caps get_caps(struct reader *r);
/* Writes a RESULT as the call's answer; `out` and `err` may be NULL, `took` is in microseconds. */
void put_result(struct call *call, int exit_code, unsigned flags, uint64_t took, const struct capture *out,
                const struct capture *err);
/* Writes a RESULT as the call's answer and finishes it. `err` may be NULL. */
void finish_result(struct call *call, int exit_code, unsigned flags, struct stream *out, struct stream *err);
/* A RESULT whose output says why the program could not run: 126, or 127 where it is not there. */
void finish_not_started(struct call *call, int error, const char *what, unsigned flags);
/* The exit code a shell would report. */
int exit_code_of(int status);

/* False when the body is malformed; otherwise the call is under way or answered. */
bool execute(struct call *call, struct reader *body);
/* `work` in a process of its own, so that the loop goes on: 0 or an errno, its answer's body into the buffer. */
void execute_worker(struct call *call, int (*work)(void *with, struct buffer *out), void *with);
/* Our child `pid` has ended. */
void execute_reaped(pid_t pid, int status);

#endif
