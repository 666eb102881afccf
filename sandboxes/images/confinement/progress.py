"""The number of the engine's own copies in a build, read from the builder's plain progress."""

import re

_BEGUN = re.compile(r"#(\d+) \[[^\]]*\] (?:COPY|ADD|WORKDIR)\b")
_CACHED = re.compile(r"#(\d+) CACHED")


class CopyCount:
    """Count the instructions that have started, are not cached, and make a layer without running a step.

    What a step prints cannot be taken for such a line: the builder puts the step's number and a time before it.
    """

    def __init__(self) -> None:
        self._begun: set[str] = set()

    @property
    def count(self) -> int:
        return len(self._begun)

    def read(self, line: str) -> None:
        """Take one line of the output of ``docker build --progress plain``."""
        if match := _BEGUN.match(line):
            self._begun.add(match[1])
        elif match := _CACHED.fullmatch(line):
            self._begun.discard(match[1])
