#include "process.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define STOP_ROUNDS 64
#define KILL_ALL_ROUNDS 2000

extern char **environ;
static char *home_directory;
static bool reset_oom_score;

int process_work_in(const char *path)
{
    if (chdir(path))
        return errno;
    char *place = getcwd(NULL, 0);
    if (!place)
        return errno;
    free(home_directory);
    home_directory = place;
    return 0;
}

/* Try to become the last target of an OOM kill, which needs a privilege that containers rarely have. Children must not
   inherit a negative score, also one that the container's runtime has set. */
void process_init(void)
{
    home_directory = getcwd(NULL, 0);
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    char text[16] = {0};
    if (write(fd, "-1000", 5) == 5)
        reset_oom_score = true;
    else if (pread(fd, text, sizeof text - 1, 0) > 0)
        reset_oom_score = atoi(text) < 0;
    close(fd);
}

void process_go_home(void)
{
    if (!home_directory || chdir(home_directory))
        errno = 0; /* operations on relative paths will fail with the cause */
}

static char **login_additions;

static size_t length(const char *const *strings)
{
    size_t count = 0;
    while (strings[count])
        count++;
    return count;
}

static void free_strings(char **strings)
{
    for (char **each = strings; each && *each; each++)
        free(*each);
    free(strings);
}

int process_log_in(const char *const *additions)
{
    size_t count = length(additions);
    char **kept = calloc(count + 1, sizeof *kept);
    for (size_t i = 0; kept && i < count; i++)
        if (!(kept[i] = strdup(additions[i]))) {
            free_strings(kept);
            return ENOMEM;
        }
    if (!kept)
        return ENOMEM;
    free_strings(login_additions);
    login_additions = kept;
    return 0;
}

/* Return true if `strings` sets the same variable as `setting` ("NAME=value"). */
static bool sets(const char *const *strings, const char *setting)
{
    const char *equals = strchr(setting, '=');
    size_t name = equals ? (size_t)(equals - setting) + 1 : strlen(setting);
    while (*strings && strncmp(*strings, setting, name) != 0)
        strings++;
    return *strings;
}

char **process_env(const char *const *additions, bool logged_in)
{
    static const char *const none[] = {NULL};
    const char *const *login = logged_in && login_additions ? (const char *const *)login_additions : none;
    const char *const *own = (const char *const *)environ;
    char **env = calloc(length(own) + length(login) + length(additions) + 1, sizeof *env);
    if (!env)
        return NULL;
    size_t count = 0;
    for (; *own; own++)
        if (!sets(login, *own) && !sets(additions, *own))
            env[count++] = (char *)(uintptr_t)*own;
    for (; *login; login++)
        if (!sets(additions, *login))
            env[count++] = (char *)(uintptr_t)*login;
    for (; *additions; additions++)
        env[count++] = (char *)(uintptr_t)*additions;
    return env;
}

static const char *variable(char *const *env, const char *name, const char *otherwise)
{
    size_t len = strlen(name);
    for (; *env; env++)
        if (!strncmp(*env, name, len) && (*env)[len] == '=')
            return *env + len + 1;
    return otherwise;
}

struct child {
    struct launch *launch;
    int error;
};

/* Execute the program. Return an errno if that fails. */
static int exec_by_path(const struct launch *launch)
{
    const char *name = launch->argv[0];
    char *const *argv = (char *const *)(uintptr_t)launch->argv;
    if (strchr(name, '/')) {
        execve(name, argv, launch->env);
        return errno;
    }
    char path[4096];
    int error = ENOENT;
    for (const char *at = variable(launch->env, "PATH", DEFAULT_PATH); *name;) {
        const char *end = strchrnul(at, ':');
        int len = snprintf(path, sizeof path, "%.*s%s%s", (int)(end - at), at, end > at ? "/" : "./", name);
        if (len > 0 && (size_t)len < sizeof path) {
            execve(path, argv, launch->env);
            if (errno == EACCES)
                error = EACCES;
            else if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENAMETOOLONG)
                return errno;
        }
        if (!*end)
            break;
        at = end + 1;
    }
    return error;
}

static void place_descriptors(const struct launch *launch)
{
    if (launch->session) {
        int high[3]; /* moved out of the way first, because a source may have the number of a target */
        for (int i = 0; i < 3; i++)
            high[i] = fcntl(launch->session[i], F_DUPFD_CLOEXEC, SESSION_STATUS_FD + 1);
        dup2(launch->in, 0);
        dup2(launch->out, 1);
        dup2(launch->err, 2);
        for (int i = 0; i < 3; i++)
            if (high[i] >= 0)
                dup2(high[i], SESSION_WAKE_FD + i);
        return;
    }
    dup2(launch->in, 0);
    dup2(launch->out, 1);
    dup2(launch->err, 2);
}

/* Runs in the memory of the parent, which waits (CLONE_VFORK), so it can report errors there. */
static int child_main(void *arg)
{
    struct child *child = arg;
    struct launch *launch = child->launch;
    setsid();
    setpriority(PRIO_PROCESS, 0, 0); /* only this program has precedence */
    /* Orphans of this program stay among its descendants. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    place_descriptors(launch);
    if (launch->terminal)
        ioctl(0, TIOCSCTTY, 0);
    if (reset_oom_score) {
        int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        if (fd >= 0 && write(fd, "0", 1) != 1)
            reset_oom_score = true;
    }
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (launch->cwd) {
        if (chdir(launch->cwd)) {
            child->error = errno;
            launch->failed_at = launch->cwd;
            _exit(126);
        }
    } else if ((!home_directory || chdir(home_directory)) && chdir("/")) {
        child->error = errno;
        launch->failed_at = "/";
        _exit(126);
    }
    launch->failed_at = launch->argv[0];
    child->error = exec_by_path(launch);
    _exit(127);
}

pid_t process_start(struct launch *launch)
{
    static _Alignas(16) char stack[64 * 1024];
    struct child child = {.launch = launch};
    launch->failed_at = "fork";
    pid_t pid = clone(child_main, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &child);
    if (pid < 0)
        return -errno;
    /* A failed child is reaped with all others; its pid is unknown there. */
    return child.error ? -child.error : pid;
}

struct process_row {
    pid_t pid, parent;
    bool is_descendant, dead, stopped;
};

struct process_table {
    struct process_row *rows;
    size_t count, cap;
};

static bool read_row(int proc, const char *name, struct process_row *row)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "%.16s/stat", name);
    int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t len = read(fd, text, sizeof text - 1);
    close(fd);
    if (len <= 0)
        return false;
    text[len] = 0;
    const char *after = strrchr(text, ')'); /* the name between the parentheses may contain any character */
    char state;
    int parent;
    if (!after || sscanf(after + 1, " %c %d", &state, &parent) != 2)
        return false;
    *row = (struct process_row){.pid = atoi(name), .parent = parent, .dead = state == 'Z' || state == 'X',
                         .stopped = state == 'T' || state == 't'};
    return true;
}

static bool list_processes(struct process_table *process_table)
{
    DIR *proc = opendir("/proc");
    if (!proc)
        return false;
    process_table->count = 0;
    for (struct dirent *entry; (entry = readdir(proc));) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        if (process_table->count == process_table->cap) {
            size_t cap = process_table->cap ? process_table->cap * 2 : 256;
            struct process_row *rows = realloc(process_table->rows, cap * sizeof *rows);
            if (!rows)
                break;
            process_table->rows = rows;
            process_table->cap = cap;
        }
        if (read_row(dirfd(proc), entry->d_name, &process_table->rows[process_table->count]))
            process_table->count++;
    }
    closedir(proc);
    return true;
}

static bool is_listed_descendant(const struct process_table *process_table, pid_t pid)
{
    size_t low = 0, high = process_table->count; /* /proc lists in ascending order */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (process_table->rows[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < process_table->count && process_table->rows[low].pid == pid && process_table->rows[low].is_descendant;
}

static void mark_descendants(struct process_table *process_table, pid_t root)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < process_table->count; i++) {
            struct process_row *row = &process_table->rows[i];
            if (!row->is_descendant && (row->parent == root || is_listed_descendant(process_table, row->parent)))
                row->is_descendant = changed = true;
        }
    }
}

/* Send `signal` to every living descendant that it would still affect. Return their number. */
static size_t signal_descendants(struct process_table *process_table, pid_t root, int signal)
{
    size_t sent = 0;
    if (!list_processes(process_table))
        return 0;
    mark_descendants(process_table, root);
    for (size_t i = 0; i < process_table->count; i++) {
        const struct process_row *row = &process_table->rows[i];
        if (row->is_descendant && !row->dead && !(signal == SIGSTOP && row->stopped) && !kill(row->pid, signal))
            sent++;
    }
    return sent;
}

/* Stop first and kill afterwards: a running process may fork, and a killed one's pid may be reused at once. */
void process_kill_tree(pid_t root)
{
    struct process_table process_table = {0};
    size_t running = 1;
    kill(root, SIGSTOP);
    for (int round = 0; round < STOP_ROUNDS && running; round++) {
        running = signal_descendants(&process_table, root, SIGSTOP);
        if (running) /* yield the CPU to those that are about to stop */
            sched_yield();
    }
    for (int round = 0; signal_descendants(&process_table, root, SIGKILL) && running && round < STOP_ROUNDS; round++)
        ;
    kill(-root, SIGKILL);
    kill(root, SIGKILL);
    free(process_table.rows);
}

int process_kill_all(void (*reap)(void))
{
    if (getpid() != 1)
        return EPERM;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (int round = 0; round < KILL_ALL_ROUNDS; round++) {
        kill(-1, SIGKILL);
        reap();
        if (kill(-1, 0) && errno == ESRCH)
            return 0;
        sigtimedwait(&child, NULL, &(struct timespec){.tv_nsec = 5000000});
    }
    return EBUSY;
}
