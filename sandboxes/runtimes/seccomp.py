"""The system calls a sandbox may make: an allow-list of our own; whatever is not named fails with EPERM.

It holds what compilers, interpreters, package managers and test suites use, and leaves
out what has no place in coding work or has been a way out of containers: mounts, namespaces, tracing of other
processes, keyrings, bpf, perf, io_uring, userfaultfd, loading of modules, clocks, file handles, 32-bit calls.
Programs that would like io_uring, clone3 or io_setup fall back by themselves.

Three are left out for what they take of the machine. Of the contexts of io_setup the machine has one number for all.
Answers that wait in a netlink socket are memory that no limit counts: in a minute a sandbox took 10 GiB so. Names of
interfaces are still had by ioctl and in /proc/net. Filters, on sockets or of system calls, are compiled into memory
that no limit counts either, and of which the machine has a fixed amount (``net.core.bpf_jit_limit``): once it is used
up no filter can be loaded, and no sandbox starts.
"""

import errno
from collections.abc import Iterator, Mapping
from typing import Any

Condition = tuple[int, int, str, int]
"""On the argument of that index: a value to equal and 0, or a mask and what has to be left of the argument under it."""

NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET."""

AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
INTERNET = (0, 6, 17)
"""Protocols of sockets: the type's own, TCP, UDP. For any other the kernel would look for a module and load it."""

PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""PER_LINUX, PER_LINUX32, UNAME26 of either, and the question which it is."""

FILES = """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
    fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fgetxattr flistxattr flock fremovexattr
    fsetxattr fstat fstatfs ftruncate futimesat getcwd getdents getdents64 getxattr getxattrat lchown
    lgetxattr link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat mknod
    mknodat newfstatat pread64 preadv pwrite64 pwritev read readahead readlink
    readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir setxattr setxattrat stat
    statfs statx symlink symlinkat tee truncate umask unlink unlinkat utime utimensat utimes
    vmsplice write writev inotify_add_watch inotify_init inotify_init1 inotify_rm_watch landlock_add_rule
    landlock_create_ruleset landlock_restrict_self
"""
MEMORY = """
    brk get_mempolicy map_shadow_stack membarrier memfd_create mlock mlock2 mlockall mmap
    mprotect mremap mseal munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect
    process_mrelease remap_file_pages shmat shmctl shmdt shmget
"""
PROCESSES = """
    capget capset execve execveat exit exit_group fork getegid geteuid getgid getgroups getpgid getpgrp getpid getppid
    getpriority getresgid getresuid getrlimit getrusage getsid gettid getuid ioprio_get kill pidfd_open
    pidfd_send_signal sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
    sched_getparam sched_getscheduler sched_rr_get_interval
    sched_yield setfsgid setfsuid setgid setgroups setpgid setregid setresgid
    setresuid setreuid setrlimit setsid setuid tgkill times tkill vfork wait4 waitid getcpu sysinfo uname
    rseq set_robust_list get_robust_list set_tid_address arch_prctl set_thread_area get_thread_area getrandom
"""
WAITING = """
    alarm clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait
    epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 futex futex_requeue futex_wait futex_waitv futex_wake
    getitimer gettimeofday nanosleep pause poll ppoll pselect6 restart_syscall rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo select setitimer
    sigaltstack signalfd signalfd4 time timer_create timer_delete timer_getoverrun timer_gettime timer_settime
    timerfd_create timerfd_gettime timerfd_settime
"""
TALKING = """
    accept accept4 bind connect getpeername getsockname listen mq_getsetattr mq_notify mq_open
    mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd pipe pipe2 recvfrom recvmmsg recvmsg semctl
    semget semop semtimedop shutdown socketpair
"""


BY_KIND = (("setpriority", 0), ("ioprio_set", 1))
"""The kind that means a single process, for calls that also reach groups and users."""

ON_ONESELF = ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")
"""Allowed with the process id 0, which is the caller: all inside are one user, and so is the tool server, whose limits
and share of the processor are not theirs to set."""

C_INT = 0xFFFFFFFF
"""What the kernel takes of an argument that is an int. A filter compares 64 bits, and a caller may set the others."""

SOL_SOCKET = 1
COOKIES = frozenset((57, 71))
"""SO_COOKIE and SO_NETNS_COOKIE count up for the whole machine, so a sandbox could leave a note in them."""

OPTIONS_REFUSED: Mapping[int, frozenset[int]] = {
    # SOL_SOCKET: SO_ATTACH_FILTER, ATTACH_BPF, ATTACH_REUSEPORT_CBPF, ATTACH_REUSEPORT_EBPF, SO_TIMESTAMPING (old and
    # new), SO_ZEROCOPY
    SOL_SOCKET: frozenset((26, 50, 51, 52, 37, 65, 60)),
    # SOL_IP: IP_UNBLOCK_SOURCE to IP_MSFILTER, the MCAST_* options for sources
    0: frozenset((37, 38, 39, 40, 41, 43, 44, 46, 47, 48)),
    # SOL_TCP: TCP_MD5SIG, TCP_MD5SIG_EXT, TCP_AO_ADD_KEY, TCP_AO_DEL_KEY, TCP_AO_INFO
    6: frozenset((14, 32, 38, 39, 40)),
    # SOL_UDP, and SOL_UDPLITE, which a socket of UDP takes for the same: UDP_CORK
    17: frozenset((1,)),
    136: frozenset((1,)),
    # SOL_IPV6: options kept for later packets (old and new), IPV6_ADD_MEMBERSHIP, IPV6_JOIN_ANYCAST,
    # IPV6_FLOWLABEL_MGR, MCAST_*
    41: frozenset((3, 4, 5, 6, 20, 27, 32, 42, 43, 44, 46, 47, 48, 54, 55, 57, 59)),
}
"""Options of sockets by level: those that compile filters, and those whose data the kernel keeps in memory that no
control group counts. All other options that the kernel knows at these levels are below 128."""

OPTIONS_IGNORED: Mapping[int, frozenset[int]] = {0: frozenset((11, 26)), 41: frozenset((25, 31))}
"""IP_RECVERR, IPV6_RECVERR and their RFC 4884 forms: errors that wait to be read are not counted. The resolver of glibc
sets the first and gives up if that fails."""

MSG_KEEPS_BACK = 0x8000 | 0x4000000 | 0x8000000
"""MSG_MORE | MSG_ZEROCOPY | MSG_SPLICE_PAGES."""

SUCCESS = 0
"""A call that is refused with this errno returns 0."""
SYNCS = ("fdatasync", "fsync", "sync", "sync_file_range", "syncfs")
MS_SYNC = 4
RWF_SYNCS = (2, 4)
"""RWF_DSYNC, RWF_SYNC."""
FILE_FLAGS = frozenset((0x40086602, 0x401C5820))
"""FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR of ioctl(2): one of the flags makes each write to a file wait for the disk."""
O_DSYNC = 0x1000
"""A part of O_SYNC too."""

PR_SET_SECCOMP = 22
DISTANT_PRCTL = (0x53564D41, 0x59616D61)
"""PR_SET_VMA and PR_SET_PTRACER; all others lie below 128."""

SIGNALLING_FCNTL = frozenset((1024, 1036, 1038, 1040))
"""F_SETLEASE, F_SET_RW_HINT, F_SET_FILE_RW_HINT and F_SETDELEG of fcntl(2). To open a file that another process has
leased takes three quarters of a minute, unless the lease is given up. A hint is a number that one process writes to
an inode and another reads; the descriptors of epoll(7), eventfd(2) and their like have one inode for the whole machine,
which belongs to root, and where users are not mapped root is inside too."""

DONTNEED = 4
"""POSIX_FADV_DONTNEED: answered as done. A program that evicts pages of an image, or learns which are in memory,
exchanges signals with every sandbox of that image; so mincore(2) and cachestat(2) are refused too."""
EVICTIONS = frozenset((20, 21))
"""MADV_COLD and MADV_PAGEOUT."""
RWF_PLAIN = 0x37
"""RWF_HIPRI | DSYNC | SYNC | APPEND | NOAPPEND."""
RWF_REFUSED = (0x8, 0x40, 0x80)
"""RWF_NOWAIT, which reads only what is in memory; RWF_ATOMIC; RWF_DONTCACHE, which evicts what it read."""


OFD_LOCKS = frozenset((36, 37, 38))
"""F_OFD_GETLK, F_OFD_SETLK and F_OFD_SETLKW of fcntl(2). Such a lock lives as long as its file, even if no
process has it open; then its owner cannot be found. Kernels without these locks answer EINVAL too."""


def profile(*, own_disk: bool = False) -> dict[str, Any]:
    """The profile as Docker's and the OCI runtimes' JSON reads it.

    ``own_disk``: sandboxes write to a disk that never waits for the machine's, so they may open files with O_SYNC.
    """
    plain = sorted({name for group in (FILES, MEMORY, PROCESSES, WAITING, TALKING) for name in group.split()})
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [{"architecture": "SCMP_ARCH_X86_64"}, {"architecture": "SCMP_ARCH_AARCH64"}],
        "syscalls": [
            {"names": plain, "action": "SCMP_ACT_ALLOW"},
            *(_when(name, (0, 0, "SCMP_CMP_EQ", 0)) for name in ON_ONESELF),
            *(_when(name, (0, kind, "SCMP_CMP_EQ", 0), (1, 0, "SCMP_CMP_EQ", 0)) for name, kind in BY_KIND),
            _when("clone", (0, NAMESPACE_FLAGS, "SCMP_CMP_MASKED_EQ", 0)),
            # clone3: its flags lie in memory, where a filter cannot look. ENOSYS is a hint to use something else.
            _refused("clone3", errno.ENOSYS),
            _refused("io_setup", errno.ENOSYS),
            # Whoever can do without filters takes these answers for a kernel's that has none.
            _refused("seccomp", errno.ENOSYS),
            _refused("prctl", errno.EINVAL, (0, C_INT, "SCMP_CMP_MASKED_EQ", PR_SET_SECCOMP)),
            *(_when("prctl", condition) for condition in _unless(0, frozenset((PR_SET_SECCOMP,)))),
            *(_when("prctl", (0, option, "SCMP_CMP_EQ", 0)) for option in DISTANT_PRCTL),
            *(_when("fcntl", condition) for condition in _unless(1, SIGNALLING_FCNTL | OFD_LOCKS, 0, 1024)),
            *(_refused("fcntl", errno.EINVAL, (1, C_INT, "SCMP_CMP_MASKED_EQ", value)) for value in sorted(OFD_LOCKS)),
            *(_when("fcntl", condition) for condition in _unless(1, SIGNALLING_FCNTL, 1024)),
            *_socket_options(),
            *_sending(),
            *_syncing(),
            *_opening(own_disk=own_disk),
            *_memory_of_files(),
            _when("socket", (0, AF_UNIX, "SCMP_CMP_EQ", 0)),
            *(
                _when("socket", (0, family, "SCMP_CMP_EQ", 0), (2, protocol, "SCMP_CMP_EQ", 0))
                for family in (AF_INET, AF_INET6)
                for protocol in INTERNET
            ),
            *(_when("personality", (0, value, "SCMP_CMP_EQ", 0)) for value in PERSONALITIES),
        ],
    }


def _socket_options() -> Iterator[dict[str, Any]]:
    """Allow to set the options of each level but those in ``OPTIONS_REFUSED``, and to read all but ``COOKIES``.

    Pretend to set those in ``OPTIONS_IGNORED``.
    """
    for level, refused in OPTIONS_REFUSED.items():
        at_level = (1, level, "SCMP_CMP_EQ", 0)
        ignored = OPTIONS_IGNORED.get(level, frozenset())
        for option in sorted(ignored):
            yield _refused("setsockopt", SUCCESS, at_level, (2, option, "SCMP_CMP_EQ", 0))
        for condition in _unless(2, refused | ignored):
            yield _when("setsockopt", at_level, condition)
    for condition in _unless(1, frozenset(OPTIONS_REFUSED), 0, 1024):
        yield _when("setsockopt", condition)
    for option in sorted(COOKIES):
        yield _refused(
            "getsockopt", errno.ENOPROTOOPT, (1, SOL_SOCKET, "SCMP_CMP_EQ", 0), (2, option, "SCMP_CMP_EQ", 0)
        )
    for condition in _unless(2, COOKIES):
        yield _when("getsockopt", (1, SOL_SOCKET, "SCMP_CMP_EQ", 0), condition)
    for condition in _unless(1, frozenset((SOL_SOCKET,)), 0, 1024):
        yield _when("getsockopt", condition)


def _sending() -> Iterator[dict[str, Any]]:
    """Allow each call that sends, unless its flags keep the data back in memory that no control group counts."""
    for name, flags in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        yield _when(name, (flags, MSG_KEEPS_BACK, "SCMP_CMP_MASKED_EQ", 0))
    # Pages that these read of devices and tables belong to no group while they wait in a pipe or a socket. Programs
    # that get EINVAL read and write instead.
    for name in ("splice", "sendfile"):
        yield _refused(name, errno.EINVAL)


def _syncing() -> Iterator[dict[str, Any]]:
    """Answer calls that wait for a disk with success, and do nothing: no sandbox outlives a crash of its machine."""
    for name in SYNCS:
        yield _refused(name, SUCCESS)
    yield _refused("msync", SUCCESS, (2, MS_SYNC, "SCMP_CMP_MASKED_EQ", MS_SYNC))
    yield _when("msync", (2, MS_SYNC, "SCMP_CMP_MASKED_EQ", 0))
    for command in FILE_FLAGS:
        yield _refused("ioctl", errno.ENOTTY, (1, C_INT, "SCMP_CMP_MASKED_EQ", command))
    for condition in _unless(1, FILE_FLAGS, 0, 1 << 32):
        yield _when("ioctl", condition)


def _opening(*, own_disk: bool) -> Iterator[dict[str, Any]]:
    """Allow to open files; unless they lie on a disk of their own, not so that each write waits for the disk."""
    if own_disk:
        for name in ("open", "openat", "openat2"):
            yield _when(name)
        return
    for name, flags in (("open", 1), ("openat", 2)):
        yield _refused(name, errno.EINVAL, (flags, O_DSYNC, "SCMP_CMP_MASKED_EQ", O_DSYNC))
        yield _when(name, (flags, O_DSYNC, "SCMP_CMP_MASKED_EQ", 0))
    # Its flags lie in memory, out of reach of a filter. Programs that get ENOSYS use openat.
    yield _refused("openat2", errno.ENOSYS)


def _memory_of_files() -> Iterator[dict[str, Any]]:
    """Calls on pages of files, without those that evict pages or tell which are in memory."""
    for name in ("mincore", "cachestat", "process_madvise"):
        yield _refused(name, errno.ENOSYS)
    yield _refused("fadvise64", 0, (3, C_INT, "SCMP_CMP_MASKED_EQ", DONTNEED))
    yield from (_when("fadvise64", condition) for condition in _unless(3, frozenset((DONTNEED,)), 0, 8))
    for advice in sorted(EVICTIONS):
        yield _refused("madvise", errno.EINVAL, (2, C_INT, "SCMP_CMP_MASKED_EQ", advice))
    yield from (_when("madvise", condition) for condition in _unless(2, EVICTIONS))
    for name, refused in (("preadv2", RWF_REFUSED), ("pwritev2", (*RWF_REFUSED, *RWF_SYNCS))):
        yield _when(name, (5, C_INT & ~RWF_PLAIN | sum(RWF_SYNCS), "SCMP_CMP_MASKED_EQ", 0))
        for flag in refused:
            yield _refused(name, errno.EOPNOTSUPP, (5, flag, "SCMP_CMP_MASKED_EQ", flag))


def _unless(index: int, values: frozenset[int], first: int = 0, count: int = 128) -> Iterator[Condition]:
    """One of them holds where the argument, an int, is among ``count`` from ``first`` on and none of ``values``.

    Not one rule that forbids: libseccomp forgets it where another allows the call as a whole.
    """
    if not any(first <= value < first + count for value in values):
        yield index, C_INT & -count, "SCMP_CMP_MASKED_EQ", first
    elif count > 1:
        yield from _unless(index, values, first, count // 2)
        yield from _unless(index, values, first + count // 2, count // 2)


def _when(name: str, *conditions: Condition) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": _arguments(conditions)}


def _refused(name: str, error: int, *conditions: Condition) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": error, "args": _arguments(conditions)}


def _arguments(conditions: tuple[Condition, ...]) -> list[dict[str, Any]]:
    return [
        {"index": index, "value": value, "op": op, "valueTwo": value_two} for index, value, op, value_two in conditions
    ]
