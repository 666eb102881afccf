"""Find the user of an image: ``USER`` of its configuration, looked up in its own /etc/passwd and /etc/group."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import SpecError
from sandboxes.runtimes.oci.uid_ranges import IDS

FILE_BYTES = 1024 * 1024
DIGITS = 10
"""Length of the largest id of the kernel."""
QUOTED = 80


@dataclass(frozen=True, slots=True)
class ImageUser:
    """The user and groups of a sandbox's processes. ``groups``: all of them, as Docker sets them."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = (0,)
    home: str = "/"


def find_user(wanted: str, layers: Sequence[Path]) -> ImageUser:
    """Return the user of an image. ``wanted``: as in a Dockerfile, ``user`` or ``user:group``, names or numbers.

    Raises SpecError if the image does not have it, or no sandbox can.
    """
    name, _, group = wanted.partition(":")
    name = name or "0"
    row = next((row for row in _rows(layers, "passwd", 7) if row[0] == name or row[2] == name), None)
    if row is None and not _is_id(name):
        raise SpecError(f"the image's user {name[:QUOTED]!r} is not in its /etc/passwd; change USER")
    own, uid, gid, home = ("", int(name), 0, "/") if row is None else (row[0], int(row[2]), int(row[3]), row[5] or "/")
    groups = list(_rows(layers, "group", 4))
    if group:
        gid = _group_id(group, groups)
        return _checked(ImageUser(uid, gid, (gid,), home))
    further = {int(g[2]) for g in groups if own and own in g[3].split(",")}
    return _checked(ImageUser(uid, gid, tuple(sorted({gid, *further})), home))


def _checked(user: ImageUser) -> ImageUser:
    if not all(number < IDS for number in (user.uid, user.gid, *user.groups)):
        raise SpecError(
            f"the image's user {user.uid}:{user.gid} or one of its groups is not below {IDS}; "
            "change USER, or use runtime = docker"
        )
    if not user.home.isprintable():
        raise SpecError(
            f"the home {user.home[:QUOTED]!r} of the image's user has control characters; change its /etc/passwd"
        )
    return user


def _group_id(name: str, groups: Sequence[Sequence[str]]) -> int:
    entry = next((row for row in groups if name in (row[0], row[2])), None)
    if entry is None and not _is_id(name):
        raise SpecError(f"the image's group {name[:QUOTED]!r} is not in its /etc/group; change USER")
    return int(name if entry is None else entry[2])


def _is_id(text: str) -> bool:
    """Return True for a decimal id, also one above the kernel's maximum."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS


def _rows(layers: Sequence[Path], file: str, fields: int) -> list[list[str]]:
    rows = (line.split(":") for line in _read(layers, file).splitlines())
    return [row for row in rows if len(row) == fields and _is_id(row[2]) and (fields == 4 or _is_id(row[3]))]


def _read(layers: Sequence[Path], file: str) -> str:
    """Return ``/etc/file`` of the topmost layer that has it. The image is untrusted, so no symlink is followed."""
    for layer in layers:
        try:
            etc = os.open(layer / "etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=etc)
        except FileNotFoundError:
            continue
        except OSError:  # a whiteout or a symlink
            return ""
        finally:
            os.close(etc)
        with open(fd, "rb") as opened:
            return opened.read(FILE_BYTES).decode(errors="replace") if os.path.isfile(fd) else ""
    return ""
