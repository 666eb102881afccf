"""Who holds a sandbox, and whether that holder lives.

An owner is a directory ``<state_dir>/owners/<name>``: a file ``lock``, which the owner keeps locked as long as it
lives, and for each sandbox its record and a directory for its socket. The kernel lets the lock go when the process
ends, however it ends, and at a reboot; so a free lock is proof of death, and nobody has to write down that it is alive.

An owner may come back: another process that claims the same name finds what the dead one left. For so long as its file
``grace`` says it is not buried, counted from when a reaper first found it dead (file ``died``) by the clock that runs
from boot, which nobody sets. After a reboot nothing of it can live, and there is no grace.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable, SpecError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
GRACE, DIED = "grace", "died"
LOOKS, LOOK_S = 10, 0.01


class Owner:
    """A held claim. ``state_dir`` is absolute with no symlink in it.

    ``inherited``: a dead process of this name has left something, which ``release`` spares until it is taken over.
    """

    def __init__(self, state_dir: Path, name: str, lock: int) -> None:
        self.state_dir = state_dir
        self.name = name
        self._lock: int | None = lock
        self.inherited = len(os.listdir(_home(state_dir, name))) > 1

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
            lock = _lock_patiently(home)
        except OSError as error:
            raise RuntimeUnavailable(
                f"{state_dir} cannot hold the farm's state: {error.strerror}; name a writable directory as state_dir"
            ) from None
        if lock is None:
            raise RuntimeUnavailable(f"owner {name!r} lives in another process; end it, or choose another name")
        owner = cls(state_dir, name, lock)
        (home / DIED).unlink(missing_ok=True)
        _write(home / GRACE, json.dumps({"grace_s": grace_s, "boot": _boot_id()}))
        return owner

    def sandbox_dir(self, sandbox_id: str) -> Path:
        """Where the socket of a sandbox lies."""
        return _home(self.state_dir, self.name) / sandbox_id

    def keep_record(self, sandbox_id: str, text: str) -> None:
        """What must be known of a sandbox to take it over after this process; one line, and the last one counts.

        Writing a file anew would wait for the disk, and a sandbox is handed out of a pool in less time.
        """
        with self.sandbox_dir(f"{sandbox_id}.record").open("a") as file:
            file.write(text + "\n")

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
def estate(state_dir: Path, name: str, *, now_s: float | None = None) -> Iterator[bool]:
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


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _write(path: Path, text: str) -> None:
    """In one step, so that a death leaves the old or the new."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


def _lock_patiently(home: Path) -> int | None:
    """A reaper holds a dead owner's lock for a moment, while it looks whether its grace is over."""
    for _ in range(LOOKS):
        lock = _lock(home, create=True)
        if lock is not None:
            return lock
        time.sleep(LOOK_S)
    return None


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
            remove_directory(Path(entry.path))
        else:
            os.unlink(entry.path)
    os.unlink(home / "lock")
    with contextlib.suppress(OSError):  # a newcomer of the same name has just put its lock there
        home.rmdir()
