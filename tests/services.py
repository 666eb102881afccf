"""What the tests need of the machine: found, or said clearly. In CI a missing service fails; it never skips."""

import os
import shutil

import pytest


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
