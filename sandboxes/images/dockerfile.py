"""Parse the instructions of a Dockerfile, and add mounts and build arguments to it for the build."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(\S.*)")
_INSTRUCTION = re.compile(r"^(\s*)([A-Za-z]+)(?=\s|$)")
_HEREDOC = re.compile(r"(?<!<)<<(-?)(['\"]?)([A-Za-z_][A-Za-z0-9_.]*)\2(?!<)")
_TAKES_HEREDOC = frozenset({"RUN", "COPY", "ADD"})


@dataclass(frozen=True, slots=True)
class Instruction:
    """One logical instruction. ``first`` and ``last`` are indices of its physical lines, heredoc bodies included."""

    name: str
    first: int
    last: int


def instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile in order, with names in upper case.

    Comments and blank lines are skipped.
    """
    lines = text.split("\n")
    escape = _escape(lines)
    line_index: _LineIndex | None = None
    index = 0
    while index < len(lines):
        match = _INSTRUCTION.match(lines[index])
        if match is None:
            index += 1
            continue
        name = match[2].upper()
        last = _end_of_continuation(lines, index, escape)
        if name in _TAKES_HEREDOC:
            words = _HEREDOC.findall(" ".join(lines[index : last + 1]))
            if words:
                line_index = line_index or _LineIndex(lines)
                last = line_index.end_of_heredocs(words, last)
        yield Instruction(name, index, last)
        index = last + 1


def bases(text: str) -> tuple[str, ...]:
    """Return the base images of a Dockerfile, without duplicates and without names that contain variables."""
    lines = text.split("\n")
    stages: set[str] = {"scratch"}
    found: dict[str, None] = {}
    for instruction in instructions(text):
        if instruction.name != "FROM":
            continue
        words = [word for word in lines[instruction.first].split()[1:] if not word.startswith("--")]
        if words and "$" not in words[0] and words[0].lower() not in stages:
            found[words[0]] = None
        if len(words) == 3 and words[1].lower() == "as":
            stages.add(words[2].lower())
    return tuple(found)


def grant(text: str, *, mounts: Sequence[str], arguments: Sequence[str]) -> str:
    """Add the ``--mount=`` specs in ``mounts`` to every ``RUN``, and declare ``arguments`` in every build stage.

    Continuations, heredocs, the JSON form, existing flags and ``ONBUILD RUN`` keep their meaning.
    """
    if not mounts and not arguments:
        return text
    lines = text.split("\n")
    flags = "".join(f" --mount={mount}" for mount in mounts)
    declarations = "".join(f"\nARG {name}" for name in arguments)
    for instruction in instructions(text):
        if instruction.name == "RUN":
            lines[instruction.first] = _INSTRUCTION.sub(rf"\g<0>{flags}", lines[instruction.first], count=1)
        elif instruction.name == "FROM":
            lines[instruction.last] += declarations
    return "\n".join(lines)


def _escape(lines: Sequence[str]) -> str:
    """Return the escape character. Parser directives are at the very top and end at the first other line."""
    for line in lines:
        directive = _DIRECTIVE.fullmatch(line.strip())
        if directive is None:
            break
        if directive[1].lower() == "escape":
            return directive[2]
    return "\\"


def _end_of_continuation(lines: Sequence[str], index: int, escape: str) -> int:
    while lines[index].rstrip().endswith(escape) and index + 1 < len(lines):
        index += 1
        while _is_skipped(lines[index]) and index + 1 < len(lines):
            index += 1
    return index


def _is_skipped(line: str) -> bool:
    """Return whether Docker skips the line inside a continuation: it is blank or a comment."""
    return not line.strip() or line.lstrip().startswith("#")


class _LineIndex:
    """The line numbers of each text, so that finding the end of a heredoc takes a lookup instead of a search."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._exact: dict[str, list[int]] = {}
        self._untabbed: dict[str, list[int]] = {}
        for number, line in enumerate(lines):
            self._exact.setdefault(line, []).append(number)
            self._untabbed.setdefault(line.lstrip("\t"), []).append(number)

    def end_of_heredocs(self, words: Sequence[tuple[str, str, str]], last: int) -> int:
        """Return the line that ends the last heredoc of ``words``, the matches of _HEREDOC in the lines up
        to ``last``.
        """
        for dash, _, word in words:
            line_index = (self._untabbed if dash else self._exact).get(word, [])
            following = bisect_right(line_index, last)
            if following < len(line_index):
                last = line_index[following]
        return last
