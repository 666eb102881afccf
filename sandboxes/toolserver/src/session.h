/* Shell sessions: a bash that lives between commands. */
#ifndef SESSION_H
#define SESSION_H

#include "call.h"

/* Each returns false if the body is malformed. */
bool session_run(struct call *call, struct reader *body);
bool session_restart(struct call *call, struct reader *body);
bool session_start_job(struct call *call, struct reader *body);
/* Handle the end of child `pid`. */
void session_reaped(pid_t pid, int status);
/* Return true if child `pid` is a session's shell. */
bool session_is(pid_t pid);
/* Set the shell to start; `path` must outlive the program. */
void session_use_shell(const char *path);
const char *session_shell(void);

#endif
