"""A change of a workspace: the form of an agent's result and of a gold solution, and the input of grading."""

from dataclasses import dataclass
from enum import StrEnum


class ChangeKind(StrEnum):
    WRITE = "write"
    SYMLINK = "symlink"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class FileChange:
    """The change of one path.

    ``path`` is a normalised POSIX path relative to the workspace, without ``..``. ``content`` is the whole new content
    of a written file, the target of a symlink, or empty for a deletion. ``executable`` is the only mode bit, as in git.
    """

    path: str
    kind: ChangeKind
    content: bytes = b""
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """Changed files, sorted by path, each path once."""

    files: tuple[FileChange, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.files

    @property
    def size_bytes(self) -> int:
        return sum(len(file.content) for file in self.files)
