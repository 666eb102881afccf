"""The error of a plug-in or an adapter whose packages are not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def required(extra: str, source: str = "") -> Iterator[None]:
    """Import packages of an extra. Raises ImportError with the pip command if one of them is not installed.

    ``source``: the repository of a package that no package index has, and that has no extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "farm", "sandboxes"):
            raise
        remedy = f"install it from {source}" if source else f"pip install 'rollout-farm[{extra}]'"
        message = f"this module needs {package}, which is not installed; {remedy}"
        raise ImportError(message, name=error.name) from None
