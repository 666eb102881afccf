"""The threads in which functions of the farm are called."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType


@contextmanager
def called_threads(*functions: str) -> Iterator[dict[str, set[str]]]:
    """Yield the names of the threads in which each function is called.

    The running loop gets a new executor, because a thread that runs already is not observed.
    """
    seen: dict[str, set[str]] = {name: set() for name in functions}

    def observe(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name in seen:
            seen[frame.f_code.co_name].add(threading.current_thread().name)

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
    sys.setprofile(observe)
    threading.setprofile(observe)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
