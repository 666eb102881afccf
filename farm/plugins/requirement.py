"""The error of a plug-in whose packages are not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def required(extra: str) -> Iterator[None]:
    """Import packages of an extra. Raises ImportError with the pip command if one of them is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "farm", "sandboxes"):
            raise
        message = f"this plug-in needs {package}, which is not installed; pip install 'rollout-farm[{extra}]'"
        raise ImportError(message, name=error.name) from None
