"""A change to a workspace: what an agent leaves behind, what a gold solution is, what grading applies."""

from dataclasses import dataclass
from enum import StrEnum


class ChangeKind(StrEnum):
    WRITE = "write"
    SYMLINK = "symlink"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class FileChange:
    """One path of a change.

    ``path`` is relative to the workspace, POSIX, normalised, never absolute and free of ``..``.
    ``content`` holds the whole new content of a written file, or the target of a symlink; it is empty
    for a deletion. ``executable`` is the only mode bit that travels, as in git.
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
