/* Starting processes, and ending them with all that they started. */
#ifndef PROCESS_H
#define PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

/* The numbers under which a shell session sees its private descriptors. */
#define SESSION_WAKE_FD 20
#define SESSION_COMMAND_FD 21
#define SESSION_STATUS_FD 22

struct launch {
    const char *const *argv;
    char *const *env;
    const char *cwd;       /* NULL: the server's own, or / when that is gone */
    int in, out, err;
    const int *session;    /* three descriptors for the numbers above (-1: none), or NULL */
    bool terminal;         /* `in` is one, and is to be its own */
    const char *failed_at; /* set on failure: the path that could not be used */
};

void process_init(void);
/* Relative paths begin where the server was started, or was told to work, also after that directory was replaced. */
void process_go_home(void);
/* 0 or an errno: then all stays as it was. */
int process_work_in(const char *path);
/* The new child's pid, or a negative errno when it could not be started. */
pid_t process_start(struct launch *launch);
/* Kills `root`, our own unreaped child, and everything that descends from it. */
void process_kill_tree(pid_t root);
/* Kills every process of our pid namespace and waits until none is left; `reap` collects those that are ours.
   0 or an errno: EPERM unless we are its first process, EBUSY when one does not die. */
int process_kill_all(void (*reap)(void));
/* What this process's environment becomes with `additions` ("NAME=value") over it, and below them what process_log_in
   was given last if `logged_in`; the caller frees the array. */
char **process_env(const char *const *additions, bool logged_in);
/* 0 or an errno: then all stays as it was. */
int process_log_in(const char *const *additions);

#endif
