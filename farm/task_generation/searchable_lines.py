"""Which changed lines somebody can find who has read what is wrong: code, not what a release changes by the way."""

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
_HASHES = re.compile(r"\s*#")
_SLASHES = re.compile(r"\s*(//|/\*|\*(\s|/|$))")
_SLASHED = re.compile(r".*\.(c|cc|cpp|cxx|h|hh|hpp|cs|java|[cm]?jsx?|[cm]?tsx?|go|rs|swift|kt|scala|php|s?css)")
"""Names of files whose comments begin so."""


def is_unfindable(path: str) -> bool:
    """Whether all of a file is metadata of its package, or made of something else."""
    name = posixpath.basename(path)
    return _METADATA.fullmatch(name) is not None or name.endswith(_CATALOGUES)


def changed_lines(path: str, old: bytes, new: bytes) -> list[tuple[int, int]] | None:
    """Ranges of lines of ``old``, from 1, that ``new`` lacks; of lines that are only added, those on both sides.

    Blank lines, comments and versions are left out, and what differs in nothing but these or white space. None where
    the two differ too much to tell.
    """
    # In Latin-1 every byte is something.
    before, after = (lines_of(content.decode("latin-1")) for content in (old, new))
    allowance = ComparisonBudget(MAX_COMPARISONS, per_diff=MAX_COMPARISONS)
    edits = find_edits(before, after, allowance)
    if allowance.left <= 0:
        return None
    comment = _SLASHES if _SLASHED.fullmatch(path) else _HASHES
    ranges: list[tuple[int, int]] = []
    for edit in edits:
        gone = _said(before, edit.old_from, edit.old_to, comment)
        come = _said(after, edit.new_from, edit.new_to, comment)
        if _squeezed(before, gone) == _squeezed(after, come):
            continue
        if not gone:
            ranges.append((max(1, edit.old_from), min(len(before), edit.old_to + 1)))
        for at in gone:
            if ranges and at > edit.old_from and ranges[-1][1] == at:
                ranges[-1] = (ranges[-1][0], at + 1)
            else:
                ranges.append((at + 1, at + 1))
    return [(first, last) for first, last in ranges if first <= last]


def _said(lines: Sequence[str], start: int, end: int, comment: re.Pattern[str]) -> list[int]:
    return [
        at
        for at in range(start, end)
        if lines[at].strip() and not comment.match(lines[at] + "\n") and not _VERSION.match(lines[at])
    ]


def _squeezed(lines: Sequence[str], numbers: Sequence[int]) -> str:
    return "".join("".join(lines[at].split()) for at in numbers)
