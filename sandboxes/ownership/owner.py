"""Who holds a sandbox, and whether that holder lives.

An owner is a directory ``<state_dir>/owners/<name>``: a file ``lock``, which the owner keeps locked as long as it
lives, and for each sandbox its record and a directory for its socket. The kernel lets the lock go when the process
ends, however it ends, and at a reboot; so a free lock is proof of death, and nobody has to write down that it is alive.

An owner may come back: another process that claims the same name finds what the dead one left. For so long as its file
``grace`` says it is not buried, counted from when a reaper first found it dead (file ``died``) by the clock that runs
from boot, which nobody sets. After a reboot nothing of it can live, and there is no grace.

A path means different directories to processes with different mounts. So a state directory has a seal, a word that no
other holds, and all that an owner makes elsewhere tells the seal beside the path. Where the seal cannot be found the
kernel's list of locks is asked, which knows no mounts (``is_dead_by_trace``).
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

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
SEALED = re.compile(r"[0-9a-f]{32}")
TRACE = re.compile(r"[0-9a-f-]{36} [0-9]{1,9} [0-9]{1,10} [0-9a-f:]*")
"""The boot, the seconds of grace, the namespace of process ids, the lock."""
GRACE, DIED, SEAL, MISSED = "grace", "died", ".seal", ".missed"
BURIED = b"buried"
"""In a lock that is held by whoever buries its owner."""
BURIAL_S = 60.0
LOOKS, LOOK_S = 10, 0.01
LOCKS = Path("/proc/locks")
READINGS = 3
ALL_PIDS = 0xEFFFFFFC
"""The number of the first namespace of process ids, in which all others are seen (PROC_PID_INIT_INO of Linux)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An owner, for whoever finds what it made. ``seal``: of its state directory."""

    state_dir: Path
    name: str
    seal: str

    @classmethod
    def here(cls, state_dir: Path, name: str) -> "Identity":
        return cls(state_dir, name, seal_of(state_dir))

    @property
    def is_seen(self) -> bool:
        """Whether its state directory is the one that lies at this path here."""
        return bool(self.seal) and seal_of(self.state_dir) == self.seal


def group_of(owner: Identity) -> str:
    """Return the name of the control group of an owner's sandboxes.

    The seal tells owners of one name apart, in two state directories or in two directories that had the same path.
    """
    place = os.fsencode(owner.state_dir) + b"\0" + owner.seal.encode()
    return f"farm-{owner.name}-{hashlib.sha256(place).hexdigest()[:8]}"


class Owner:
    """A held claim. ``state_dir`` is absolute with no symlink in it.

    ``inherited``: a dead process of this name has left something, which ``release`` spares until it is taken over.
    """

    def __init__(self, identity: Identity, lock: int, grace_s: float) -> None:
        self.identity = identity
        self.state_dir = identity.state_dir
        self.name = identity.name
        self.trace = f"{_boot_id()} {math.ceil(grace_s)} {_pid_namespace()} {_listed(lock)}"
        """For ``is_dead_by_trace``; as ``TRACE`` has it."""
        self._lock: int | None = lock
        self.inherited = len(os.listdir(_home(self.state_dir, self.name))) > 1

    @classmethod
    def claim(cls, state_dir: Path, name: str | None = None, *, grace_s: float = 0.0) -> "Owner":
        """Become ``name`` (None: a fresh one), who may come back within ``grace_s`` of its death.

        Raises SpecError, or RuntimeUnavailable where another process is it.
        """
        state_dir = state_dir.resolve()
        name = name or secrets.token_hex(4)
        if not NAME.fullmatch(name):
            raise SpecError(f"owner {name!r}: use up to 32 letters, digits, '_', '.' and '-'")
        home = _home(state_dir, name)
        try:
            seal = _sealed(state_dir)
            lock = _lock_patiently(home)
        except OSError as error:
            raise RuntimeUnavailable(
                f"{state_dir} cannot hold the farm's state: {error.strerror}; name a writable directory as state_dir"
            ) from None
        if lock is None and _is_buried(home):
            raise RuntimeUnavailable(f"a reaper has been removing what {name!r} left for {BURIAL_S:g} s; try again")
        if lock is None:
            raise RuntimeUnavailable(f"owner {name!r} lives in another process; end it, or choose another name")
        owner = cls(Identity(state_dir, name, seal), lock, grace_s)
        (home / DIED).unlink(missing_ok=True)
        _write(home / GRACE, json.dumps({"grace_s": grace_s, "boot": _boot_id(), "seal": seal}))
        return owner

    def sandbox_dir(self, sandbox_id: str) -> Path:
        """Where the socket of a sandbox lies."""
        return _home(self.state_dir, self.name) / sandbox_id

    def keep_record(self, sandbox_id: str, text: str) -> None:
        """What must be known of a sandbox to take it over after this process; one line, and the last one counts.

        Writing a file anew would wait for the disk, and a sandbox is handed out of a pool in less time.
        """
        write_small_file(self.sandbox_dir(f"{sandbox_id}.record"), text + "\n", os.O_CREAT | os.O_APPEND)

    def record(self, sandbox_id: str) -> str:
        """Raises FileNotFoundError."""
        return self.sandbox_dir(f"{sandbox_id}.record").read_text().rstrip("\n").rpartition("\n")[2]

    def forget_record(self, sandbox_id: str) -> None:
        self.sandbox_dir(f"{sandbox_id}.record").unlink(missing_ok=True)

    def take_over(self) -> None:
        """What was left is this one's, and goes with it."""
        self.inherited = False

    def release(self) -> None:
        """Give the claim up and remove its directory. Idempotent."""
        if self._lock is not None:
            if not self.inherited:
                _sweep(_home(self.state_dir, self.name))
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def bury_if_dead(state_dir: Path, name: str, *, now_s: float | None = None) -> Iterator[bool]:
    """Whether ``name`` is dead for good; if so it cannot come to life within the block, and its directory goes at the
    end.

    A block that raises leaves the directory for another time. ``now_s``: seconds since boot.
    """
    home = _home(state_dir, name)
    if not NAME.fullmatch(name):
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
        buried = _grace_is_over(home, time.clock_gettime(time.CLOCK_BOOTTIME) if now_s is None else now_s)
        if buried:
            os.pwrite(lock, BURIED, 0)
        yield buried
        if buried:
            _sweep(home)
    finally:
        os.close(lock)


def _grace_is_over(home: Path, now_s: float) -> bool:
    """Of a dead owner; the first to ask notes that it is dead."""
    try:
        grace = json.loads((home / GRACE).read_text())
        if grace["boot"] != _boot_id() or not grace["grace_s"]:
            return True
        with contextlib.suppress(FileNotFoundError):
            return now_s - float((home / DIED).read_text()) >= float(grace["grace_s"])
        _write(home / DIED, str(now_s))
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # it died before it had written that
        return True
    return False


def seal_of(state_dir: Path) -> str:
    """Empty where there is none to be seen."""
    try:
        return (state_dir / "owners" / SEAL).read_text()
    except OSError:
        return ""


def is_dead_by_trace(owner: Identity, traces: Iterable[str], state_dir: Path, *, now_s: float | None = None) -> bool:
    """As ``estate``, of an owner whose state directory cannot be seen from here, or was deleted. ``traces``: what it
    had when it made what is left. False where nobody can tell.

    Since when it is missed is noted in ``state_dir``, the asker's own.
    """
    found = [trace.split(" ") for trace in traces]
    notes = state_dir / "owners" / MISSED / f"{owner.name}-{owner.seal}"
    # Files made where a directory was deleted often get the numbers of those that went.
    others = _locks_of_others(owner.seal, state_dir)
    if any(_may_live(boot, pids, lock, others) for boot, _, pids, lock in found):
        remove_directory(notes)
        return False
    notes.mkdir(parents=True, exist_ok=True)
    _write(notes / GRACE, json.dumps({"grace_s": max(int(grace_s) for _, grace_s, _, _ in found), "boot": _boot_id()}))
    over = _grace_is_over(notes, time.clock_gettime(time.CLOCK_BOOTTIME) if now_s is None else now_s)
    if over:
        remove_directory(notes)
    return over


def _may_live(boot: str, pids: str, lock: str, others: Collection[str]) -> bool:
    """Nobody lives who was there before the last boot. In this one the lock is held or not, wherever its file may lie;
    but the kernel lists only the locks of processes that the reader can see. ``others``: files that are not its own."""
    if boot != _boot_id():
        return False
    sees_it = _pid_namespace() in (int(pids), ALL_PIDS)
    return not (lock and sees_it) or (lock not in others and lock in _locks())


def owner_names(state_dir: Path) -> list[str]:
    """The owners, living and dead, that have left a trace in ``state_dir``."""
    try:
        return sorted(entry.name for entry in os.scandir(state_dir / "owners") if NAME.fullmatch(entry.name))
    except FileNotFoundError:
        return []


def remove_directory(path: Path) -> None:
    """A sandbox's directory, which was closed to writing when the sandbox had answered. None there is no error."""
    with contextlib.suppress(FileNotFoundError):
        path.chmod(0o700)
        shutil.rmtree(path)


def _home(state_dir: Path, name: str) -> Path:
    return state_dir / "owners" / name


def _sealed(state_dir: Path) -> str:
    """Its seal, made by the first owner to come."""
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


def _listed(lock: int) -> str:
    """What the kernel's list calls it; empty where it does not list it, or calls it by another number than stat(2)."""
    name = _number(os.fstat(lock))
    with contextlib.suppress(OSError):
        return name if name in _locks() else ""
    return ""


def _number(file: os.stat_result) -> str:
    return f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"


def _locks_of_others(seal: str, state_dir: Path) -> set[str]:
    """Of the owners there that were claimed under another seal, be they held or not."""
    found = set()
    for name in owner_names(state_dir):
        home = _home(state_dir, name)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it has gone just now, or cannot be told
            if json.loads((home / GRACE).read_text())["seal"] != seal:
                found.add(_number(os.stat(home / "lock")))
    return found


def _locks() -> set[str]:
    """Devices and inodes of all locks held. The list comes a page at a time and changes meanwhile, so that one reading
    may miss one."""
    lines = [line for _ in range(READINGS) for line in LOCKS.read_text().splitlines()]
    return {fields[5] for fields in map(str.split, lines) if len(fields) > 5}


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _write(path: Path, text: str) -> None:
    """In one step, so that a death leaves the old or the new."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


def _lock_patiently(home: Path) -> int | None:
    """A reaper holds a dead owner's lock for a moment, while it looks whether its grace is over, and for as long as it
    takes to remove what is left where it is."""
    looks, until = 0, time.monotonic() + BURIAL_S
    while (lock := _lock(home, create=True)) is None:
        looks += 1
        if time.monotonic() > until or (looks >= LOOKS and not _is_buried(home)):
            return None
        time.sleep(LOOK_S)
    os.truncate(lock, 0)
    return lock


def _is_buried(home: Path) -> bool:
    with contextlib.suppress(OSError):
        return (home / "lock").read_bytes() == BURIED
    return False


def _lock(home: Path, *, create: bool) -> int | None:
    """The locked file of an owner, or None where another holds it.

    Between opening and locking a file a reaper may have unlinked it: then what is locked is not what others see, and
    it is tried again.
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
    """Remove an owner's directory; the lock last, so that it guards the rest to the end."""
    for entry in os.scandir(home):
        if entry.name == "lock":
            continue
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)
            remove_tree(Path(entry.path))  # a sandbox's files may be deeper than Python descends
        else:
            os.unlink(entry.path)
    os.unlink(home / "lock")
    with contextlib.suppress(OSError):  # a newcomer of the same name has just put its lock there
        home.rmdir()
