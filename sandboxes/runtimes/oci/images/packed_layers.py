"""Pack layers into EROFS images, for sandboxes that share no cache with another.

A lookup is faster if the same name was looked up in the same directory before, found or not. A read is faster if the
file was read before. So a sandbox can leave notes in a layer, and a later sandbox on the same layer can read them. Each
mount of a packed layer has directory entries, inodes and pages of its own. Below them is the image file, whose pages
are all in memory before each start.
"""

import asyncio
import contextlib
import errno
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from sandboxes.errors import BootError, DiskFull, RuntimeUnavailable
from sandboxes.ownership.scratch_dirs import scratch
from sandboxes.runtimes.oci.storage import loop_device, mounts

PACKED, SUFFIX = "packed", ".erofs"
PROGRAM = "mkfs.erofs"
PACKING_S = 900.0
AT_ONCE = 2
UNUSED_S = 3600.0
"""A packed layer that no sandbox asked for in so long is removed."""
MOST_READ_BYTES = 4 << 30
"""A larger image is read from the disk as sandboxes need it, so the time of a read can carry a note."""
SPARE_BYTES = 1 << 30
"""Room on the disk that packing leaves."""
MADV_POPULATE_READ = 22
"""madvise(2), Linux 5.14."""


class PackedLayers:
    """Packed layers below ``home``, which all owners of a state directory share. Make it with ``open``."""

    def __init__(self, home: Path, program: str, *, needs_device: bool) -> None:
        self._home = home
        self._program = program
        self._needs_device = needs_device
        self._threads = ThreadPoolExecutor(AT_ONCE, "packing of layers")
        self._packing: dict[Path, asyncio.Future[None]] = {}

    @classmethod
    async def open(cls, state_dir: Path) -> "PackedLayers":
        """Return those of a state directory. Raises RuntimeUnavailable if this machine cannot make or mount one."""
        program = shutil.which(PROGRAM)
        if program is None:
            raise RuntimeUnavailable(f"there is no {PROGRAM}; as root: apt-get install erofs-utils")
        home = state_dir / PACKED
        try:
            return cls(home, program, needs_device=await asyncio.to_thread(_needs_device, home, program))
        except (OSError, BootError) as error:
            raise RuntimeUnavailable(f"an EROFS image cannot be mounted: {error}; load the module erofs") from None

    @contextlib.asynccontextmanager
    async def sources(self, layers: Sequence[Path]) -> AsyncIterator[list[Path]]:
        """Give what the starter mounts for each of ``layers``; it may be removed when the block ends.

        A layer is packed at its first use, which takes some 2 s for a GiB. Raises DiskFull and BootError.
        """
        with contextlib.ExitStack() as held:
            yield [await self._source(layer, held) for layer in layers]

    async def sweep(self, unused_s: float = UNUSED_S) -> None:
        """Remove packed layers that no sandbox asked for in ``unused_s``."""
        await asyncio.to_thread(_remove_unused, self._home, time.time() - unused_s)

    async def close(self) -> None:
        """Wait for what is being packed."""
        await asyncio.gather(*self._packing.values(), return_exceptions=True)
        self._threads.shutdown()

    async def _source(self, layer: Path, held: contextlib.ExitStack) -> Path:
        file = await self._opened(layer)
        held.callback(os.close, file)
        os.utime(file)
        await asyncio.to_thread(_read_in, file)
        path = Path(f"/proc/{os.getpid()}/fd/{file}")  # another owner may remove the name meanwhile
        if not self._needs_device:
            return path
        return held.enter_context(await asyncio.to_thread(partial(loop_device.attached, path, read_only=True)))

    async def _opened(self, layer: Path) -> int:
        packed = self._home / f"{_key(layer)}{SUFFIX}"
        while True:
            with contextlib.suppress(FileNotFoundError):
                return os.open(packed, os.O_RDONLY | os.O_CLOEXEC)
            running = self._packing.get(packed)
            if running is None:
                work = partial(_pack, self._program, layer, packed)
                running = asyncio.get_running_loop().run_in_executor(self._threads, work)
                self._packing[packed] = running
                running.add_done_callback(lambda _: self._packing.pop(packed, None))
            await asyncio.shield(running)


@contextlib.asynccontextmanager
async def to_mount(
    topmost: Path, layers: Sequence[Path], packed: PackedLayers | None
) -> AsyncIterator[tuple[Path | None, Sequence[Path]]]:
    """Give what the starter mounts: as they are, or ``packed``, ``topmost`` too. Raises what ``sources`` raises."""
    if packed is None:
        yield None, layers
        return
    async with packed.sources((topmost, *layers)) as (above, *below):
        yield above, below


def _key(layer: Path) -> str:
    """Return the name that the daemon or the farm chose for the layer. No two layers have the same."""
    return layer.parent.name if layer.name == "diff" else layer.name


def _needs_device(home: Path, program: str) -> bool:
    """Return whether the kernel mounts block devices alone, as before Linux 6.12. Raises OSError and BootError."""
    home.mkdir(mode=0o700, exist_ok=True)
    with scratch(home) as place:
        empty, image = place / "empty", place / "image"
        empty.mkdir()
        _make(program, empty, image)
        try:
            os.close(mounts.mount("erofs", image, {"ro": None}))
            return False
        except OSError as error:
            if error.errno != errno.ENOTBLK:
                raise
        with loop_device.attached(image, read_only=True) as device:
            os.close(mounts.mount("erofs", device, {"ro": None}))
        return True


def _pack(program: str, layer: Path, packed: Path) -> None:
    """Raises DiskFull and BootError."""
    try:
        needed, free = _bytes_in(layer), shutil.disk_usage(packed.parent).free
        if needed + SPARE_BYTES > free:
            raise DiskFull(
                f"{layer} holds {needed >> 20} MiB in files and {packed.parent} has {free >> 20} MiB; "
                "a sandbox for tests needs a copy of it there: make room, or use a smaller image"
            )
        with scratch(packed.parent) as place:
            image = place / "image"
            _make(program, layer, image)
            os.rename(image, packed)
    except OSError as error:
        raise BootError(f"{layer} cannot be packed: {error.strerror}") from None


def _make(program: str, layer: Path, image: Path) -> None:
    command = (program, "-d0", image, layer)
    try:
        made = subprocess.run(command, capture_output=True, timeout=PACKING_S, check=False)
    except subprocess.TimeoutExpired:
        raise BootError(f"{layer} cannot be packed within {PACKING_S:g} s; use a smaller image") from None
    if made.returncode != 0:
        raise BootError(f"{layer} cannot be packed: {made.stderr.decode(errors='replace').strip()[-300:]}")


def _bytes_in(directory: Path) -> int:
    """Return the bytes of all files below ``directory``, holes included. Raises OSError."""
    total, seen = 0, set()
    for place, _, names in os.walk(directory):
        for name in names:
            found = os.lstat(os.path.join(place, name))
            if found.st_nlink > 1 and found.st_ino in seen:
                continue
            seen.add(found.st_ino)
            total += found.st_size
    return total


def _read_in(file: int) -> None:
    """Read all of an image into memory."""
    size = os.fstat(file).st_size
    if not 0 < size <= MOST_READ_BYTES:
        return
    try:
        with mmap.mmap(file, size, prot=mmap.PROT_READ) as pages:
            pages.madvise(MADV_POPULATE_READ)
    except OSError:
        for at in range(0, size, 1 << 20):
            os.pread(file, 1 << 20, at)


def _remove_unused(home: Path, before: float) -> None:
    for packed in home.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):  # another owner has just removed it
            if packed.stat().st_mtime < before:
                packed.unlink()
