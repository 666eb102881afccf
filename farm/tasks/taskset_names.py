"""Task sets by name: the sub-directories of one configured directory."""

import re
from pathlib import Path

from farm.tasks.errors import TaskError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_SHOWN = 20


def is_taskset_name(text: str) -> bool:
    """Return whether ``text`` has the form of a name. A name cannot lead out of the directory."""
    return _NAME.fullmatch(text) is not None


def named_taskset(name: str, directory: Path | None) -> Path:
    """Return the sub-directory of ``directory`` with that name. Raises TaskError."""
    if directory is None:
        raise TaskError(name, "not there", "name a directory of tasks by its path, or set tasksets to use names")
    try:
        names = sorted(child.name for child in directory.iterdir() if is_taskset_name(child.name) and child.is_dir())
    except OSError as error:
        raise TaskError(name, f"tasksets {directory}: {error.strerror}", "correct tasksets") from None
    if name not in names:
        listed = ", ".join(names[:_MAX_SHOWN]) + (", …" if len(names) > _MAX_SHOWN else "")
        raise TaskError(name, "no task set goes by that name", f"{directory} holds {listed or 'none'}")
    return directory / name


def resolve_taskset(path: Path, directory: Path | None) -> Path:
    """Return the path of a task set that a user names by its path, or by its name below ``directory``.

    Raises TaskError.
    """
    by_name = directory is not None and is_taskset_name(str(path)) and not path.exists()
    return named_taskset(str(path), directory) if by_name else path
