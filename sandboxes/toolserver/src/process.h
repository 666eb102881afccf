/* Start processes, and kill them with all their descendants. */
#ifndef PROCESS_H
#define PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

/* The descriptor numbers of a shell session. */
#define SESSION_WAKE_FD 20
#define SESSION_COMMAND_FD 21
#define SESSION_STATUS_FD 22

struct launch {
    const char *const *argv;
    char *const *env;
    const char *cwd;       /* NULL: the server's own, or / if that was removed */
    int in, out, err;
    const int *session;    /* three descriptors for the numbers above (-1: none), or NULL */
    bool terminal;         /* `in` becomes the controlling terminal */
    const char *failed_at; /* set on failure: the path that could not be used */
};

void process_init(void);
/* Return to the working directory, also if it was replaced, so that relative paths start there. */
void process_go_home(void);
/* Set the working directory. Return 0, or an errno and change nothing. */
int process_work_in(const char *path);
/* Start a child. Return its pid, or a negative errno. */
pid_t process_start(struct launch *launch);
/* Kill the unreaped child `root` and all its descendants. */
void process_kill_tree(pid_t root);
/* Kill every process of the PID namespace and wait until none is left. `reap` reaps children. Return 0 or an errno:
   EPERM if this is not the init process, EBUSY if a process does not die. */
int process_kill_all(void (*reap)(void));
/* Return this process's environment with `additions` ("NAME=value") over it. `logged_in`: below them, the variables of
   process_log_in. The caller frees the array. */
char **process_env(const char *const *additions, bool logged_in);
/* Set the variables of a login. Return 0, or an errno and change nothing. */
int process_log_in(const char *const *additions);

#endif
