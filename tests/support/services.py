"""What the tests need of the machine: found, or said clearly. In CI a missing service fails; it never skips."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# In CI everyone is root: there these tests fail without it.
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 and not os.environ.get("CI"), reason="only root makes networks, mounts and namespaces"
)


def missing(what: str, remedy: str) -> None:
    """Skip on a laptop, fail in CI."""
    message = f"{what} is missing: {remedy}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def require_program(name: str) -> str:
    """The path of a program, e.g. ``redis-server``."""
    path = shutil.which(name)
    if path is None:
        missing(name, f"apt-get install {name}, or run tests/run.sh")
    assert path is not None
    return path


@contextmanager
def kept_port() -> Iterator[int]:
    """A port of loopback that nobody is given meanwhile, and where nobody answers but who listens at it by its number,
    which takes SO_REUSEADDR."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]
