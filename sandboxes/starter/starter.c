/* The starter: mounts the file system of each sandbox and runs the OCI runtime on it, in its own mount namespaces, so
   that neither the machine's mount table nor anything else outlives it. Each owner of sandboxes has one, as its only
   child.

   starter HOST_FD DISK_FD LAYER_FD PROGRAM_FD [PATH...] -- [CGROUP...]
       HOST_FD     a SOCK_SEQPACKET socket to the owner
       DISK_FD     a detached mount with the sandboxes' directories
       LAYER_FD    a detached mount of the common layer
       PROGRAM_FD  the OCI runtime
       PATH        programs and layers: other mounts of the machine are unmounted, except the system's
       CGROUP      cgroup hierarchies (version 1) below /sys/fs/cgroup that the OCI runtime may see; none: all

   It is compiled twice: as a program, and as a library (AS_LIBRARY) that LD_PRELOAD loads into the OCI runtime itself,
   where it replaces main. Then a start is a fork that calls the original main. So the loading of a runtime with ten
   libraries, which is most of its CPU time, happens only once.

   A request is one packet; its fields end with a zero byte:
       S ID FIRST LIMITS OPTIONS TOP COUNT LAYER... ARGUMENT...
                                               with the listening socket       answer: S, ID, status
           Mount an overlay with OPTIONS at ROOTFS, of TOP (the common layer if empty) on COUNT LAYERs, and run the OCI
           runtime. Descriptor 3 is the socket, and DISK/ID/err gets its error output. LIMITS are pairs of a resource of
           setrlimit(2) and its limit. Unless FIRST is 0, a user namespace at USERS maps the ids from 0 to those from
           FIRST outside, and the owners of the layers are mapped. Status as in a shell: 128 + signal for a death by
           one.
       E PID                                   of an ended init process        answer: E, PID, status,
                                                                               -1 if it was no child of this starter
       B                                       drop all ended processes        answers: E, PID, status
       P                                       ping                            answer: P */
#ifdef AS_LIBRARY
#include <dlfcn.h>

#include "fork_trim.h"
#endif
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <poll.h>
#include <unistd.h>

#include "mounts.h"

#define PACKET_MAX (64 << 10)
#define FIELDS_MAX 256
#define DESCRIPTORS_MAX 8
#define STARTS_MAX 256

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
#define OOM_SCORE_OFFSET 500 /* also in sandboxes/runtimes/isolation.py */

struct start {
    pid_t pid;
    char id[64];
};

static struct start starts[STARTS_MAX];
static int host, program;

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return 125;
}

static void answer(const char *text, size_t len)
{
    if (send(host, text, len, MSG_NOSIGNAL) < 0)
        exit(0);
}

#ifdef AS_LIBRARY
static int (*runtime_main)(int, char **, char **);

/* Run the OCI runtime in this fork. It must inherit no descriptor but the socket. */
static int run_runtime(char **argv)
{
    int argc = 0;
    while (argv[argc])
        argc++;
    syscall(SYS_close_range, 4u, ~0u, 0u);
    exit_without_destructors();
    exit(runtime_main(argc, argv, environ));
}
#else
static int run_runtime(char **argv)
{
    syscall(SYS_close_range, 4u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC, because the program's descriptor is among them */);
    fexecve(program, argv, environ);
    execv(*argv, argv); /* a script must be executed by its path */
    return fail(*argv);
}
#endif

/* Set here, because an OCI runtime may not if root lacks CAP_SYS_RESOURCE and the namespace has another owner. */
static bool set_limits(const char *limits)
{
    for (char *at = (char *)(uintptr_t)limits; *at;) {
        int resource = (int)strtol(at, &at, 10);
        rlim_t value = strtoull(at, &at, 10);
        if (setrlimit(resource, &(struct rlimit){value, value}))
            return false;
    }
    return true;
}

/* If the machine is short of memory, the kernel kills a sandbox before its owner. Processes inside can only raise the
   score, unless root has CAP_SYS_RESOURCE here (proc_pid_oom_score_adj(5)). */
static void raise_oom_score(void)
{
    char text[16] = {0};
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (fd >= 0 && pread(fd, text, sizeof text - 1, 0) > 0) {
        int score = atoi(text) + OOM_SCORE_OFFSET;
        int len = snprintf(text, sizeof text, "%d", score < 1000 ? score : 1000);
        if (write(fd, text, (size_t)len) != len)
            errno = 0; /* ignore it: the score stays that of the owner */
    }
    close(fd);
}

struct start_request {
    const char *id, *first, *limits, *options, *top;
    char **layers, **argv;
    size_t layer_count;
};

static int run(const struct start_request *request, int socket)
{
    char error_file[sizeof DISK + 80];
    snprintf(error_file, sizeof error_file, DISK "/%s/err", request->id);
    int err = open(error_file, O_CREAT | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (err < 0)
        return 125;
    /* crun passes all three on to the sandbox, so they must not be files of the machine such as its /dev/null. */
    for (int i = 0; i < 3; i++)
        dup2(err, i);
    /* Mounts from here on are in the sandbox's own mount namespace and end with it. */
    if (unshare(CLONE_NEWNS))
        return fail("unshare");
    /* For the init process, a child of this one: an open of a namespace's file is visible to all that watch that file.
       A
       kernel without time namespaces does not have this file. */
    unshare(CLONE_NEWTIME);
    raise_oom_score(); /* before the clone that shares memory, or the kernel would search all processes for sharers */
    bool mapped = strcmp(request->first, "0") != 0;
    int namespace = mapped ? make_user_namespace(request->first) : -1;
    if (mapped && namespace < 0)
        return fail("the user namespace cannot be made");
    if (!mount_overlay(request->top, request->layers, request->layer_count, request->options, namespace))
        return fail("the layers cannot be mounted");
    if (dup2(socket, 3) < 0)
        return fail("dup2");
    if (!set_limits(request->limits))
        return fail("its resource limits cannot be set");
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    return run_runtime(request->argv);
}

static void report_start(const char *id, int status)
{
    char text[128];
    answer(text, (size_t)snprintf(text, sizeof text, "S%c%s%c%d", 0, id, 0, status) + 1);
}

static void start(char **fields, size_t count, int socket)
{
    const char *id = count > 1 ? fields[1] : "";
    size_t layers = count > 6 ? (size_t)atol(fields[6]) : 0;
    struct start *slot = starts;
    while (slot < starts + STARTS_MAX && slot->pid)
        slot++;
    if (!layers || layers > count || count < 8 + layers || socket < 0 || strlen(id) >= sizeof slot->id || slot == starts + STARTS_MAX) {
        report_start(id, 125);
        return;
    }
    struct start_request request = {id, fields[2], fields[3], fields[4], fields[5], fields + 7, fields + 7 + layers, layers};
    pid_t pid = fork();
    if (!pid)
        _exit(run(&request, socket));
    if (pid < 0) {
        report_start(id, 125);
        return;
    }
    slot->pid = pid;
    strcpy(slot->id, id);
}

/* Wait for one pid, because a wait for any child would scan the processes of all sandboxes. */
static int status_of(pid_t pid, bool *ended)
{
    int raw;
    pid_t reaped = waitpid(pid, &raw, WNOHANG);
    *ended = reaped != 0;
    if (reaped != pid)
        return -1;
    return WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw);
}

static void report_exit(pid_t pid, int status)
{
    char text[64];
    answer(text, (size_t)snprintf(text, sizeof text, "E%c%d%c%d", 0, (int)pid, 0, status) + 1);
}

static void reap_starts(void)
{
    for (struct start *slot = starts; slot < starts + STARTS_MAX; slot++) {
        bool ended = false;
        int status = slot->pid ? status_of(slot->pid, &ended) : 0;
        if (ended) {
            slot->pid = 0;
            remove_runtime_state(slot->id);
            report_start(slot->id, status);
        }
    }
}

/* Reap all ended children, also unknown processes that a failed OCI runtime has left. */
static void reap_all(void)
{
    reap_starts();
    siginfo_t orphan = {0};
    while (!waitid(P_ALL, 0, &orphan, WEXITED | WNOHANG) && orphan.si_pid) {
        report_exit(orphan.si_pid, orphan.si_code == CLD_EXITED ? orphan.si_status : 128 + orphan.si_status);
        orphan.si_pid = 0;
    }
}

static void handle(char *packet, size_t len, int *descriptors, size_t received)
{
    char *fields[FIELDS_MAX + 1] = {0};
    size_t count = 0;
    for (size_t at = 0; at < len && count < FIELDS_MAX; at += strlen(packet + at) + 1)
        fields[count++] = packet + at;
    if (!strcmp(packet, "E") && count > 1) {
        bool ended;
        pid_t pid = atoi(fields[1]);
        report_exit(pid, status_of(pid, &ended));
    }
    if (!strcmp(packet, "B"))
        reap_all();
    if (!strcmp(packet, "P"))
        answer("P", 2);
    if (!strcmp(packet, "S"))
        start(fields, count, received ? descriptors[0] : -1);
    for (size_t i = 0; i < received; i++)
        close(descriptors[i]);
}

/* Receive one request. Return false if the owner has ended. */
static bool receive_request(void)
{
    static char packet[PACKET_MAX + 1];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
    } control;
    struct iovec data = {packet, PACKET_MAX};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t len = recvmsg(host, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (len < 0)
        return errno == EAGAIN || errno == EINTR;
    if (!len)
        return false;
    packet[len] = 0;
    int descriptors[DESCRIPTORS_MAX];
    size_t received = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            received = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(descriptors, CMSG_DATA(c), received * sizeof(int));
        }
    handle(packet, (size_t)len, descriptors, received);
    return true;
}

static int serve(int argc, char **argv)
{
    char **split = argv + (argc < 5 ? argc : 5);
    while (*split && strcmp(*split, "--"))
        split++;
    if (!*split)
        return 2;
    *split = NULL;
    host = atoi(argv[1]);
    program = atoi(argv[4]);
    fcntl(host, F_SETFD, FD_CLOEXEC);
    prctl(PR_SET_NAME, "starter");
    umask(022); /* files made here must be readable by the users inside */
    if (!set_up_mounts(atoi(argv[2]), atoi(argv[3]), argv + 5, split + 1))
        return fail("the mount namespace cannot be set up");
    for (int i = 2; i < 4; i++)
        close(atoi(argv[i]));
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    int children = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    /* When the OCI runtime has ended, init processes become children of this process, which reaps their statuses. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    setsid();
    /* One empty keyring for all, which no process inside may use: a keyring for each start would be counted, and
       lookups
       would become slower with their number. */
    syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, NULL);
    answer("R", 2);
    struct pollfd polled[] = {{host, POLLIN, 0}, {children, POLLIN, 0}};
    for (;;) {
        poll(polled, 2, -1);
        if (polled[1].revents) {
            struct signalfd_siginfo info[16];
            while (read(children, info, sizeof info) > 0)
                ;
            reap_starts();
        }
        if (polled[0].revents && !receive_request())
            break;
    }
    /* Kill unfinished starts of the dead owner. Started sandboxes live on, for the next owner. */
    for (struct start *slot = starts; slot < starts + STARTS_MAX; slot++)
        if (slot->pid)
            kill(slot->pid, SIGKILL);
    return 0;
}

#ifdef AS_LIBRARY
static int library_main(int argc, char **argv, char **environment)
{
    (void)environment;
    unsetenv("LD_PRELOAD");
    unsetenv("LD_BIND_NOW");
    trim_forks();
    return serve(argc, argv);
}

/* Interposes the C library's function, which the runtime's entry point calls with its main. */
__attribute__((visibility("default"))) int
__libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                  void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    __typeof__(&__libc_start_main) original;
    *(void **)&original = dlsym(RTLD_NEXT, "__libc_start_main");
    runtime_main = main;
    return original(library_main, argc, argv, init, fini, rtld_fini, stack_end);
}
#else
int main(int argc, char **argv)
{
    return serve(argc, argv);
}
#endif
