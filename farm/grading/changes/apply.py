"""Change in: a change is planned on the host against a pristine workspace, then carried out.

Nothing the change brings is ever walked through: every parent of a written path is a directory of the pristine
workspace or one made for it, so that a symlink of the agent's cannot lead a write elsewhere.
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
    """Paths to remove, then files and symlinks to put; all relative to the workspace."""

    removals: tuple[str, ...]
    puts: tuple[FileChange, ...]


async def apply_change(sandbox: Sandbox, workspace: str, change: Change) -> None:
    """Make a pristine workspace what the change says. Raises ChangeRefused before anything was written."""
    pristine = await take_baseline(sandbox, workspace)
    kinds = {path: entry.kind for path, entry in pristine.entries.items()}
    await execute_plan(sandbox, workspace, plan_change(change, kinds))


def plan_change(change: Change, pristine: Mapping[str, FileKind]) -> ChangePlan:
    """What to remove and to put. A directory that loses its last file goes with it, as in git.

    Raises ChangeRefused for a path that leaves the workspace or is no path, for one named twice, and for one that
    would lie below a file or a symlink.
    """
    for file in change.files:
        _refuse_odd_path(file)
    puts = [file for file in change.files if file.kind is not ChangeKind.DELETE]
    deleted = {file.path for file in change.files if file.kind is ChangeKind.DELETE}
    if len({file.path for file in change.files}) != len(change.files):
        raise ChangeRefused("the change names a path twice")
    after = {path: kind for path, kind in pristine.items() if path not in deleted}
    after |= {file.path: FileKind.SYMLINK if file.kind is ChangeKind.SYMLINK else FileKind.FILE for file in puts}
    directories = _directories(after)
    for path in sorted(after.keys() & directories):
        raise ChangeRefused(f"{path!r} would be a {after[path]} and hold files")
    gone = {
        next((parent for parent in parents(path) if parent not in directories), path)
        for path in deleted & pristine.keys()
    }
    replaced = {
        file.path for file in puts if file.kind is ChangeKind.SYMLINK or pristine.get(file.path) is not FileKind.FILE
    }
    return ChangePlan(tuple(sorted(gone | replaced)), tuple(puts))


async def execute_plan(sandbox: Sandbox, workspace: str, plan: ChangePlan) -> None:
    """Remove, then put. The order within each step does not matter."""

    async def remove(path: str) -> None:
        await sandbox.remove_path(f"{workspace}/{path}")

    async def put(file: FileChange) -> None:
        full = f"{workspace}/{file.path}"
        if file.kind is ChangeKind.SYMLINK:
            await sandbox.write_link(full, file.content.decode("utf-8", "surrogateescape"))
        else:
            await sandbox.write_file(full, file.content, executable=file.executable, parents=True)

    await map_concurrently(plan.removals, remove)
    await map_concurrently(plan.puts, put)


def parents(path: str) -> list[str]:
    """The directories above a relative path, outermost first."""
    return [path[:at] for at, char in enumerate(path) if char == "/"]


def _directories(paths: Iterable[str]) -> set[str]:
    """Every directory above any of the paths."""
    found: set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in found:
            found.add(parent)
            parent = parent.rpartition("/")[0]
    return found


def clear_way(paths: Collection[str], pristine: Mapping[str, FileKind]) -> Change:
    """Deletions of whatever but a plain file is at the paths, and of whatever but a directory is above them."""
    blocked = {parent for path in paths for parent in parents(path) if parent in pristine}
    blocked |= {path for path in paths if pristine.get(path, FileKind.FILE) is not FileKind.FILE}
    below = tuple(f"{path}/" for path in paths)
    blocked |= {path for path in pristine if path.startswith(below)}
    return Change(tuple(FileChange(path, ChangeKind.DELETE) for path in sorted(blocked)))


def _refuse_odd_path(file: FileChange) -> None:
    try:
        names = file.path.encode("utf-8", "surrogateescape").split(b"/")
    except UnicodeEncodeError:
        names = []
    if not names or any(name in (b"", b".", b"..") or b"\0" in name or len(name) > NAME_LIMIT for name in names):
        raise ChangeRefused(f"{file.path[:200]!r} is no path inside the workspace")
    if file.kind is ChangeKind.SYMLINK and not 0 < len(file.content) < PATH_LIMIT:
        raise ChangeRefused(f"the symlink {file.path[:200]!r} has a target of {len(file.content)} bytes")
    if file.kind is ChangeKind.SYMLINK and b"\0" in file.content:
        raise ChangeRefused(f"the symlink {file.path[:200]!r} has a target with a zero byte")
