"""Task sets that go by a name: the sub-folders of one configured directory."""

import re
from pathlib import Path

from farm.tasks.errors import TaskError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHOWN = 20


def is_taskset_name(text: str) -> bool:
    """Whether ``text`` has the form of a name; one can never lead out of the directory."""
    return _NAME.fullmatch(text) is not None


def named_taskset(name: str, directory: Path | None) -> Path:
    """The sub-folder of ``directory`` that is named. Raises TaskError."""
    if directory is None:
        raise TaskError(name, "not there", "name a directory of tasks by its path, or set tasksets to use names")
    try:
        names = sorted(child.name for child in directory.iterdir() if is_taskset_name(child.name) and child.is_dir())
    except OSError as error:
        raise TaskError(name, f"tasksets {directory}: {error.strerror}", "correct tasksets") from None
    if name not in names:
        known = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        raise TaskError(name, "no task set goes by that name", f"{directory} holds {known or 'none'}")
    return directory / name
