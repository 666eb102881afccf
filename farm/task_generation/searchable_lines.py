"""Find the changed lines that a reader of the issue can search for: code, without what every release changes."""

import posixpath
import re
from collections.abc import Sequence

from farm.grading.diff.line_diff import MAX_COMPARISONS, ComparisonBudget, find_edits
from farm.grading.diff.patch import lines_of

_METADATA = re.compile(
    r"_*(meta|about|version|release|pkg_?info)_*\.\w+|PKG-INFO|setup\.(py|cfg)|pyproject\.toml", re.I
)
_CATALOGUES = (".po", ".pot", ".mo", ".lock")
_VERSION = re.compile(
    r"__(version|version_info|date|author|credits|copyright|license)__\s*(:[^=]+)?=|_?version(_info)?\s*=\s*['\"(\[]",
    re.I,
)
_HASH_COMMENT = re.compile(r"\s*#")
_SLASH_COMMENT = re.compile(r"\s*(//|/\*|\*(\s|/|$))")
_SLASH_LANGUAGES = re.compile(r".*\.(c|cc|cpp|cxx|h|hh|hpp|cs|java|[cm]?jsx?|[cm]?tsx?|go|rs|swift|kt|scala|php|s?css)")
"""File names of languages whose comments begin with slashes."""


def is_unfindable(path: str) -> bool:
    """Return whether a file is only package metadata or generated."""
    name = posixpath.basename(path)
    return _METADATA.fullmatch(name) is not None or name.endswith(_CATALOGUES)


def changed_lines(path: str, old: bytes, new: bytes) -> list[tuple[int, int]] | None:
    """Return ranges of lines of ``old``, counted from 1, that ``new`` lacks; for lines only added, those around them.

    Blank lines, comments and versions are left out, and so are edits of white space alone. Returns None if the two
    differ too much to compare.
    """
    # Latin-1 decodes every byte.
    before, after = (lines_of(content.decode("latin-1")) for content in (old, new))
    budget = ComparisonBudget(MAX_COMPARISONS, per_diff=MAX_COMPARISONS)
    edits = find_edits(before, after, budget)
    if budget.left <= 0:
        return None
    comment = _SLASH_COMMENT if _SLASH_LANGUAGES.fullmatch(path) else _HASH_COMMENT
    ranges: list[tuple[int, int]] = []
    for edit in edits:
        removed = _code_lines(before, edit.old_from, edit.old_to, comment)
        added = _code_lines(after, edit.new_from, edit.new_to, comment)
        if _without_spaces(before, removed) == _without_spaces(after, added):
            continue
        if not removed:
            ranges.append((max(1, edit.old_from), min(len(before), edit.old_to + 1)))
        for number in removed:
            if ranges and number > edit.old_from and ranges[-1][1] == number:
                ranges[-1] = (ranges[-1][0], number + 1)
            else:
                ranges.append((number + 1, number + 1))
    return [(first, last) for first, last in ranges if first <= last]


def _code_lines(lines: Sequence[str], start: int, end: int, comment: re.Pattern[str]) -> list[int]:
    """Return the numbers of the lines, counted from 0, that are code."""
    return [
        number
        for number in range(start, end)
        if lines[number].strip() and not comment.match(lines[number] + "\n") and not _VERSION.match(lines[number])
    ]


def _without_spaces(lines: Sequence[str], numbers: Sequence[int]) -> str:
    return "".join("".join(lines[number].split()) for number in numbers)
