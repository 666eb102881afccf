"""Attach files to loop devices, see loop(4). Each device is freed with its last user, however that ends."""

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

CONTROL = Path("/dev/loop-control")
TRIES = 100


@contextlib.contextmanager
def attached(image: Path, *, read_only: bool = False) -> Iterator[Path]:
    """Yield a block device for ``image``. After the block it exists as long as it is mounted. Raises OSError.

    ``read_only``: the device reads through the page cache of ``image``.
    """
    with open(image, "rb" if read_only else "rb+", buffering=0) as file:
        flags = _AUTOCLEAR | (_READ_ONLY if read_only else _DIRECT_IO)
        device, path = _attach(file.fileno(), image, flags)
    try:
        yield path
    finally:
        os.close(device)


def device_of(image: Path) -> Path | None:
    """Return the loop device of ``image``, or None."""
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # it was just detached
            if backing.read_text().rstrip("\n") == str(image):
                return Path("/dev") / backing.parts[3]
    return None


def _attach(file: int, image: Path, flags: int) -> tuple[int, Path]:
    """Attach ``file`` to a free device. Return an open descriptor of the device, and its path."""
    # One ioctl attaches it and sets autoclear, so that a death cannot leave it attached for good.
    info = (*[0] * 8, flags, os.fsencode(image)[:63], b"", b"", *[0] * 10)
    config = _CONFIG.pack(file, 0, *info)
    for tries_left in reversed(range(TRIES)):
        path = _free_device()
        device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(device, _CONFIGURE, config)
            return device, path
        except OSError as error:
            os.close(device)
            if error.errno != errno.EBUSY or not tries_left:  # EBUSY: another process has just taken it
                raise
    raise AssertionError("the last try has returned or raised")


def _free_device() -> Path:
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        return Path(f"/dev/loop{fcntl.ioctl(control, _CTL_GET_FREE)}")
    finally:
        os.close(control)


# <linux/loop.h>: struct loop_config, whose second part is struct loop_info64
_CTL_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_READ_ONLY, _AUTOCLEAR, _DIRECT_IO = 1, 4, 16
_CONFIG = struct.Struct("<II 5Q 4I 64s 64s 32s 2Q 8Q")
