"""Read the files of a task directory within limits for their number, size and depth."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from farm.tasks.bundle import BundleFile
from farm.tasks.errors import TaskError
from farm.tasks.files import MANIFEST

MAX_TASK_BYTES = 256 * 1024 * 1024
MAX_TASK_FILES = 50_000
MAX_DEPTH = 100
_TOP_LEVEL = (MANIFEST, "instruction.md", "environment", "tests", "solution", "steps")
_IGNORED_NAMES = frozenset({"__pycache__", ".DS_Store", ".git"})


def read_directory(path: Path, *, max_bytes: int = MAX_TASK_BYTES) -> dict[str, BundleFile]:
    """Return the files that define a task, by path.

    Raises TaskError, also if they hold more than ``max_bytes``. Symlinks are refused, because one may name a file
    anywhere.
    """
    files: dict[str, BundleFile] = {}
    remaining = max_bytes
    try:
        files_found = sorted(_list_files(path))
    except OSError as error:
        name_of_fault = Path(error.filename).relative_to(path).as_posix()
        raise TaskError(
            path, f"{name_of_fault[:100]!a} cannot be read ({error.strerror})", "make it readable"
        ) from None
    for file in files_found:
        name = file.relative_to(path).as_posix()
        if not _is_unicode(name):
            raise TaskError(path, f"{name[:100]!a} is not a name in UTF-8", "rename it")
        if file.is_symlink():
            raise TaskError(file, "is a symlink", "put the file itself there")
        if not file.is_file():
            raise TaskError(file, "is not a regular file", "remove it")
        try:
            with file.open("rb") as opened:
                content = opened.read(remaining + 1)
                executable = os.access(file, os.X_OK) and bool(os.fstat(opened.fileno()).st_mode & 0o100)
        except OSError as error:
            raise TaskError(file, f"cannot be read ({error.strerror})", "make it readable") from None
        remaining -= len(content)
        if remaining < 0:
            raise TaskError(path, f"holds more than {max_bytes >> 20} MiB", "download large files in the build")
        files[name] = BundleFile(content, executable)
    return files


def digest_of(files: Mapping[str, BundleFile]) -> str:
    """Return the SHA-256 over names, modes and contents, which is the digest of a task or of its environment."""
    total = hashlib.sha256()
    for name in sorted(files):
        file = files[name]
        total.update(f"{len(name.encode())}:{name}:{int(file.executable)}:{len(file.content)}:".encode())
        total.update(file.content)
    return total.hexdigest()


def _list_files(path: Path) -> list[Path]:
    """Return the paths of the files. Raises TaskError for too many, and OSError."""
    files: list[Path] = []
    for file in _walk(path):
        files.append(file)
        if len(files) > MAX_TASK_FILES:
            raise TaskError(path, f"holds more than {MAX_TASK_FILES} files", "pack them, or download them in the build")
    return files


def _walk(path: Path) -> Iterator[Path]:
    """Yield the files of a task. Raises TaskError for a file that is too deep, and OSError."""
    stack = [(path / top, 0) for top in _TOP_LEVEL]
    while stack:
        entry, depth = stack.pop()
        if depth > MAX_DEPTH:
            name = entry.relative_to(path).as_posix()
            raise TaskError(path, f"{name[:100]!a} is more than {MAX_DEPTH} directories deep", "nest it less")
        if entry.is_symlink() or entry.is_file():
            yield entry
        elif entry.is_dir():
            with os.scandir(entry) as children:
                names = [child.name for child in children]
            kept_names = (name for name in names if name not in _IGNORED_NAMES and not name.endswith(".pyc"))
            stack += [(entry / name, depth + 1) for name in kept_names]
        elif entry.exists():
            yield entry


def _is_unicode(name: str) -> bool:
    """Return whether the name of a file is in UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in name)
