"""Claim the ownership of sandboxes, and find out if an owner is dead.

An owner is a directory ``<state_dir>/owners/<name>``: a file ``lock``, which the owner keeps locked while it lives, and
for each sandbox a record and a directory for its socket. The kernel releases the lock when the process ends, however it
ends, and at a reboot. So a free lock proves death, and no heartbeat is needed.

An owner can return: another process that claims the same name adopts what the dead one left. The file ``grace`` has the
time for which a dead owner is kept. It runs from the moment when a reaper first noticed the death (file ``died``), by
CLOCK_BOOTTIME, which is never set. After a reboot no sandbox is alive, and there is no grace.

A path means different directories to processes in different mount namespaces. So a state directory has a seal, a random
word, and everything that an owner makes elsewhere carries the seal beside the path. If the seal cannot be found, the
kernel's list of locks decides, which does not depend on mounts (``is_dead_by_trace``).
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable, SpecError
from sandboxes.linux.remove_tree import remove_tree
from sandboxes.linux.small_files import write_small_file

OWNER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
SEAL_PATTERN = re.compile(r"[0-9a-f]{32}")
TRACE_PATTERN = re.compile(r"[0-9a-f-]{36} [0-9]{1,9} [0-9]{1,10} [0-9a-f:]*")
"""Boot id, grace in seconds, PID namespace, lock as in /proc/locks."""
GRACE, DIED, SEAL, MISSED = "grace", "died", ".seal", ".missed"
BEING_REMOVED = b"buried"
"""Content of a lock file while a reaper removes its owner."""
REMOVAL_TIMEOUT_S = 60.0
LOCK_TRIES, LOCK_RETRY_S = 10, 0.01
PROC_LOCKS = Path("/proc/locks")
LOCK_READINGS = 3
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the initial PID namespace, in which all processes are visible (PROC_PID_INIT_INO of Linux)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of an owner, as its containers carry it. ``seal``: of its state directory."""

    state_dir: Path
    name: str
    seal: str

    @classmethod
    def here(cls, state_dir: Path, name: str) -> "Identity":
        return cls(state_dir, name, seal_of(state_dir))

    @property
    def is_state_dir_visible(self) -> bool:
        """Return True if the directory at this path is the owner's state directory, not another of the same path."""
        return bool(self.seal) and seal_of(self.state_dir) == self.seal


def group_of(owner: Identity) -> str:
    """Return the name of the cgroup of an owner's sandboxes.

    The seal distinguishes owners of the same name in two state directories, or in two directories of the same path.
    """
    place = os.fsencode(owner.state_dir) + b"\0" + owner.seal.encode()
    return f"farm-{owner.name}-{hashlib.sha256(place).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class _Trace:
    """Proof of life without access to the lock. ``lock``: as in /proc/locks, empty if the kernel does not list it."""

    boot_id: str
    grace_s: int
    pid_namespace: int
    lock: str

    @classmethod
    def parse(cls, text: str) -> "_Trace":
        boot_id, grace_s, pid_namespace, lock = text.split(" ")
        return cls(boot_id, int(grace_s), int(pid_namespace), lock)


class Owner:
    """A claimed owner. ``state_dir`` is absolute and without symlinks.

    ``inherited``: a dead process of this name has left sandboxes, which ``release`` keeps until ``take_over``.
    """

    def __init__(self, identity: Identity, lock: int, grace_s: float) -> None:
        self.identity = identity
        self.state_dir = identity.state_dir
        self.name = identity.name
        self.trace = f"{_boot_id()} {math.ceil(grace_s)} {_pid_namespace()} {_name_in_proc_locks(lock)}"
        """For ``is_dead_by_trace``, in the format of ``TRACE_PATTERN``."""
        self._lock: int | None = lock
        self.inherited = len(os.listdir(_home(self.state_dir, self.name))) > 1

    @classmethod
    def claim(cls, state_dir: Path, name: str | None = None, *, grace_s: float = 0.0) -> "Owner":
        """Claim ``name`` (None: a new one). After this process's death its sandboxes are kept for ``grace_s``.

        Raises SpecError for an invalid name, RuntimeUnavailable if another process holds it.
        """
        state_dir = state_dir.resolve()
        name = name or secrets.token_hex(4)
        if not OWNER_NAME.fullmatch(name):
            raise SpecError(f"owner {name!r} is not a valid name; use up to 32 letters, digits, '_', '.' and '-'")
        home = _home(state_dir, name)
        try:
            seal = _ensure_seal(state_dir)
            lock = _lock_with_retry(home)
        except OSError as error:
            raise RuntimeUnavailable(
                f"state_dir {state_dir} is not usable: {error.strerror}; choose a writable directory"
            ) from None
        if lock is None and _is_being_removed(home):
            raise RuntimeUnavailable(
                f"owner {name!r} is locked: a reaper has removed its sandboxes for {REMOVAL_TIMEOUT_S:g} s; retry later"
            )
        if lock is None:
            raise RuntimeUnavailable(f"owner {name!r} is claimed by another process; end it, or choose another name")
        owner = cls(Identity(state_dir, name, seal), lock, grace_s)
        (home / DIED).unlink(missing_ok=True)
        _write(home / GRACE, json.dumps({"grace_s": grace_s, "boot": _boot_id(), "seal": seal}))
        return owner

    def sandbox_dir(self, sandbox_id: str) -> Path:
        """Return the directory of a sandbox's socket."""
        return _home(self.state_dir, self.name) / sandbox_id

    def keep_record(self, sandbox_id: str, text: str) -> None:
        """Append the record that a successor needs to adopt a sandbox: one line. The last line counts.

        Replacing the file would wait for the disk, longer than it takes to assign a pooled sandbox.
        """
        write_small_file(self.sandbox_dir(f"{sandbox_id}.record"), text + "\n", os.O_CREAT | os.O_APPEND)

    def record(self, sandbox_id: str) -> str:
        """Return the record of a sandbox. Raises FileNotFoundError."""
        return self.sandbox_dir(f"{sandbox_id}.record").read_text().rstrip("\n").rpartition("\n")[2]

    def forget_record(self, sandbox_id: str) -> None:
        self.sandbox_dir(f"{sandbox_id}.record").unlink(missing_ok=True)

    def take_over(self) -> None:
        """Treat what the dead process left as this owner's, so that ``release`` removes it."""
        self.inherited = False

    def release(self) -> None:
        """Give up the claim and remove its directory. Idempotent."""
        if self._lock is not None:
            if not self.inherited:
                _sweep(_home(self.state_dir, self.name))
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def bury_if_dead(state_dir: Path, name: str, *, now_s: float | None = None) -> Iterator[bool]:
    """Yield True if ``name`` is dead and its grace is over. Then it cannot be claimed inside the block.

    Its directory is removed at the end, unless the block raises. ``now_s``: seconds since boot.
    """
    home = _home(state_dir, name)
    if not OWNER_NAME.fullmatch(name):
        yield False
        return
    if not home.is_dir():
        yield True
        return
    lock = _lock(home, create=False)
    if lock is None:
        yield False
        return
    try:
        is_dead = _grace_is_over(home, time.clock_gettime(time.CLOCK_BOOTTIME) if now_s is None else now_s)
        if is_dead:
            os.pwrite(lock, BEING_REMOVED, 0)
        yield is_dead
        if is_dead:
            _sweep(home)
    finally:
        os.close(lock)


def _grace_is_over(home: Path, now_s: float) -> bool:
    """Return True if a dead owner's grace is over. The first call writes down the time of death."""
    try:
        grace = json.loads((home / GRACE).read_text())
        if grace["boot"] != _boot_id() or not grace["grace_s"]:
            return True
        with contextlib.suppress(FileNotFoundError):
            return now_s - float((home / DIED).read_text()) >= float(grace["grace_s"])
        _write(home / DIED, str(now_s))
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # the owner died before it wrote the file
        return True
    return False


def seal_of(state_dir: Path) -> str:
    """Return the seal of a state directory, or "" if it cannot be read."""
    try:
        return (state_dir / "owners" / SEAL).read_text()
    except OSError:
        return ""


def is_dead_by_trace(owner: Identity, traces: Iterable[str], state_dir: Path, *, now_s: float | None = None) -> bool:
    """Return True if an owner is dead and its grace is over, for a state directory that cannot be seen or was deleted.

    ``traces``: from the labels of its containers and images. The grace runs from the first call, whose time is kept in
    ``state_dir``, the caller's own. Returns False in case of doubt.
    """
    found = [_Trace.parse(trace) for trace in traces]
    notes = state_dir / "owners" / MISSED / f"{owner.name}-{owner.seal}"
    # A new file often gets the inode number of a deleted one, so locks of other owners may match.
    others = _locks_of_others(owner.seal, state_dir)
    if any(_may_live(trace, others) for trace in found):
        remove_directory(notes)
        return False
    notes.mkdir(parents=True, exist_ok=True)
    _write(notes / GRACE, json.dumps({"grace_s": max(trace.grace_s for trace in found), "boot": _boot_id()}))
    over = _grace_is_over(notes, time.clock_gettime(time.CLOCK_BOOTTIME) if now_s is None else now_s)
    if over:
        remove_directory(notes)
    return over


def _may_live(trace: _Trace, others: Collection[str]) -> bool:
    """Return False if the owner of ``trace`` is dead: from an earlier boot, or without its lock.

    The kernel lists only locks of processes in the reader's PID namespace. ``others``: locks of other owners.
    """
    if trace.boot_id != _boot_id():
        return False
    is_listed = _pid_namespace() in (trace.pid_namespace, INITIAL_PID_NAMESPACE)
    return not (trace.lock and is_listed) or (trace.lock not in others and trace.lock in _locks())


def owner_names(state_dir: Path) -> list[str]:
    """Return the names of owners, living and dead, that have a directory in ``state_dir``."""
    try:
        return sorted(entry.name for entry in os.scandir(state_dir / "owners") if OWNER_NAME.fullmatch(entry.name))
    except FileNotFoundError:
        return []


def remove_directory(path: Path) -> None:
    """Remove a sandbox's directory, which was made read-only after boot. A missing directory is no error."""
    with contextlib.suppress(FileNotFoundError):
        path.chmod(0o700)
        shutil.rmtree(path)


def _home(state_dir: Path, name: str) -> Path:
    return state_dir / "owners" / name


def _ensure_seal(state_dir: Path) -> str:
    """Return the seal of a state directory. The first owner creates it."""
    owners = state_dir / "owners"
    owners.mkdir(parents=True, exist_ok=True)
    with (owners / SEAL).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        seal = file.read()
        if not seal:
            seal = secrets.token_hex(16)
            file.write(seal)
    return seal


def _name_in_proc_locks(lock: int) -> str:
    """Return the lock's name in /proc/locks, or "" if it is not listed there, or not under the numbers of stat(2)."""
    name = _lock_name(os.fstat(lock))
    with contextlib.suppress(OSError):
        return name if name in _locks() else ""
    return ""


def _lock_name(file: os.stat_result) -> str:
    return f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"


def _locks_of_others(seal: str, state_dir: Path) -> set[str]:
    """Return the locks of owners in ``state_dir`` that have another seal, locked or not."""
    found = set()
    for name in owner_names(state_dir):
        home = _home(state_dir, name)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it was just removed, or is unreadable
            if json.loads((home / GRACE).read_text())["seal"] != seal:
                found.add(_lock_name(os.stat(home / "lock")))
    return found


def _locks() -> set[str]:
    """Return device and inode of all locks that are held.

    The kernel writes the list page by page while it changes, so one reading can miss a lock.
    """
    lines = [line for _ in range(LOCK_READINGS) for line in PROC_LOCKS.read_text().splitlines()]
    return {fields[5] for fields in map(str.split, lines) if len(fields) > 5}


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)


def _lock_with_retry(home: Path) -> int | None:
    """Lock ``home`` for a claim, or return None if its owner lives.

    A reaper holds a dead owner's lock for a moment while it checks the grace, and longer while it removes the rest.
    """
    tries, until = 0, time.monotonic() + REMOVAL_TIMEOUT_S
    while (lock := _lock(home, create=True)) is None:
        tries += 1
        if time.monotonic() > until or (tries >= LOCK_TRIES and not _is_being_removed(home)):
            return None
        time.sleep(LOCK_RETRY_S)
    os.truncate(lock, 0)
    return lock


def _is_being_removed(home: Path) -> bool:
    with contextlib.suppress(OSError):
        return (home / "lock").read_bytes() == BEING_REMOVED
    return False


def _lock(home: Path, *, create: bool) -> int | None:
    """Return the locked file of an owner, or None if another process holds the lock.

    A reaper may unlink the file between its opening and locking. Then the lock would be on a file that no other process
    can see, so it is opened again.
    """
    while True:
        if create:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            if create:
                continue
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(home / "lock").st_ino == os.fstat(lock).st_ino:
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        except FileNotFoundError:
            pass
        os.close(lock)


def _sweep(home: Path) -> None:
    """Remove an owner's directory. The lock goes last, so that it protects the rest to the end."""
    for entry in os.scandir(home):
        if entry.name == "lock":
            continue
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)
            remove_tree(Path(entry.path))  # a sandbox's tree may be too deep for Python's recursion
        else:
            os.unlink(entry.path)
    os.unlink(home / "lock")
    with contextlib.suppress(OSError):  # a new owner of the same name has just created its lock there
        home.rmdir()
