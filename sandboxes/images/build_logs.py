"""Keep the output of failed image builds."""

import contextlib
import logging
import os
import re
import tempfile
from collections import deque
from pathlib import Path

MAX_LOGS = 50
"""Maximum number of logs; the newest are kept."""
MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of one log. Excess output is cut from the middle, because the cause is at the end."""

log = logging.getLogger(__name__)


class BuildOutput:
    """The first and the last lines of one build, up to half of ``MAX_BYTES`` each."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self._half = most_bytes // 2
        self._first = bytearray()
        self._last: deque[bytes] = deque()
        self._last_bytes = 0
        self._omitted = 0

    def take(self, line: str) -> None:
        content = line.encode(errors="replace") + b"\n"
        if not self._last and len(self._first) + len(content) <= self._half:
            self._first += content
            return
        content = content[-self._half :]
        self._last.append(content)
        self._last_bytes += len(content)
        while self._last_bytes > self._half:
            self._last_bytes -= len(self._last.popleft())
            self._omitted += 1

    def content(self) -> bytes:
        gap = f"[{self._omitted} lines are left out here]\n".encode() if self._omitted else b""
        return bytes(self._first) + gap + b"".join(self._last)


class BuildLogs:
    """A directory with one log for each image: the output of its last failed build."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    def of(cls, state_dir: Path) -> "BuildLogs":
        return cls(state_dir / "log" / "builds")

    def keep(self, image: str, output: BuildOutput) -> Path | None:
        """Write the log of a failed build and return its path; None if there is no output or it cannot be written."""
        content = output.content()
        if not content:
            return None
        path = self._directory / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', image)[-200:].lstrip('.')}.log"
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            _replace(path, content)
            self._remove_old()
        except OSError as error:
            log.warning("the log of the failed build of %s is not kept: %s", image, error)
            return None
        return path

    def _remove_old(self) -> None:
        dated = []
        for path in self._directory.glob("*.log"):
            with contextlib.suppress(FileNotFoundError):
                dated.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(dated, reverse=True)[MAX_LOGS:]:
            path.unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    """Write a file atomically, because builds in several processes may fail at the same time."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
