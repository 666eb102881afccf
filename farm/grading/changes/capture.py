"""Change out: what an agent left in its workspace, read without running anything that the agent could have touched."""

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass

from farm.core.change import Change, ChangeKind, FileChange
from farm.grading.changes.concurrency import map_concurrently
from farm.grading.errors import ChangeTooLarge
from sandboxes.errors import PathError
from sandboxes.interface import MIB, FileEntry, FileKind, Sandbox

MAX_FILES = 5_000
MAX_BYTES = 64 * MIB
READLINK = ("/.farm/bin/busybox", "readlink", "-n", "--")
PATH_LIMIT = 4096

RESIDUE_DIRECTORIES = (
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".tox",
    ".nox",
    ".venv",
    ".eggs",
    ".pytype",
    ".ipynb_checkpoints",
    "htmlcov",
    "node_modules",
)
_RESIDUE_NAMES = frozenset(RESIDUE_DIRECTORIES)
_RESIDUE_FILE = re.compile(r".*\.py[co]|\.coverage(\..*)?|\..*\.sw[a-p]|.*~|\.DS_Store|\.nfs.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class WorkspaceBaseline:
    """A pristine workspace as a walk saw it: file entries by path. The same for every sandbox of ``image_digest``."""

    image_digest: str
    entries: Mapping[str, FileEntry]


async def take_baseline(sandbox: Sandbox, workspace: str) -> WorkspaceBaseline:
    """Walk a workspace that nobody has touched yet. Raises PathError where there is none."""
    return WorkspaceBaseline(sandbox.image_digest, await _walk(sandbox, workspace))


async def take_change(sandbox: Sandbox, workspace: str, baseline: WorkspaceBaseline) -> Change:
    """Kill every process, then read what differs from the baseline.

    Version control, bytecode, tool caches, FIFOs, sockets and devices are no part of a change. A file that was only
    touched is: ``grade`` drops it where its content turns out to be the pristine one. A workspace that is gone is a
    change that deletes everything. What the agent has only itself to blame for: ChangeTooLarge, before more than
    MAX_FILES or MAX_BYTES are read, and PathError for what it made unreadable.
    """
    await sandbox.kill_all()
    try:
        found = await _walk(sandbox, workspace)
    except PathError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        found = {}
    deleted = [FileChange(path, ChangeKind.DELETE) for path in baseline.entries if path not in found]
    changed = [entry for path, entry in found.items() if _differs(baseline.entries.get(path), entry)]
    _refuse_too_large(len(deleted) + len(changed), sum(entry.size for entry in changed))

    async def read(entry: FileEntry) -> FileChange:
        return await _read(sandbox, workspace, entry)

    files = deleted + await map_concurrently(changed, read)
    _refuse_too_large(len(files), sum(len(file.content) for file in files))
    return Change(tuple(sorted(files, key=lambda file: file.path)))


async def read_content(sandbox: Sandbox, workspace: str, path: str, kind: FileKind) -> bytes:
    """A file's content or a symlink's target. Raises PathError."""
    full = f"{workspace}/{path}"
    if kind is FileKind.SYMLINK:
        result = await sandbox.exec((*READLINK, full), timeout_s=10.0, output_limit=PATH_LIMIT)
        if result.exit_code != 0:
            raise PathError(errno.ENOENT, full, "its target cannot be read")
        return result.stdout.head + result.stdout.tail
    return await sandbox.read_file(full, limit=MAX_BYTES + 1)


def is_residue(path: str) -> bool:
    """Whether tools left it behind, not somebody's work."""
    parts = path.split("/")
    return not _RESIDUE_NAMES.isdisjoint(parts) or _RESIDUE_FILE.fullmatch(parts[-1]) is not None


def is_executable(entry: FileEntry) -> bool:
    return bool(entry.mode & 0o100)


async def _walk(sandbox: Sandbox, workspace: str) -> dict[str, FileEntry]:
    entries = await sandbox.walk(workspace, prune=RESIDUE_DIRECTORIES)
    return {entry.path: entry for entry in entries if entry.kind is not FileKind.OTHER and not is_residue(entry.path)}


def _differs(before: FileEntry | None, after: FileEntry) -> bool:
    return before is None or (before.kind, before.size, before.mtime_ns, is_executable(before)) != (
        after.kind,
        after.size,
        after.mtime_ns,
        is_executable(after),
    )


async def _read(sandbox: Sandbox, workspace: str, entry: FileEntry) -> FileChange:
    content = await read_content(sandbox, workspace, entry.path, entry.kind)
    if entry.kind is FileKind.SYMLINK:
        return FileChange(entry.path, ChangeKind.SYMLINK, content)
    return FileChange(entry.path, ChangeKind.WRITE, content, is_executable(entry))


def _refuse_too_large(files: int, size_bytes: int) -> None:
    if files > MAX_FILES:
        raise ChangeTooLarge(f"the change touches {files} files; at most {MAX_FILES} are judged")
    if size_bytes > MAX_BYTES:
        raise ChangeTooLarge(f"the change holds {size_bytes / MIB:.0f} MiB; at most {MAX_BYTES // MIB} are judged")
