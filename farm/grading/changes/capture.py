"""Reads an agent's change of the workspace without running a program that the agent could have modified."""

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
    """The file entries of a pristine workspace, by path; equal in each sandbox of the image ``image_digest``."""

    image_digest: str
    entries: Mapping[str, FileEntry]


async def take_baseline(sandbox: Sandbox, workspace: str) -> WorkspaceBaseline:
    """Walk a workspace that is still pristine. Raises PathError if it does not exist."""
    return WorkspaceBaseline(sandbox.image_digest, await _walk(sandbox, workspace))


async def take_change(sandbox: Sandbox, workspace: str, baseline: WorkspaceBaseline) -> Change:
    """Kill all processes in the sandbox, then read the files that differ from the baseline.

    A change excludes version control, bytecode, tool caches, FIFOs, sockets and devices. It includes files with only a
    new modification time; ``grade`` drops them if their content is pristine. A missing workspace is a change that
    deletes everything.

    Raises ChangeTooLarge before more than MAX_FILES files or MAX_BYTES bytes are read, and PathError if the agent made
    a file unreadable. The agent is responsible for both.
    """
    await sandbox.kill_all()
    try:
        entries = await _walk(sandbox, workspace)
    except PathError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        entries = {}
    deleted = [FileChange(path, ChangeKind.DELETE) for path in baseline.entries if path not in entries]
    changed = [entry for path, entry in entries.items() if _differs(baseline.entries.get(path), entry)]
    _check_size(len(deleted) + len(changed), sum(entry.size for entry in changed))

    async def read(entry: FileEntry) -> FileChange:
        return await _read(sandbox, workspace, entry)

    files = deleted + await map_concurrently(changed, read)
    _check_size(len(files), sum(len(file.content) for file in files))
    return Change(tuple(sorted(files, key=lambda file: file.path)))


async def read_content(sandbox: Sandbox, workspace: str, path: str, kind: FileKind) -> bytes:
    """Return a file's content or a symlink's target. Raises PathError if it cannot be read."""
    full = f"{workspace}/{path}"
    if kind is FileKind.SYMLINK:
        result = await sandbox.exec((*READLINK, full), timeout_s=10.0, output_limit=PATH_LIMIT)
        if result.exit_code != 0:
            raise PathError(errno.ENOENT, full, "the symlink's target cannot be read")
        return result.stdout.head + result.stdout.tail
    return await sandbox.read_file(full, limit=MAX_BYTES + 1)


def is_residue(path: str) -> bool:
    """Return True if a path belongs to a tool's cache or state and not to the agent's work."""
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


def _check_size(files: int, size_bytes: int) -> None:
    if files > MAX_FILES:
        raise ChangeTooLarge(f"the change is too large: it has {files} files; at most {MAX_FILES} are judged")
    if size_bytes > MAX_BYTES:
        raise ChangeTooLarge(
            f"the change is too large: it has {size_bytes / MIB:.0f} MiB; at most {MAX_BYTES // MIB} are judged"
        )
