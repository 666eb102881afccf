"""Signal from one sandbox to another by file locks, watches and pages; runs inside, with nothing but Python.

covert.py hold                   lock all that can be opened, until /tmp/release is there
covert.py observe                print what each lock on it says
covert.py watch                  print what inotify reports of it, until /tmp/release is there
covert.py send HEX               write bits by locks on all that can be opened, until /tmp/release is there
covert.py receive BYTES          print the bits that the locks on each of it say
covert.py pages FILE             print how calls that evict or count pages end
"""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterator

READY, RELEASE, SHARED = "/tmp/ready", "/tmp/release", "/shared"
TREES = (
    "/.farm",
    "/.farm-run",
    "/dev",
    "/etc",
    "/sys",
    "/proc/sys",
    "/usr/local/bin",
    "/usr/lib/ssl",
    "/var",
)
FEW = ("/usr/lib", "/usr/bin", "/proc")
FEW_FILES, MOST_FILES = 100, 400
FLOCK = "hhqqi4x"
F_OFD_GETLK, F_OFD_SETLK = 36, 37
F_SET_RW_HINT, F_GET_RW_HINT = 1036, 1035
LANDLOCK_CREATE_RULESET, PIDFD_OPEN, MINCORE, CACHESTAT, MADVISE, PROCESS_MADVISE = 444, 434, 27, 451, 28, 440
MADV_COLD, MADV_PAGEOUT = 20, 21
IN_SEEN = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20

libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    """A system call; its result, or below 0 the error."""
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    return result if result >= 0 else -ctypes.get_errno()


def named() -> Iterator[str]:
    """Paths of all mounts, of the trees that sandboxes might share, and some files of the image."""
    if os.path.isdir(SHARED):  # what two plain containers share is known
        yield from below(SHARED, MOST_FILES)
        return
    with open("/proc/self/mountinfo") as mounts:
        yield from sorted({line.split()[4] for line in mounts})
    yield from (f"/proc/self/ns/{name}" for name in sorted(os.listdir("/proc/self/ns")))
    for trees, most in ((TREES, MOST_FILES), (FEW, FEW_FILES)):
        for tree in trees:
            yield from below(tree, most)


def below(tree: str, most: int) -> Iterator[str]:
    count = 0
    for place, directories, files in os.walk(tree):
        directories[:] = sorted(name for name in directories if not (place == "/proc" and name != "tty"))
        for name in [*directories, *sorted(files)]:
            count += 1
            if count > most:
                return
            yield os.path.join(place, name)


def opened() -> Iterator[tuple[str, int]]:
    for path in dict.fromkeys(named()):
        # A program that is open for writing does not start.
        for mode in (os.O_RDONLY,) if path.startswith("/usr/") else (os.O_RDWR, os.O_RDONLY):
            with contextlib.suppress(OSError):
                if stat.S_ISFIFO(os.stat(path).st_mode):
                    break
                yield path, os.open(path, mode | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
                break
    yield from unnamed()


def unnamed() -> Iterator[tuple[str, int]]:
    """Descriptors without a path, of every kind that may be had."""
    yield "epoll", libc.epoll_create1(0)
    yield "eventfd", libc.eventfd(0, 0)
    yield "timerfd", libc.timerfd_create(0, 0)
    yield "signalfd", libc.signalfd(-1, ctypes.create_string_buffer(128), 0)
    yield "inotify", libc.inotify_init1(0)
    yield "memfd", os.memfd_create("covert")
    yield "pipe", os.pipe()[1]
    yield "socket", socket.socket(socket.AF_UNIX).detach()
    for name, fd in (
        ("pidfd", call(PIDFD_OPEN, os.getpid(), 0)),
        ("landlock", call(LANDLOCK_CREATE_RULESET, struct.pack("Q", 1), 8, 0)),
    ):
        if fd >= 0:
            yield name, fd


def lock(fd: int, command: int, kind: int, start: int = 0, length: int = 0) -> object:
    try:
        answer = fcntl.fcntl(fd, command, struct.pack(FLOCK, kind, os.SEEK_SET, start, length, 0))
    except OSError as error:
        return error.errno
    return struct.unpack(FLOCK, answer)


def flock(fd: int, kind: int) -> int:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno or -1
    return 0


def hint(fd: int, command: int, value: int = 0) -> object:
    try:
        return fcntl.fcntl(fd, command, struct.pack("Q", value)).hex()
    except OSError as error:
        return error.errno


def until_released() -> None:
    open(READY, "w").close()
    while not os.path.exists(RELEASE):
        time.sleep(0.01)


def hold() -> None:
    for name, fd in opened():
        flock(fd, fcntl.LOCK_EX)
        for command in (fcntl.F_SETLK, F_OFD_SETLK):
            if lock(fd, command, fcntl.F_WRLCK, 0, 8) in (9, 11):
                lock(fd, command, fcntl.F_RDLCK, 0, 8)
        hint(fd, F_SET_RW_HINT, 3)
        with contextlib.suppress(OSError):
            if not name.startswith("/proc"):  # a mode in /proc is the machine's
                os.fchmod(fd, 0o757)
    until_released()


def observe() -> None:
    print(json.dumps({name: said_by(fd) for name, fd in opened()}))


def said_by(fd: int) -> list[object]:
    said: list[object] = []
    for get, put in ((fcntl.F_GETLK, fcntl.F_SETLK), (F_OFD_GETLK, F_OFD_SETLK)):
        for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
            said += [lock(fd, get, kind), lock(fd, get, kind, 0, 8), lock(fd, put, kind), lock(fd, put, fcntl.F_UNLCK)]
    for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        said += [flock(fd, kind), flock(fd, fcntl.LOCK_UN)]
    return [*said, hint(fd, F_GET_RW_HINT), os.fstat(fd).st_mode, os.fstat(fd).st_uid]


def watch() -> None:
    watcher = libc.inotify_init1(os.O_NONBLOCK)
    paths = []
    for name, fd in opened():
        os.close(fd)
        if name.startswith("/"):
            paths.append(name)
    anonymous = [libc.eventfd(0, 0), libc.epoll_create1(0)]
    watches = {}
    for path in [*paths, *(f"/proc/self/fd/{fd}" for fd in anonymous)]:
        number = libc.inotify_add_watch(watcher, path.encode(), IN_SEEN)
        if number >= 0:
            watches[number] = path
    until_released()
    events = set()
    with contextlib.suppress(BlockingIOError):
        while data := os.read(watcher, 1 << 16):
            while data:
                number, mask, _, length = struct.unpack_from("iIII", data)
                events.add((watches.get(number, "?"), mask))
                data = data[16 + length :]
    print(json.dumps([len(watches), sorted(events)]))


def bits(content: bytes) -> list[int]:
    return [octet >> bit & 1 for octet in content for bit in range(8)]


def packed(values: list[int]) -> str:
    whole = values[: len(values) // 8 * 8]
    return bytes(sum(whole[at + bit] << bit for bit in range(8)) for at in range(0, len(whole), 8)).hex()


def send(secret: str) -> None:
    """By a lock on each byte, and by one lock of each file."""
    message = bits(bytes.fromhex(secret))
    for count, (_, fd) in enumerate(opened()):
        for at, bit in enumerate(message):
            if bit:
                lock(fd, fcntl.F_SETLK, fcntl.F_RDLCK, at, 1)
        if message[count % len(message)]:
            flock(fd, fcntl.LOCK_SH)
    until_released()


def receive(length: int) -> None:
    found = {}
    once = []
    for name, fd in opened():
        answers = [lock(fd, fcntl.F_GETLK, fcntl.F_WRLCK, at, 1) for at in range(8 * length)]
        found[name] = packed([int(isinstance(a, tuple) and a[0] != fcntl.F_UNLCK) for a in answers])
        once.append(int(flock(fd, fcntl.LOCK_EX) != 0))
        flock(fd, fcntl.LOCK_UN)
    print(json.dumps([packed(once), found]))


def pages(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.pread(fd, 4096, 0)
    libc.mmap.restype = ctypes.c_void_p
    address = ctypes.c_void_p(libc.mmap(None, ctypes.c_size_t(4096), 1, 2, fd, ctypes.c_long(0)))
    ctypes.string_at(address, 1)
    vector, span, stats = ctypes.create_string_buffer(16), struct.pack("QQ", 0, 4096), ctypes.create_string_buffer(64)
    said = {
        "mincore": call(MINCORE, address, ctypes.c_size_t(4096), vector),
        "cachestat": call(CACHESTAT, fd, span, stats, 0),
        "cold": call(MADVISE, address, ctypes.c_size_t(4096), MADV_COLD),
        "pageout": call(MADVISE, address, ctypes.c_size_t(4096), MADV_PAGEOUT),
        "random": call(MADVISE, address, ctypes.c_size_t(4096), 1),
        "process_madvise": call(PROCESS_MADVISE, -1, None, ctypes.c_size_t(0), MADV_COLD, 0),
    }
    for name, flags in (("nowait", os.RWF_NOWAIT), ("plain", 0), ("dontcache", 0x80), ("hipri", os.RWF_HIPRI)):
        try:
            said[name] = os.preadv(fd, [bytearray(16)], 0, flags)
        except OSError as error:
            said[name] = -(error.errno or 0)
    libc.munmap(address, ctypes.c_size_t(4096))
    said["dontneed"] = libc.posix_fadvise(fd, ctypes.c_long(0), ctypes.c_long(0), os.POSIX_FADV_DONTNEED)
    print(json.dumps(said))


if __name__ == "__main__":
    signal.alarm(300)
    mode, *arguments = sys.argv[1:]
    if mode == "send":
        send(*arguments)
    elif mode == "receive":
        receive(int(arguments[0]))
    elif mode == "pages":
        pages(*arguments)
    else:
        {"hold": hold, "observe": observe, "watch": watch}[mode]()
