"""Find the files that the processes of a build hold and that have no name any more, so no directory shows them.

A process holds such a file by a descriptor, by a mapping, by a descriptor that it has sent over a unix socket and
no process has received, or by a file that it has registered with io_uring. Only the first two show the file's size.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

_URING = "anon_inode:[io_uring]"


def unnamed_bytes(process_ids: Iterable[int]) -> int:
    """Return the size on disk of the deleted files in descriptors and mappings, each counted once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in (path for process_id in process_ids for path in _held(process_id)):
        with suppress(OSError):  # it was closed, or is no file
            about = os.stat(path)
            if about.st_nlink == 0 and stat.S_ISREG(about.st_mode):
                sizes[about.st_dev, about.st_ino] = about.st_blocks * 512
    return sum(sizes.values())


def holds_hidden_files(process_ids: Iterable[int]) -> bool:
    """Return whether processes hold descriptors in flight, or files registered with io_uring."""
    return any(_hides(path) for process_id in process_ids for path in _descriptors(process_id))


def _held(process_id: int) -> Iterator[str]:
    yield from _descriptors(process_id)
    yield from _entries(f"/proc/{process_id}/map_files")


def _descriptors(process_id: int) -> Iterator[str]:
    """Yield the descriptors of each thread, because a thread may have its own (clone(2) without CLONE_FILES)."""
    for thread in _entries(f"/proc/{process_id}/task"):
        yield from _entries(f"{thread}/fd")


def _entries(directory: str) -> Iterator[str]:
    with suppress(OSError):  # the process has ended
        for name in os.listdir(directory):
            yield f"{directory}/{name}"


def _hides(path: str) -> bool:
    with suppress(OSError):
        target = os.readlink(path)
        if target.startswith("socket:") or target == _URING:
            directory, _, number = path.rpartition("/fd/")
            with open(f"{directory}/fdinfo/{number}") as file:
                fields = dict(line.partition(":")[::2] for line in file)
            return any(fields.get(name, "0").strip() != "0" for name in ("scm_fds", "UserFiles"))
    return False
