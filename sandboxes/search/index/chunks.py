"""Split a source file into chunks: by definitions if the language has a parser, otherwise by windows of lines."""

import ast
import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

LONGEST = 120
"""Maximum lines of a chunk. A longer definition becomes several chunks of the same name."""

LONGEST_NAME = 128
"""Maximum characters of each part of a name. A hostile name can be as long as its file."""

WINDOW = 40
"""Maximum lines of a chunk outside definitions."""

_DEFINITION = re.compile(r"([ \t]*)(?:async[ \t]+def|def|class)[ \t]+(\w{1,128})")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines ``first`` to ``last`` of a file, counted from 1. ``name`` is dotted; empty outside definitions."""

    first: int
    last: int
    name: str


@dataclass(frozen=True, slots=True)
class Span:
    """A definition as a parser reports it. Nested definitions follow the enclosing one, in file order."""

    first: int
    last: int
    name: str


Outline = Callable[[str, Sequence[str]], Iterable[Span] | None]
"""Returns the definitions of a file from its text and lines; None if the file cannot be parsed as that language."""


def cut(text: str, lines: Sequence[str], outlines: Sequence[Outline]) -> list[Chunk]:
    """Split a file into chunks in order, by the first outline that can parse it. Every line with a word is in one
    chunk.
    """
    for outline in outlines:
        spans = outline(text, lines)
        if spans is not None:
            return list(_chunks(spans, lines))
    return list(_chunks((), lines))


def python_outline(text: str, lines: Sequence[str]) -> list[Span] | None:
    """Return functions, classes and members of classes. None if ``text`` is invalid or too hard to parse; it is
    hostile.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in the text
            spans: list[Span] = []
            _python_spans(ast.parse(text).body, "", spans)
            return spans
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _python_spans(body: Sequence[ast.stmt], within: str, spans: list[Span]) -> None:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = within + node.name[:LONGEST_NAME]
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            spans.append(Span(first, node.end_lineno or node.lineno, name))
            if isinstance(node, ast.ClassDef) and within.count(".") < 8:
                _python_spans(node.body, f"{name}.", spans)
        elif isinstance(node, ast.If | ast.Try):
            _python_spans([*node.body, *node.orelse], within, spans)


def indented_outline(text: str, lines: Sequence[str]) -> list[Span]:
    """Outline Python by its indentation alone: for text that ``ast`` rejects, such as a half-edited file."""
    spans: list[Span] = []
    open_: list[tuple[int, int, str]] = []

    def close(indent: int, last: int) -> None:
        while open_ and open_[-1][0] >= indent:
            _, first, name = open_.pop()
            spans.append(Span(first, last, name))

    for number, line in enumerate(lines, 1):
        found = _DEFINITION.match(line)
        if found is None:
            if line[:1] not in ("", " ", "\t", "#", ")", "]", "}"):
                close(0, number - 1)
            continue
        indent = len(found[1].expandtabs())
        close(indent, number - 1)
        if len(open_) < 8:
            open_.append((indent, number, f"{open_[-1][2]}.{found[2]}" if open_ else found[2]))
    close(0, len(lines))
    return sorted(spans, key=lambda span: (span.first, -span.last))


def _chunks(spans: Iterable[Span], lines: Sequence[str]) -> Iterator[Chunk]:
    """Assign each line to its innermost definition, and a comment directly above a definition to that definition."""
    starts: list[tuple[int, str]] = [(1, "")]
    around: list[Span] = []
    for span in spans:
        while around and around[-1].last < span.first:
            starts.append((around.pop().last + 1, around[-1].name if around else ""))
        first = min(span.first, len(lines))
        while first - 1 > starts[-1][0] and _is_comment(lines[first - 2]):
            first -= 1
        starts.append((first, span.name))
        around.append(span)
    while around:
        starts.append((around.pop().last + 1, around[-1].name if around else ""))
    ends = [first - 1 for first, _ in starts[1:]] + [len(lines)]
    filled = [number for number, line in enumerate(lines, 1) if line.strip()]
    for (first, name), last in zip(starts, ends, strict=True):
        for chunk in _windows(first, min(last, len(lines)), name, filled):
            if any(_WORD.search(line) for line in lines[chunk.first - 1 : chunk.last]):
                yield chunk


def _windows(first: int, last: int, name: str, filled: Sequence[int]) -> Iterator[Chunk]:
    """Split the lines from ``first`` to ``last`` into chunks, without empty lines at the ends."""
    longest = LONGEST if name else WINDOW
    while first <= last:
        at = bisect_left(filled, first)
        if at == len(filled) or filled[at] > last:
            return
        first = filled[at]
        # Cut into pieces of equal length, so that the last one is not very short.
        rest = last - first + 1
        count = -(-rest // longest)
        end = first + -(-rest // count) - 1
        yield Chunk(first, filled[bisect_left(filled, end + 1) - 1], name)
        first = end + 1


_WORD = re.compile(r"\w")


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith(("#", "//", "/*", "*"))
