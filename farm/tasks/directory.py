"""The files of a task directory, read with bounds on their number, size and depth."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from farm.tasks.bundle import BundleFile
from farm.tasks.errors import TaskError
from farm.tasks.files import MANIFEST

MAX_TASK_BYTES = 256 * 1024 * 1024
MAX_TASK_FILES = 50_000
DEEPEST = 100
_TOPS = (MANIFEST, "instruction.md", "environment", "tests", "solution", "steps")
_PASSED_OVER = frozenset({"__pycache__", ".DS_Store", ".git"})


def read_directory(path: Path, *, room: int = MAX_TASK_BYTES) -> dict[str, BundleFile]:
    """The files that define a task, ``room`` bytes of them at most.

    A symlink is refused, because it may name a file anywhere. Raises TaskError.
    """
    files: dict[str, BundleFile] = {}
    left = room
    try:
        found = sorted(_found(path))
    except OSError as error:
        place = Path(error.filename).relative_to(path).as_posix()
        raise TaskError(path, f"{place[:100]!a} cannot be read ({error.strerror})", "make it readable") from None
    for file in found:
        name = file.relative_to(path).as_posix()
        if not _is_unicode(name):
            raise TaskError(path, f"{name[:100]!a} is no name in UTF-8", "rename it")
        if file.is_symlink():
            raise TaskError(file, "a symlink", "put the file itself there")
        if not file.is_file():
            raise TaskError(file, "not a regular file", "remove it")
        try:
            with file.open("rb") as opened:
                content = opened.read(left + 1)
                executable = os.access(file, os.X_OK) and bool(os.fstat(opened.fileno()).st_mode & 0o100)
        except OSError as error:
            raise TaskError(file, f"cannot be read ({error.strerror})", "make it readable") from None
        left -= len(content)
        if left < 0:
            raise TaskError(path, f"holds more than {room >> 20} MiB", "fetch large files in the build")
        files[name] = BundleFile(content, executable)
    return files


def digest_of(files: Mapping[str, BundleFile]) -> str:
    """SHA-256 over names, modes and contents; what the digest of a task, and of its environment, is."""
    total = hashlib.sha256()
    for name in sorted(files):
        file = files[name]
        total.update(f"{len(name.encode())}:{name}:{int(file.executable)}:{len(file.content)}:".encode())
        total.update(file.content)
    return total.hexdigest()


def _found(path: Path) -> list[Path]:
    """Raises TaskError, and OSError."""
    found: list[Path] = []
    for file in _walk(path):
        found.append(file)
        if len(found) > MAX_TASK_FILES:
            raise TaskError(path, f"holds more than {MAX_TASK_FILES} files", "pack them, or fetch them in the build")
    return found


def _walk(path: Path) -> Iterator[Path]:
    """Yield the files below the names that a task has. Raises TaskError for a file that is too deep, and OSError."""
    left = [(path / top, 0) for top in _TOPS]
    while left:
        place, depth = left.pop()
        if depth > DEEPEST:
            name = place.relative_to(path).as_posix()
            raise TaskError(path, f"{name[:100]!a} lies more than {DEEPEST} directories deep", "lay it flatter")
        if place.is_symlink() or place.is_file():
            yield place
        elif place.is_dir():
            with os.scandir(place) as children:
                names = [child.name for child in children]
            kept = (name for name in names if name not in _PASSED_OVER and not name.endswith(".pyc"))
            left += [(place / name, depth + 1) for name in kept]
        elif place.exists():
            yield place


def _is_unicode(name: str) -> bool:
    """Return True if the name of a file was in UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in name)
