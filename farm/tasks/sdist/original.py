"""Prepare a generated fault: the release's tests, and the gold change that restores the released files."""

from pathlib import Path

from farm.core.change import Change, ChangeKind, FileChange
from farm.tasks.errors import TaskError
from farm.tasks.schema.manifest import OriginalTable
from farm.tasks.sdist.release_pair import PreparedPair, tests_of
from farm.tasks.sdist.sdist import OnProgress, fetch_sdist, read_sdist


def restore(original: OriginalTable, *, state_dir: Path, on_progress: OnProgress | None = None) -> PreparedPair:
    """Return the tests and the gold change, from the cache if the release is there. Raises TaskError."""
    files = read_sdist(
        fetch_sdist(original.package, original.version, original.sha256, state_dir=state_dir, on_progress=on_progress)
    )
    missing = [path for path in original.changed if path not in files]
    if missing:
        raise TaskError(original.package, f"{original.version} has no file {missing[0]}", "make the task again")
    gold = Change(
        tuple(
            FileChange(path, ChangeKind.WRITE, files[path].content, files[path].executable)
            for path in sorted(set(original.changed))
        )
    )
    return PreparedPair(gold, tests_of(original.package, files))
