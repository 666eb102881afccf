/* Shell sessions: a bash that lives on between commands. */
#ifndef SESSION_H
#define SESSION_H

#include "call.h"

/* All return false when the body is malformed; otherwise the call is under way or answered. */
bool session_run(struct call *call, struct reader *body);
bool session_restart(struct call *call, struct reader *body);
bool session_start_job(struct call *call, struct reader *body);
/* Our child `pid` has ended. */
void session_reaped(pid_t pid, int status);
/* Whether our child `pid` is a session's shell. */
bool session_is(pid_t pid);
/* The shell to start; a path that outlives the program. */
void session_use_shell(const char *path);
const char *session_shell(void);

#endif
