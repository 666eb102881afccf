"""The threads in which functions of the farm are called."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def called_threads(*functions: str) -> Iterator[dict[str, set[str]]]:
    """Yield the names of the threads in which each function is called. Threads that run before see no call."""
    seen: dict[str, set[str]] = {name: set() for name in functions}

    def observe(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name in seen:
            seen[frame.f_code.co_name].add(threading.current_thread().name)

    sys.setprofile(observe)
    threading.setprofile(observe)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
