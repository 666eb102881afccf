"""Who holds a sandbox, and whether that holder lives.

An owner is a directory ``<state_dir>/owners/<name>``: a file ``lock``, which the owner keeps locked as long as it
lives, and one directory per sandbox for its socket. The kernel lets the lock go when the process ends, however it ends,
and at a reboot; so a free lock is proof of death, and nobody has to write down that it is alive.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable, SpecError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")


class Owner:
    """A held claim. ``state_dir`` is absolute with no symlink in it."""

    def __init__(self, state_dir: Path, name: str, lock: int) -> None:
        self.state_dir = state_dir
        self.name = name
        self._lock: int | None = lock

    @classmethod
    def claim(cls, state_dir: Path, name: str | None = None) -> "Owner":
        """Become ``name`` (None: a fresh one). Raises SpecError, or RuntimeUnavailable where another process is it."""
        state_dir = state_dir.resolve()
        name = name or secrets.token_hex(4)
        if not NAME.fullmatch(name):
            raise SpecError(f"owner {name!r}: use up to 32 letters, digits, '_', '.' and '-'")
        try:
            lock = _lock(_home(state_dir, name), create=True)
        except OSError as error:
            raise RuntimeUnavailable(
                f"{state_dir} cannot hold the farm's state: {error.strerror}; name a writable directory as state_dir"
            ) from None
        if lock is None:
            raise RuntimeUnavailable(f"owner {name!r} lives in another process; end it, or choose another name")
        return cls(state_dir, name, lock)

    def sandbox_dir(self, sandbox_id: str) -> Path:
        """Where the socket of a sandbox lies."""
        return _home(self.state_dir, self.name) / sandbox_id

    def release(self) -> None:
        """Give the claim up and remove its directory. Idempotent."""
        if self._lock is not None:
            _sweep(_home(self.state_dir, self.name))
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def estate(state_dir: Path, name: str) -> Iterator[bool]:
    """Whether ``name`` is dead; if so it cannot come to life within the block, and its directory goes at the end.

    A block that raises leaves the directory for another time.
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
        yield True
        _sweep(home)
    finally:
        os.close(lock)


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
