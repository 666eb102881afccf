"""A sandbox's own directory on its owner's disk: its bundle, its socket, and in ``upper`` what it wrote."""

import contextlib
import os
import shutil
import socket
from pathlib import Path

SOCKET, PID_FILE, COMPLAINTS = "sock", "pid", "err"
UPPER, WORK = "upper", "work"
COMPLAINT_BYTES = 2000


def make_empty(place: Path, root: int) -> None:
    """``root``: who root inside is outside."""
    for name in (UPPER, WORK):
        (place / name).mkdir()
    (place / UPPER).chmod(0o755)  # as ``/`` inside is
    if root:
        os.chown(place / UPPER, root, root)


def overlay_options(place: Path) -> str:
    return f"upperdir={place / UPPER},workdir={place / WORK},volatile"


def root_of(place: Path) -> int:
    """Who root inside is outside."""
    return (place / UPPER).stat().st_uid


def make_fresh(place: Path) -> None:
    """In a copy of another sandbox's directory all but its files goes: no overlay takes a work directory twice."""
    shutil.rmtree(place / WORK)
    (place / WORK).mkdir(mode=0o755)
    for name in (SOCKET, PID_FILE, COMPLAINTS):
        (place / name).unlink(missing_ok=True)


def socket_of_ours() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


def listen(listener: socket.socket, place: Path) -> None:
    """It is ours, and inherited by the first process, so that no path inside leads to it."""
    # Through the directory's descriptor: the path itself may be longer than a socket's name can be.
    directory = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{SOCKET}")
    finally:
        os.close(directory)
    listener.listen(64)


def complaint(place: Path, status: int) -> str:
    with contextlib.suppress(OSError):
        lines = (place / COMPLAINTS).read_bytes()[-COMPLAINT_BYTES:].decode(errors="replace").split()
        if lines:
            return " ".join(lines)
    return f"exit status {status}"
