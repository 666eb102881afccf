/* Takes the kernel's memory from inside a sandbox, by ways that no control group counts: hoard KIND AT_MOST PROCESSES */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

#include "taking.h"

#define DATAGRAM 60000
#define LOCKS_A_FILE 256
#define CORK 1
#define MSG_MORE_ 0x8000
#define MSG_SPLICE_PAGES_ 0x8000000
#define OFD_SETLK 37
#define HIGH (1UL << 40) /* the kernel takes an int; a filter compares 64 bits */

static char data[DATAGRAM];

static int connected(int family) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(family, SOCK_DGRAM, 0), room = 1 << 20;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    struct sockaddr *to = family == AF_INET ? (void *)&v4 : (void *)&v6;
    if (!connect(fd, to, family == AF_INET ? sizeof v4 : sizeof v6)) return fd;
    close(fd);
    return -1;
}

static long kept(int fd, long sent) {
    if (fd >= 0 && sent <= 0) {
        int error = errno;
        close(fd);
        errno = error;
    }
    return sent > 0;
}

/* One datagram that is never sent off. */

static long sendto_more(void) {
    int fd = connected(AF_INET);
    return kept(fd, syscall(SYS_sendto, fd, data, DATAGRAM, MSG_MORE_, 0, 0));
}

static long sendto_more_v6(void) {
    int fd = connected(AF_INET6);
    return kept(fd, syscall(SYS_sendto, fd, data, DATAGRAM, HIGH | MSG_MORE_, 0, 0));
}

static struct iovec part = {data, DATAGRAM};

static long sendmsg_more(void) {
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int fd = connected(AF_INET);
    return kept(fd, syscall(SYS_sendmsg, fd, &message, HIGH | MSG_MORE_));
}

static long sendmmsg_more(void) {
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    int fd = connected(AF_INET);
    return kept(fd, syscall(SYS_sendmmsg, fd, &message, 1, MSG_MORE_));
}

static long cork(void) {
    int fd = connected(AF_INET), on = 1;
    if (fd < 0 || syscall(SYS_setsockopt, fd, HIGH | IPPROTO_UDP, HIGH | CORK, &on, sizeof on)) return kept(fd, 0);
    return kept(fd, write(fd, data, DATAGRAM));
}

/* A socket of UDP takes the level of UDP-Lite for its own. */
static long cork_lite(void) {
    int fd = connected(AF_INET), on = 1;
    if (fd < 0 || syscall(SYS_setsockopt, fd, 136, CORK, &on, sizeof on)) return kept(fd, 0);
    return kept(fd, write(fd, data, DATAGRAM));
}

/* Each datagram to a closed port is an error that waits to be read. */
static long errors(int family, int level, int option) {
    int fd = connected(family), room = 1 << 22, on = 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    if (fd < 0 || setsockopt(fd, level, option, &on, sizeof on)) return kept(fd, 0);
    long waiting = 0;
    for (int i = 0; i < 4000; i++) send(fd, data, 1000, MSG_DONTWAIT);
    union {
        struct cmsghdr header;
        char room[256];
    } control;
    struct iovec into = {data, 1};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    waiting = recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0;
    return kept(fd, waiting);
}

static long errors_v4(void) { return errors(AF_INET, IPPROTO_IP, 11); }
static long errors_v6(void) { return errors(AF_INET6, 41, 25); }

/* splice(2) itself says that more follows, as long as it does. */

static long splice_more(void) {
    static int ends[2] = {-1, -1};
    if (ends[0] < 0 && pipe(ends)) return 0;
    char rest[8192];
    int fd = connected(AF_INET);
    if (write(ends[1], data, 8192) != 8192) return kept(fd, 0);
    long sent = splice(ends[0], NULL, fd, NULL, 4096, SPLICE_F_MORE);
    int error = errno;
    if (read(ends[0], rest, sent > 0 ? 4096 : 8192) < 0) return kept(fd, 0);
    errno = error;
    return kept(fd, sent);
}

/* Pages of a device belong to no group while they wait in a socket. */

static int zeros_to(int *pair) {
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) ? -1 : open("/dev/zero", O_RDONLY | O_CLOEXEC);
}

static long sendfile_zeros(void) {
    int pair[2] = {-1, -1}, zeros = zeros_to(pair);
    long sent = zeros < 0 ? 0 : sendfile(pair[0], zeros, NULL, 65536);
    int error = errno;
    close(zeros);
    errno = error;
    return kept(pair[0], sent);
}

static long splice_zeros(void) {
    int pair[2] = {-1, -1}, ends[2] = {-1, -1}, zeros = zeros_to(pair);
    long sent = zeros < 0 || pipe2(ends, O_CLOEXEC) ? 0 : splice(zeros, NULL, ends[1], NULL, 65536, 0);
    if (sent > 0) sent = splice(ends[0], NULL, pair[0], NULL, (size_t)sent, 0);
    int error = errno;
    close(zeros);
    close(ends[0]);
    close(ends[1]);
    errno = error;
    return kept(pair[0], sent);
}

/* Options of sockets that are kept in memory of their own. */

static long packet_options(void) {
    static char control[60000];
    int fd = socket(AF_INET6, SOCK_DGRAM, 0);
    for (size_t at = 0; at + CMSG_SPACE(sizeof(int)) <= sizeof control; at += CMSG_SPACE(sizeof(int))) {
        struct cmsghdr *one = (void *)(control + at);
        *one = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = 41, .cmsg_type = 52};
        memcpy(CMSG_DATA(one), &(int){1}, sizeof(int));
    }
    return kept(fd, fd >= 0 && !setsockopt(fd, 41, 6 /* IPV6_2292PKTOPTIONS */, control, sizeof control));
}

static long md5_keys(void) {
    struct {
        struct sockaddr_storage address;
        uint8_t flags, prefix;
        uint16_t length;
        int interface;
        uint8_t key[80];
    } asked = {.flags = 1, .prefix = 32, .length = 16};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    long made = 0;
    for (int i = 0; fd >= 0 && i < 400; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a000000 + i)};
        memcpy(&asked.address, &address, sizeof address);
        if (setsockopt(fd, IPPROTO_TCP, 32 /* TCP_MD5SIG_EXT */, &asked, sizeof asked)) break;
        made++;
    }
    return kept(fd, made);
}

static long groups(void) {
    static uint32_t next;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    long made = 0;
    if (!next) next = 0xe1000000 + (getpid() % 256) * 65536;
    for (int i = 0; fd >= 0 && i < 20; i++) {
        struct ip_mreqn asked = {.imr_multiaddr.s_addr = htonl(next++), .imr_ifindex = 1};
        if (setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &asked, sizeof asked)) break;
        made++;
    }
    return kept(fd, made) * made;
}

static long groups_v6(void) {
    static uint32_t next;
    int fd = socket(AF_INET6, SOCK_DGRAM, 0);
    long made = 0;
    if (!next) next = getpid() << 20;
    for (int i = 0; fd >= 0 && i < 1000; i++) {
        struct ipv6_mreq asked = {.ipv6mr_interface = 1};
        asked.ipv6mr_multiaddr.s6_addr[0] = 0xff, asked.ipv6mr_multiaddr.s6_addr[1] = 0x02;
        uint32_t number = htonl(next++);
        memcpy(asked.ipv6mr_multiaddr.s6_addr + 8, &number, 4);
        if (setsockopt(fd, 41, IPV6_ADD_MEMBERSHIP, &asked, sizeof asked)) break;
        made++;
    }
    return kept(fd, made) * made;
}

/* Locks of single bytes, none beside another, or they would be one; in files of some each, or each new one would be
   looked for among all. */

static long lock_bytes(int command) {
    static int file = -1;
    static long made, files;
    if (made % LOCKS_A_FILE == 0) {
        char name[64];
        snprintf(name, sizeof name, "/tmp/lock.%d.%ld", getpid(), files++);
        if ((file = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600)) < 0) return 0;
        unlink(name);
    }
    struct flock lock = {.l_type = F_WRLCK, .l_start = 2 * (made++ % LOCKS_A_FILE), .l_len = 1};
    return !fcntl(file, command, &lock);
}

static long posix_locks(void) { return lock_bytes(F_SETLK); }
static long description_locks(void) { return lock_bytes(OFD_SETLK); }

static long in_memory(void) {
    static int file = -1;
    static long made;
    if (made % LOCKS_A_FILE == 0 && (file = (int)syscall(SYS_memfd_create, "it", 1)) < 0) return 0;
    struct flock lock = {.l_type = F_WRLCK, .l_start = 2 * (made++ % LOCKS_A_FILE), .l_len = 1};
    return !fcntl(file, F_SETLK, &lock);
}

static long flocks(void) {
    int fd = open("/tmp/whole", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    return kept(fd, fd >= 0 && !flock(fd, LOCK_SH));
}

static long directory(void) {
    mkdir("/srv/directory", 0700);
    return open("/srv/directory", O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0;
}

/* What is read of a directory that consists of two layers is kept as long as it is open. */
static int a_listing(void) {
    static long made;
    char name[256], listed[32768];
    if (!made)
        for (int i = 0; i < 2000; i++) {
            memset(name, 'n', 250);
            snprintf(name, sizeof name, "/tmp/%d", i);
            name[strlen(name)] = 'n', name[250] = 0;
            close(open(name, O_CREAT | O_WRONLY, 0600));
        }
    snprintf(name, sizeof name, "/tmp/changed.%d.%ld", getpid(), made++);
    close(open(name, O_CREAT | O_WRONLY, 0600));
    unlink(name);
    int fd = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return kept(fd, fd < 0 ? 0 : syscall(SYS_getdents64, fd, listed, sizeof listed)) ? fd : -1;
}

static long listing(void) { return a_listing() >= 0; }

static long rewound_listing(void) {
    int fd = a_listing();
    return fd >= 0 && !lseek(fd, 0, SEEK_SET);
}

static int send_away(int socket, int fd) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
    struct iovec byte = {data, 1};
    struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    int sent = fd >= 0 && sendmsg(socket, &message, MSG_DONTWAIT) == 1;
    close(fd);
    return sent;
}

/* In the queue of a socket, and in no table of descriptors. */
static long listing_in_flight(void) {
    static int ends[2] = {-1, -1};
    if (ends[0] < 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return 0;
    return send_away(ends[0], a_listing());
}

/* In the queue of a socket that is itself in flight. */
static long listing_in_a_socket_in_flight(void) {
    static int inner[2] = {-1, -1}, outer[2];
    if (inner[0] < 0) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, inner) || socketpair(AF_UNIX, SOCK_STREAM, 0, outer)) return 0;
        if (!send_away(outer[0], inner[1])) return 0;
    }
    return send_away(inner[0], a_listing());
}

/* In the tables of threads, each of which has one of its own. */

#define A_THREAD 20

static int take_in_thread(void *done) {
    int made = 0;
    while (made < A_THREAD && a_listing() >= 0) made++;
    if (write(*(int *)done, &made, sizeof made) != sizeof made) return 1;
    for (;;) pause();
}

static long listings_of_a_thread(void) {
    int done[2], made = 0;
    char *stack = malloc(1 << 17);
    int flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    if (!stack || pipe(done) || clone(take_in_thread, stack + (1 << 17), flags, done + 1) < 0) return 0;
    return read(done[0], &made, sizeof made) == sizeof made ? made : 0;
}

/* A connection that waits to be accepted, and whose other end is closed. */

static long waiting(size_t size) {
    static int listener = -1;
    static long made;
    static struct sockaddr_in place;
    socklen_t length = sizeof place;
    if (made++ % 1000 == 0) {
        place = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        listener = socket(AF_INET, SOCK_STREAM, 0);
        if (listener < 0 || bind(listener, (void *)&place, length) || listen(listener, 4096)) return 0;
        getsockname(listener, (void *)&place, &length);
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (void *)&place, length)) return kept(fd, 0);
    if (size) send(fd, data, size, MSG_DONTWAIT);
    return close(fd) == 0;
}

static long backlog(void) { return waiting(0); }
static long backlog_with_data(void) { return waiting(DATAGRAM); }

/* A UDP socket with a port of its own that others could share: the kernel makes a table for 128 of them. */
static long shared_port(void) {
    static uint32_t made;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(1024 + made % 60000)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0), one = 1;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (getpid() % 60000 << 8) + made++ / 60000);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one)) return 0;
    return !bind(fd, (void *)&at, sizeof at);
}

static long timer(void) { return timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC) >= 0; }
static long epoll(void) { return epoll_create1(EPOLL_CLOEXEC) >= 0; }

static const struct kind kinds[] = {
    {"ports", shared_port},
    {"sendto", sendto_more}, {"sendto6", sendto_more_v6}, {"sendmsg", sendmsg_more}, {"sendmmsg", sendmmsg_more},
    {"cork", cork}, {"corklite", cork_lite}, {"errors", errors_v4}, {"errors6", errors_v6}, {"splice", splice_more},
    {"sendfilezero", sendfile_zeros}, {"splicezero", splice_zeros}, {"pktoptions", packet_options},
    {"md5", md5_keys}, {"groups", groups}, {"groups6", groups_v6}, {"posix", posix_locks}, {"ofd", description_locks},
    {"memory", in_memory}, {"flock", flocks}, {"directories", directory}, {"listings", listing},
    {"rewound", rewound_listing}, {"flight", listing_in_flight}, {"nested", listing_in_a_socket_in_flight},
    {"threads", listings_of_a_thread}, {"backlog", backlog}, {"fullbacklog", backlog_with_data},
    {"timers", timer}, {"epoll", epoll},
};

int main(int argc, char **argv) { return hold(kinds, sizeof kinds / sizeof *kinds, argc, argv); }
