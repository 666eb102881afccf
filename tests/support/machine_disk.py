"""A file system like a machine's own, which a test can fill."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxes.interface import MIB

LEFT_MIB = 32


@contextmanager
def machine_disk(place: Path, size_mib: int) -> Iterator[Path]:
    """A file system of its own, mounted at ``place``."""
    image = place.with_suffix(".img")
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(size_mib * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
        image.unlink()


def take(path: Path, size_mib: int) -> None:
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_mib * MIB)


def fill_machine(place: Path, *, left_mib: int = LEFT_MIB) -> None:
    room = os.statvfs(place)
    take(place / "of another", room.f_bavail * room.f_frsize // MIB - left_mib)


def empty_machine(place: Path) -> None:
    (place / "of another").unlink()
