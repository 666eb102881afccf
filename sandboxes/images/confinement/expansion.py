"""Bound the text that the engine makes of a Dockerfile's variables: each reference may double a value."""

import re
from collections.abc import Iterator

from sandboxes.images.confinement.instruction_words import split

EXPANDED = frozenset(
    {"ADD", "ARG", "COPY", "ENV", "EXPOSE", "LABEL", "ONBUILD", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)
"""The instructions in which the engine replaces variables. ``FROM`` is read on its own."""
MAX_VARIABLE_CHARS = 128 << 10
"""The longest variable that the kernel passes to a program."""
MAX_VARIABLES_CHARS = 1 << 20
MAX_EXPANDED_CHARS = 2 << 20
_UNKNOWN_CHARS = 1 << 10
"""Assumed for a variable of the base image."""
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(/[^}]*)?|([A-Za-z_]\w*))")


class TooLong(ValueError):
    """The variables of a Dockerfile become too long."""


class ExpansionBound:
    """Upper bounds of the variables of a Dockerfile, by name."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._variables = 0
        self._expanded = 0

    def add(self, name: str, rest: str, escape: str) -> None:
        """Add the instruction ``name`` with its words. Raises TooLong."""
        if name not in EXPANDED:
            return
        size = self._bound(rest)
        self._expanded += size
        if self._expanded > MAX_EXPANDED_CHARS:
            raise TooLong(f"with its variables replaced the file has more than {MAX_EXPANDED_CHARS} characters")
        if name not in ("ARG", "ENV"):
            return
        self._variables += size
        if self._variables > MAX_VARIABLES_CHARS:
            raise TooLong(f"its variables have more than {MAX_VARIABLES_CHARS} characters together")
        for variable, value in _pairs(rest, escape):
            self._sizes[variable] = max(self._sizes.get(variable, 0), self._bound(value))
            if self._sizes[variable] > MAX_VARIABLE_CHARS:
                raise TooLong(f"the variable {variable[:50]} has more than {MAX_VARIABLE_CHARS} characters")

    def _bound(self, text: str) -> int:
        size = len(text)
        for found in _REFERENCE.finditer(text):
            replacement = found[2] or ""  # what ``${NAME/PATTERN/REPLACEMENT}`` may put in place of each character
            size += self._sizes.get(found[1] or found[3], _UNKNOWN_CHARS) * max(1, len(replacement))
        return size


def _pairs(rest: str, escape: str) -> Iterator[tuple[str, str]]:
    """Yield the variables of an instruction with their values, in each form that the engine reads."""
    flags, words = split(rest, escape)
    for word in (*flags, *words):
        name, equals, value = word.partition("=")
        if equals:
            yield name, value
    if words and "=" not in words[0]:
        yield words[0], rest
