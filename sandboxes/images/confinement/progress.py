"""Count the engine's own copies in a build from the builder's plain progress."""

import re

_BEGUN = re.compile(r"#(\d+) \[[^\]]*\] (?:COPY|ADD|WORKDIR)\b")
_CACHED = re.compile(r"#(\d+) CACHED")


class CopyCount:
    """Counts the instructions that have started, are not cached, and create a layer without running a step.

    Output of a step cannot be mistaken for such a line, because the builder prefixes it with the step's number and a
    time.
    """

    def __init__(self) -> None:
        self._begun: set[str] = set()

    @property
    def count(self) -> int:
        return len(self._begun)

    def read(self, line: str) -> None:
        """Process one line of the output of ``docker build --progress plain``."""
        if match := _BEGUN.match(line):
            self._begun.add(match[1])
        elif match := _CACHED.fullmatch(line):
            self._begun.discard(match[1])
