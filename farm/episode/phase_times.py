"""Seconds per phase of an episode."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """``seconds`` holds the sum of each phase so far; a phase that raised counts up to that moment.

    ``spent_s``: seconds that earlier processes spent on the episode.
    """

    def __init__(self, spent_s: float = 0.0) -> None:
        self._began = time.monotonic() - spent_s
        self.seconds: dict[str, float] = {}

    @property
    def total_s(self) -> float:
        return time.monotonic() - self._began

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - began)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
