"""What the names of images mean, remembered for as long as that cannot have changed.

A Docker daemon that keeps its images with overlay2 holds all their names in one file. It puts a new file in its place
whenever a name is given, moved or taken away, and before it answers whoever asked for that. So while the file is the
same one, every name means what the daemon said of it; a look at the file costs some microseconds, asking the daemon a
millisecond or more.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

DRIVER = "overlay2"

State = tuple[int, int, int]


class Layered(Protocol):
    @property
    def layers(self) -> tuple[Path, ...]:
        """Where the daemon keeps them; none where it keeps no directories."""
        ...


T = TypeVar("T", bound=Layered)


class ImageNames(Generic[T]):
    """Of one daemon's images."""

    def __init__(self, ask: Callable[[str], Awaitable[T]]) -> None:
        self._ask = ask
        self._file: Path | None = None
        self._state: State | None = None
        self._known: dict[str, T] = {}

    async def find(self, name: str) -> T:
        """What the daemon says, or would. Raises what asking it raises."""
        state = self._look()
        if state is None or state != self._state:
            self._known.clear()
            self._state = state
        image = self._known.get(name)
        if image is None:
            image = await self._ask(name)
            self._file = self._file or _file_beside(image.layers)
            if state is not None and state == self._state:
                self._known[name] = image
        return image

    def _look(self) -> State | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _file_beside(layers: tuple[Path, ...]) -> Path | None:
    """None where the layers are not on this machine: then neither is the file, whatever has its name here."""
    try:
        here = bool(layers) and all(layer.is_dir() for layer in layers)
    except OSError:
        here = False
    return layers[0].parents[2] / "image" / DRIVER / "repositories.json" if here else None
