"""Applies a change to a pristine workspace: first plans it on the host, then executes the plan.

Each parent of a written path is a directory of the pristine workspace or a new directory. So a symlink in the change
cannot redirect a write.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from farm.core.change import Change, ChangeKind, FileChange
from farm.grading.changes.capture import PATH_LIMIT, take_baseline
from farm.grading.changes.concurrency import map_concurrently
from farm.grading.errors import ChangeRefused
from sandboxes.interface import FileKind, Sandbox

NAME_LIMIT = 255


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """Paths to remove, then files and symlinks to write; all relative to the workspace."""

    removals: tuple[str, ...]
    writes: tuple[FileChange, ...]


async def apply_change(sandbox: Sandbox, workspace: str, change: Change) -> None:
    """Apply a change to a pristine workspace. Raises ChangeRefused before the first write."""
    pristine = await take_baseline(sandbox, workspace)
    kinds = {path: entry.kind for path, entry in pristine.entries.items()}
    await execute_plan(sandbox, workspace, plan_change(change, kinds))


def plan_change(change: Change, pristine: Mapping[str, FileKind]) -> ChangePlan:
    """Return the paths to remove and the files to write. A directory that loses its last file is removed, as in git.

    ``pristine`` maps each path of the pristine workspace to its kind.

    Raises ChangeRefused if a path is invalid, leaves the workspace, occurs twice, or is below a file or a symlink.
    """
    for file in change.files:
        _check_path(file)
    writes = [file for file in change.files if file.kind is not ChangeKind.DELETE]
    deleted = {file.path for file in change.files if file.kind is ChangeKind.DELETE}
    if len({file.path for file in change.files}) != len(change.files):
        raise ChangeRefused("the change cannot be applied: it names a path twice")
    final_kinds = {path: kind for path, kind in pristine.items() if path not in deleted}
    final_kinds |= {
        file.path: FileKind.SYMLINK if file.kind is ChangeKind.SYMLINK else FileKind.FILE for file in writes
    }
    directories = _directories(final_kinds)
    for path in sorted(final_kinds.keys() & directories):
        raise ChangeRefused(f"the change cannot be applied: {path!r} would be a {final_kinds[path]} and contain files")
    removed = {
        next((parent for parent in parents(path) if parent not in directories), path)
        for path in deleted & pristine.keys()
    }
    replaced = {
        file.path for file in writes if file.kind is ChangeKind.SYMLINK or pristine.get(file.path) is not FileKind.FILE
    }
    return ChangePlan(tuple(sorted(removed | replaced)), tuple(writes))


async def execute_plan(sandbox: Sandbox, workspace: str, plan: ChangePlan) -> None:
    """Remove all paths of the plan concurrently, then write all its files concurrently."""

    async def remove(path: str) -> None:
        await sandbox.remove_path(f"{workspace}/{path}")

    async def write(file: FileChange) -> None:
        full = f"{workspace}/{file.path}"
        if file.kind is ChangeKind.SYMLINK:
            await sandbox.write_link(full, file.content.decode("utf-8", "surrogateescape"))
        else:
            await sandbox.write_file(full, file.content, executable=file.executable, parents=True)

    await map_concurrently(plan.removals, remove)
    await map_concurrently(plan.writes, write)


def parents(path: str) -> list[str]:
    """Return the directories above a relative path, outermost first."""
    return [path[:at] for at, char in enumerate(path) if char == "/"]


def _directories(paths: Iterable[str]) -> set[str]:
    """Return each directory above any of the paths."""
    directories: set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in directories:
            directories.add(parent)
            parent = parent.rpartition("/")[0]
    return directories


def clear_way(paths: Collection[str], pristine: Mapping[str, FileKind]) -> Change:
    """Return a change that deletes everything that prevents plain files at ``paths``.

    That is anything other than a plain file at a path, everything below it, and files or symlinks above it.
    """
    blocked = {parent for path in paths for parent in parents(path) if parent in pristine}
    blocked |= {path for path in paths if pristine.get(path, FileKind.FILE) is not FileKind.FILE}
    below = tuple(f"{path}/" for path in paths)
    blocked |= {path for path in pristine if path.startswith(below)}
    return Change(tuple(FileChange(path, ChangeKind.DELETE) for path in sorted(blocked)))


def _check_path(file: FileChange) -> None:
    try:
        names = file.path.encode("utf-8", "surrogateescape").split(b"/")
    except UnicodeEncodeError:
        names = []
    if not names or any(name in (b"", b".", b"..") or b"\0" in name or len(name) > NAME_LIMIT for name in names):
        raise ChangeRefused(f"the change cannot be applied: {file.path[:200]!r} is not a path inside the workspace")
    if file.kind is ChangeKind.SYMLINK and not 0 < len(file.content) < PATH_LIMIT:
        raise ChangeRefused(
            f"the symlink {file.path[:200]!r} cannot be made: its target has {len(file.content)} bytes; "
            f"1 to {PATH_LIMIT - 1} are allowed"
        )
    if file.kind is ChangeKind.SYMLINK and b"\0" in file.content:
        raise ChangeRefused(f"the symlink {file.path[:200]!r} cannot be made: its target contains a zero byte")
