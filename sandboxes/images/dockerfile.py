"""Rewriting a Dockerfile for the build only: what each ``RUN`` is given, and nothing else touched."""

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
    """The instructions of a Dockerfile in order; names in upper case. Comments and blank lines belong to none."""
    lines = text.split("\n")
    escape = _escape(lines)
    places: _Places | None = None
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
                places = places or _Places(lines)
                last = places.end_of_heredocs(words, last)
        yield Instruction(name, index, last)
        index = last + 1


def bases(text: str) -> tuple[str, ...]:
    """The images that a Dockerfile builds on, each once; what only the build can tell (``FROM $BASE``) is left out."""
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
    """Give every ``RUN`` the ``--mount=`` specs in ``mounts``, and declare ``arguments`` in every build stage.

    Continuations, heredocs, the JSON form, flags already there and ``ONBUILD RUN`` keep their meaning. A Dockerfile
    is returned as it was when there is nothing to grant.
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
    """The escape character: directives stand at the very top, and the first other line ends them."""
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
        while _between(lines[index]) and index + 1 < len(lines):
            index += 1
    return index


def _between(line: str) -> bool:
    """Blank lines and comments inside a continuation are skipped by Docker, and do not end it."""
    return not line.strip() or line.lstrip().startswith("#")


class _Places:
    """The line numbers of each text, so that the end of a heredoc is looked up and never searched for."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._exact: dict[str, list[int]] = {}
        self._untabbed: dict[str, list[int]] = {}
        for number, line in enumerate(lines):
            self._exact.setdefault(line, []).append(number)
            self._untabbed.setdefault(line.lstrip("\t"), []).append(number)

    def end_of_heredocs(self, words: Sequence[tuple[str, str, str]], last: int) -> int:
        """The line that ends the last heredoc of ``words``, as _HEREDOC finds them in the lines up to ``last``."""
        for dash, _, word in words:
            places = (self._untabbed if dash else self._exact).get(word, [])
            following = bisect_right(places, last)
            if following < len(places):
                last = places[following]
        return last
