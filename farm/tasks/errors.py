"""What can be wrong with a task."""

from pathlib import Path


class TaskError(Exception):
    """A task cannot be used. One line: the file, the key where there is one, what is wrong, and the remedy."""

    def __init__(self, file: Path | str, what: str, remedy: str, *, key: str = "") -> None:
        place = f"{file}: {key}" if key else f"{file}"
        super().__init__(" ".join(f"{place}: {what}; {remedy}".split()))
