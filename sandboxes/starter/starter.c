/* The starter: makes the file system of each sandbox and runs the OCI runtime on it, in mount namespaces of its own, so
   that neither the machine's mount table nor anything else outlives it. One per owner of sandboxes, its only child.

   starter HOST_FD DISK_FD LAYER_FD PROGRAM_FD [PATH...] -- [CGROUP...]
       HOST_FD  a SOCK_SEQPACKET socket to the owner; then two detached mounts: where sandboxes are kept, and the
                layer of files that every sandbox has; and the OCI runtime. PATH: beside the system's own, where
                programs and layers are; of the machine's mounts only those are kept that lead there. CGROUP: the
                hierarchies of control groups, version 1, that the OCI runtime is to see, below /sys/fs/cgroup; none: it
                sees what the machine has.

   It is compiled twice: as a program, and as a library (INSIDE) that LD_PRELOAD brings into the OCI runtime itself, where
   it takes main's place. There a start is a fork that goes on to main, and what a runtime with ten libraries spends on
   being loaded, most of its processor time, is spent once.

   A request is one packet, its fields end with a zero byte:
       S ID FIRST LIMITS OPTIONS ABOVE COUNT LAYER... ARGUMENT...
                                               with the listening socket                   answer: S, ID, status
   S mounts an overlay with OPTIONS at ROOTFS, of ABOVE (the layer of LAYER_FD if it is empty) on so many LAYERs. Then it
   runs the OCI runtime, which finds the socket as descriptor 3 and writes its complaints to DISK/ID/err. LIMITS are pairs
   of a resource of setrlimit(2) and its limit. Unless FIRST is 0, there is a user namespace at USERS, in which the ids
   from 0 are those from FIRST outside, and so the layers' owners are mapped. A status is a shell's: 128 and the signal for
   a death by one.
       E PID                                   of a first process that has ended           answer: E, PID, status,
                                               -1 where it was another's child
       B                                       all that have ended are nobody's any more   answers: E, PID, status
       P                                       whether it listens                          answer: P */
#ifdef INSIDE
#include <dlfcn.h>

#include "shed.h"
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
#define OOM_SCORE 500 /* sandboxes/runtimes/isolation.py has it too */

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

#ifdef INSIDE
static int (*runtime_main)(int, char **, char **);

/* Nothing of ours but the socket is to be found by what comes of it. */
static int become(char **argv)
{
    int argc = 0;
    while (argv[argc])
        argc++;
    syscall(SYS_close_range, 4u, ~0u, 0u);
    end_plainly();
    exit(runtime_main(argc, argv, environ));
}
#else
static int become(char **argv)
{
    syscall(SYS_close_range, 4u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC: the program is one of them */);
    fexecve(program, argv, environ);
    execv(*argv, argv); /* a script is read by its name */
    return fail(*argv);
}
#endif

/* Here, for an OCI runtime may not where root lacks CAP_SYS_RESOURCE and the namespace is another's. */
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

/* Where the machine itself is short of memory a sandbox goes before what runs them. The inside can only raise it if root
   has CAP_SYS_RESOURCE here (proc_pid_oom_score_adj(5)). */
static void go_first(void)
{
    char text[16] = {0};
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (fd >= 0 && pread(fd, text, sizeof text - 1, 0) > 0) {
        int score = atoi(text) + OOM_SCORE;
        int len = snprintf(text, sizeof text, "%d", score < 1000 ? score : 1000);
        if (write(fd, text, (size_t)len) != len)
            errno = 0; /* then it goes with the others */
    }
    close(fd);
}

struct wanted {
    const char *id, *first, *limits, *options, *above;
    char **layers, **argv;
    size_t layer_count;
};

static int run(const struct wanted *wanted, int socket)
{
    char complaints[sizeof DISK + 80];
    snprintf(complaints, sizeof complaints, DISK "/%s/err", wanted->id);
    int err = open(complaints, O_CREAT | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (err < 0)
        return 125;
    /* crun gives all three to the sandbox's user: never a file of the machine, such as its /dev/null. */
    for (int i = 0; i < 3; i++)
        dup2(err, i);
    /* What is mounted from here on is the sandbox's alone and ends with it. */
    if (unshare(CLONE_NEWNS))
        return fail("unshare");
    /* For the first process, which is our child: whoever opens a namespace's file is seen by all that watch that file. A
       kernel without time namespaces has no such file either. */
    unshare(CLONE_NEWTIME);
    go_first(); /* while nobody shares our memory, or the kernel would look at every process for who does */
    bool mapped = strcmp(wanted->first, "0") != 0;
    int namespace = mapped ? make_user_namespace(wanted->first) : -1;
    if (mapped && namespace < 0)
        return fail("no user namespace");
    if (!mount_overlay(wanted->above, wanted->layers, wanted->layer_count, wanted->options, namespace))
        return fail("the layers cannot be mounted");
    if (dup2(socket, 3) < 0)
        return fail("dup2");
    if (!set_limits(wanted->limits))
        return fail("its limits");
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    return become(wanted->argv);
}

static void refuse(const char *id, int status)
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
        refuse(id, 125);
        return;
    }
    struct wanted wanted = {id, fields[2], fields[3], fields[4], fields[5], fields + 7, fields + 7 + layers, layers};
    pid_t pid = fork();
    if (!pid)
        _exit(run(&wanted, socket));
    if (pid < 0) {
        refuse(id, 125);
        return;
    }
    slot->pid = pid;
    strcpy(slot->id, id);
}

/* A child is asked for by its pid alone: to find out which has ended, the kernel would look at every sandbox's. */
static int status_of(pid_t pid, bool *ended)
{
    int raw;
    pid_t found = waitpid(pid, &raw, WNOHANG);
    *ended = found != 0;
    if (found != pid)
        return -1;
    return WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw);
}

static void tell_end(pid_t pid, int status)
{
    char text[64];
    answer(text, (size_t)snprintf(text, sizeof text, "E%c%d%c%d", 0, (int)pid, 0, status) + 1);
}

static void see_starts(void)
{
    for (struct start *slot = starts; slot < starts + STARTS_MAX; slot++) {
        bool ended = false;
        int status = slot->pid ? status_of(slot->pid, &ended) : 0;
        if (ended) {
            slot->pid = 0;
            forget(slot->id);
            refuse(slot->id, status);
        }
    }
}

/* Also what an OCI runtime that failed left behind, of which nobody knows. */
static void bury(void)
{
    see_starts();
    siginfo_t orphan = {0};
    while (!waitid(P_ALL, 0, &orphan, WEXITED | WNOHANG) && orphan.si_pid) {
        tell_end(orphan.si_pid, orphan.si_code == CLD_EXITED ? orphan.si_status : 128 + orphan.si_status);
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
        tell_end(pid, status_of(pid, &ended));
    }
    if (!strcmp(packet, "B"))
        bury();
    if (!strcmp(packet, "P"))
        answer("P", 2);
    if (!strcmp(packet, "S"))
        start(fields, count, received ? descriptors[0] : -1);
    for (size_t i = 0; i < received; i++)
        close(descriptors[i]);
}

/* False when the owner is gone. */
static bool listen_to_host(void)
{
    static char packet[PACKET_MAX + 1];
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
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
    umask(022); /* what is made here is for whoever is inside to read */
    if (!settle(atoi(argv[2]), atoi(argv[3]), argv + 5, split + 1))
        return fail("mounts of its own");
    for (int i = 2; i < 4; i++)
        close(atoi(argv[i]));
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    int children = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    /* First processes of sandboxes fall to us when the OCI runtime has ended, so that we learn how they end. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    setsid();
    /* One empty keyring for all, which no process inside may use: a new one each is counted, and found more slowly the
       more there are. */
    syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, NULL);
    answer("R", 2);
    struct pollfd wanted[] = {{host, POLLIN, 0}, {children, POLLIN, 0}};
    for (;;) {
        poll(wanted, 2, -1);
        if (wanted[1].revents) {
            struct signalfd_siginfo info[16];
            while (read(children, info, sizeof info) > 0)
                ;
            see_starts();
        }
        if (wanted[0].revents && !listen_to_host())
            break;
    }
    /* What was being made when the owner died is nobody's; what lives goes on, for the next owner. */
    for (struct start *slot = starts; slot < starts + STARTS_MAX; slot++)
        if (slot->pid)
            kill(slot->pid, SIGKILL);
    return 0;
}

#ifdef INSIDE
static int stand_in(int argc, char **argv, char **environment)
{
    (void)environment;
    unsetenv("LD_PRELOAD");
    unsetenv("LD_BIND_NOW");
    shed();
    return serve(argc, argv);
}

/* The C library's, which the runtime's first instructions call with its main. */
__attribute__((visibility("default"))) int
__libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                  void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    __typeof__(&__libc_start_main) begin;
    *(void **)&begin = dlsym(RTLD_NEXT, "__libc_start_main");
    runtime_main = main;
    return begin(stand_in, argc, argv, init, fini, rtld_fini, stack_end);
}
#else
int main(int argc, char **argv)
{
    return serve(argc, argv);
}
#endif
