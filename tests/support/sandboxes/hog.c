/* Takes from inside a sandbox what the kernel shares out: hog KIND AT_MOST PROCESSES
   Counted in pieces, but for pipes (pages), memlock, udp and tcp (KiB). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "taking.h"

#define KIB 1024
#define IN_ONE_MESSAGE 25

static long inotify(void) { return inotify_init1(0) >= 0; }

static long watch(void) {
    static int watcher = -1;
    static long made;
    char name[64];
    if (watcher < 0) watcher = inotify_init1(0);
    snprintf(name, sizeof name, "/tmp/%d.%ld", getpid(), made++);
    int fd = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return 0;
    close(fd);
    return inotify_add_watch(watcher, name, IN_MODIFY) >= 0;
}

static long pipe_pages(void) {
    int ends[2];
    if (pipe(ends)) return 0;
    int size = fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    if (size < 0) {
        close(ends[0]), close(ends[1]);
        errno = EPERM;
        return 0;
    }
    return size / getpagesize();
}

/* Descriptors on their way through a socket that nobody reads. */
static long in_flight(void) {
    static int ends[2] = {-1, -1}, null = -1;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(IN_ONE_MESSAGE * sizeof(int))];
    } control = {0};
    struct iovec data = {"x", 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (null < 0) null = open("/dev/null", O_RDONLY);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(IN_ONE_MESSAGE * sizeof(int));
    for (int i = 0; i < IN_ONE_MESSAGE; i++) memcpy(CMSG_DATA(&control.header) + i * sizeof(int), &null, sizeof null);
    for (int fresh = 0;; fresh = 1) {
        if (ends[0] >= 0 && sendmsg(ends[0], &message, MSG_DONTWAIT) > 0) return IN_ONE_MESSAGE;
        if (fresh || (ends[0] >= 0 && errno != EAGAIN) || socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) return 0;
    }
}

static long queue(void) {
    static long made;
    char name[64];
    struct mq_attr attributes = {.mq_maxmsg = 10, .mq_msgsize = 8192};
    snprintf(name, sizeof name, "/%d.%ld", getpid(), made++);
    return mq_open(name, O_CREAT | O_RDWR, 0600, &attributes) >= 0;
}

static long pending_signal(void) {
    static sigset_t blocked;
    sigaddset(&blocked, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    return !sigqueue(getpid(), SIGRTMIN, (union sigval){0});
}

static long watched_by_epoll(void) {
    static int watcher = -1, watched[500], made, next;
    while (made < 500 && (watched[made] = eventfd(0, 0)) >= 0) made++;
    struct epoll_event event = {.events = EPOLLIN};
    if (watcher < 0 || next == made) {
        if ((watcher = epoll_create1(0)) < 0) return 0;
        next = 0;
    }
    return !epoll_ctl(watcher, EPOLL_CTL_ADD, watched[next++], &event);
}

static long locked(void) {
    void *at = mmap(NULL, 64 * KIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at != MAP_FAILED && !mlock(at, 64 * KIB) ? 64 : 0;
}

static long pty(void) { return open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0; }
static long file(void) { return open("/", O_RDONLY) >= 0; }
static long segment(void) { return shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) >= 0; }

static long aio_context(void) {
    unsigned long context = 0;
    return !syscall(SYS_io_setup, 1024, &context);
}

static int loopback(int kind, struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, kind, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd >= 0 && (bind(fd, (struct sockaddr *)address, length) || getsockname(fd, (struct sockaddr *)address, &length)))
        return -1;
    return fd;
}

static char big[1 << 20];

static long udp(void) {
    static int fd = -1;
    static struct sockaddr_in address;
    int room = 1 << 28;
    socklen_t length = sizeof room;
    int held = 0;
    if (fd < 0 && (fd = loopback(SOCK_DGRAM, &address)) < 0) return 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    for (int i = 0; i < 16; i++)
        held += sendto(fd, big, 60000, MSG_DONTWAIT, (struct sockaddr *)&address, sizeof address) > 0 ? 60 : 0;
    getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, &length);
    fd = -1;
    return held < room / KIB ? held : room / KIB;
}

static long tcp(void) {
    static struct sockaddr_in address;
    static int listener = -1;
    if (listener < 0) {
        listener = loopback(SOCK_STREAM, &address);
        if (listener < 0 || listen(listener, 16)) return 0;
    }
    int ends[2] = {socket(AF_INET, SOCK_STREAM, 0), -1}, room = 1 << 22;
    long held = 0;
    if (ends[0] < 0 || connect(ends[0], (struct sockaddr *)&address, sizeof address)) return 0;
    if ((ends[1] = accept(listener, NULL, NULL)) < 0) return 0;
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    setsockopt(ends[1], SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    for (int waits = 0; waits < 20;) {
        ssize_t sent = send(ends[0], big, sizeof big, MSG_DONTWAIT);
        if (sent > 0) held += sent / KIB;
        else if (errno != EAGAIN) return held;
        else waits++, usleep(1000);
    }
    return held;
}

/* Answers of the kernel that nobody reads. */
static long netlink(void) {
    static struct {
        unsigned length;
        unsigned short type, flags;
        unsigned rest[1000];
    } request = {sizeof request, 999, 5 /* NLM_F_REQUEST | NLM_F_ACK */, {0}};
    struct {
        unsigned short family, pad;
        unsigned rest[2];
    } kernel = {16, 0, {0}};
    int fd = socket(16, SOCK_RAW, 0);
    for (int i = 0; fd >= 0 && i < 60; i++)
        if (sendto(fd, &request, sizeof request, MSG_DONTWAIT, (void *)&kernel, sizeof kernel) < 0) break;
    return fd >= 0;
}

static const struct kind kinds[] = {
    {"inotify", inotify}, {"watches", watch},       {"pipes", pipe_pages},        {"inflight", in_flight},
    {"queues", queue},    {"signals", pending_signal}, {"epoll", watched_by_epoll}, {"memlock", locked},
    {"ptys", pty},        {"files", file},          {"segments", segment},        {"aio", aio_context},
    {"udp", udp},         {"tcp", tcp},             {"netlink", netlink},
};

int main(int argc, char **argv) { return hold(kinds, sizeof kinds / sizeof *kinds, argc, argv); }
