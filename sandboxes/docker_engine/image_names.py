"""Cache the images that names point to, and invalidate the cache when a name changes.

With overlay2 a Docker daemon stores all image names in one file. It replaces that file at each tag, retag or untag,
before it answers the request. So the cache is valid while the file's identity is unchanged. A stat of the file takes
some microseconds; a request to the daemon takes a millisecond or more.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

DRIVER = "overlay2"

FileState = tuple[int, int, int]


class Layered(Protocol):
    @property
    def layers(self) -> tuple[Path, ...]:
        """Return the layer directories, empty if the storage driver has none."""
        ...


T = TypeVar("T", bound=Layered)


class ImageNames(Generic[T]):
    """The cached image names of one daemon. ``ask``: look a name up at the daemon."""

    def __init__(self, ask: Callable[[str], Awaitable[T]]) -> None:
        self._ask = ask
        self._file: Path | None = None
        self._state: FileState | None = None
        self._images: dict[str, T] = {}

    async def find(self, name: str) -> T:
        """Return the image of ``name``. Raises what ``ask`` raises."""
        state = self._read_state()
        if state is None or state != self._state:
            self._images.clear()
            self._state = state
        image = self._images.get(name)
        if image is None:
            image = await self._ask(name)
            self._file = self._file or _file_beside(image.layers)
            if state is not None and state == self._state:
                self._images[name] = image
        return image

    def _read_state(self) -> FileState | None:
        if self._file is None:
            return None
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def _file_beside(layers: tuple[Path, ...]) -> Path | None:
    """Return the daemon's file of names beside its layers, or None if the layers are not on this machine."""
    try:
        here = bool(layers) and all(layer.is_dir() for layer in layers)
    except OSError:
        here = False
    return layers[0].parents[2] / "image" / DRIVER / "repositories.json" if here else None
