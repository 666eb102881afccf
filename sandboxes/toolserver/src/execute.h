/* Calls that run a process: programs, and file operations that may take long. */
#ifndef EXECUTE_H
#define EXECUTE_H

#include "call.h"

#define CAP_MAX (16u << 20)

enum exec_flags { EXEC_MERGE = 1, EXEC_LOGGED_IN = 2 };
enum result_flags { TIMED_OUT = 1, SHELL_LOST = 2, STILL_RUNNING = 4 };

struct caps {
    uint32_t timeout_ms, head, tail;
};

/* Parse and check the limits of EXEC and SHELL. */
struct caps get_caps(struct reader *r);
/* Put a RESULT as the call's answer. `out` and `err` may be NULL; `took` is in microseconds. */
void put_result(struct call *call, int exit_code, unsigned flags, uint64_t took, const struct capture *out,
                const struct capture *err);
/* Put a RESULT as the call's answer and finish the call. `err` may be NULL. */
void finish_result(struct call *call, int exit_code, unsigned flags, struct stream *out, struct stream *err);
/* Finish the call with a RESULT whose output says why the program could not run: status 126, or 127 if it is missing.
   */
void finish_not_started(struct call *call, int error, const char *what, unsigned flags);
/* Return the exit code that a shell would report. */
int exit_code_of(int status);

/* Run a program. Return false if the body is malformed. */
bool execute(struct call *call, struct reader *body);
/* Run `work` in a forked process, so that the loop goes on. It returns 0 or an errno, and puts its answer's body. */
void execute_worker(struct call *call, int (*work)(void *with, struct buffer *out), void *with);
/* Handle the end of child `pid`. */
void execute_reaped(pid_t pid, int status);

#endif
