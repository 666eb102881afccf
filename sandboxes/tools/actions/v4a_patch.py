"""Parse and apply patches in the V4A format, as pure functions.

    *** Begin Patch
    *** Add File: new.py
    +its lines
    *** Delete File: old.py
    *** Update File: a.py
    *** Move to: b.py
    @@ class A:
     a context line
    -a removed line
    +an added line
    *** End of File
    *** End Patch

Syntax and placement of hunks follow the public ``codex-rs/apply-patch``: white space around markers is ignored, the
first hunk may lack its ``@@``, and lines are matched exactly, then without trailing white space, then without leading
and trailing white space, then with plain quotes, dashes and spaces in place of typographic ones. Unlike there, context
lines keep their bytes, and a last context line without a line end stays without one.

A text is the result of ``text_edits.decode``. An added line takes the line end of the file's first line.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from sandboxes.tools.actions.text_edits import EditRefused, not_found
from sandboxes.tools.rendering import shown_line, shown_name

_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_ADD, _DELETE, _UPDATE = "*** Add File: ", "*** Delete File: ", "*** Update File: "
_MOVE, _END_OF_FILE = "*** Move to: ", "*** End of File"
_HEREDOCS = ("<<EOF", "<<'EOF'", '<<"EOF"')
_BOM = "\ufeff"
_LONGEST_PATH = 4096
_WHITE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
"""Unicode's White_Space. Python's ``str.strip`` without arguments removes four more characters."""
_WHITE += "\u2028\u2029\u202f\u205f\u3000"
"""Unicode's White_Space. What Python strips of itself has four more."""
_PLAIN = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u2018\u2019\u201a\u201b", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | dict.fromkeys("\xa0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " ")
)
_LENIENCIES: tuple[Callable[[str], str], ...] = (
    lambda line: line,
    lambda line: line.rstrip(_WHITE),
    lambda line: line.strip(_WHITE),
    lambda line: line.strip(_WHITE).translate(_PLAIN),
)
MOST_LINES = 262_144
"""Maximum lines of a patch and of an updated file: the data kept for a line takes far more memory than the line."""
_MAX_CHARS_READ = 64 * 1024 * 1024


Line = tuple[str, str]
"""In a hunk: ``" "``, ``"-"`` or ``"+"``, and a text. In a file: a text, and the line end that follows it."""


class V4aError(Exception):
    """A text that is not a V4A patch. The message is for the policy and names the line."""


@dataclass(frozen=True, slots=True)
class V4aHunk:
    """One hunk. ``header`` is a line of the file that precedes ``lines``.

    ``at_end``: the old lines are the last lines of the file. ``number`` is the first line of the hunk in the patch,
    from 1.
    """

    header: str | None
    lines: tuple[Line, ...]
    at_end: bool
    number: int


@dataclass(frozen=True, slots=True)
class V4aAdd:
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class V4aDelete:
    path: str


@dataclass(frozen=True, slots=True)
class V4aUpdate:
    path: str
    move_to: str | None
    hunks: tuple[V4aHunk, ...]


Section = V4aAdd | V4aDelete | V4aUpdate


def parse_patch(text: str) -> tuple[Section, ...]:
    """Parse a patch into its sections, at least one. Raises V4aError."""
    if text.count("\n") > MOST_LINES:
        raise V4aError(f"the patch has more than {MOST_LINES:,} lines: make several of it")
    lines = [line.removesuffix("\r") for line in text.strip(_WHITE).split("\n")]
    before = 0
    if lines[0] in _HEREDOCS and lines[-1].endswith("EOF") and len(lines) >= 4:
        lines, before = lines[1:-1], 1
    if lines[0].strip(_WHITE) != _BEGIN:
        raise V4aError(f'the first line of a patch is "{_BEGIN}", not "{_shown(lines[0])}"')
    if len(lines) < 2 or lines[-1].strip(_WHITE) != _END:
        raise V4aError(f'the last line of a patch is "{_END}", not "{_shown(lines[-1])}"')
    sections = tuple(_sections(lines[:-1], before))
    if not sections:
        raise V4aError("the patch has no section: it changes no file")
    return sections


def _sections(lines: Sequence[str], before: int) -> Iterator[Section]:
    """Parse the sections. ``before`` is the number of lines of the original text before ``lines``, for line numbers."""
    at = 1
    while at < len(lines):
        header, at = lines[at].strip(_WHITE), at + 1
        if header.startswith(_ADD):
            end = next((i for i in range(at, len(lines)) if not lines[i].startswith("+")), len(lines))
            yield V4aAdd(_path(header, _ADD, at + before), "".join(f"{line[1:]}\n" for line in lines[at:end]))
            at = end
        elif header.startswith(_DELETE):
            yield V4aDelete(_path(header, _DELETE, at + before))
        elif header.startswith(_UPDATE):
            path, move_to, number = _path(header, _UPDATE, at + before), None, at + before
            if at < len(lines) and lines[at].startswith(_MOVE):
                move_to, at = _path(lines[at], _MOVE, at + 1 + before), at + 1
            hunks, at = _hunks(lines, at, before)
            if not hunks:
                raise V4aError(f"line {number}: the update of {shown_name(path)} has no hunk")
            yield V4aUpdate(path, move_to, tuple(hunks))
        else:
            markers = ", ".join(f'"{marker}PATH"' for marker in (_ADD, _DELETE, _UPDATE))
            raise V4aError(f'line {at + before}: "{_shown(header)}" begins no section; one begins with {markers}')


def _path(line: str, marker: str, number: int) -> str:
    path = line.removeprefix(marker).strip(_WHITE)
    if not path or len(path) > _LONGEST_PATH or "\0" in path:
        raise V4aError(f'line {number}: "{_shown(path)}" is no path')
    return path


def _hunks(lines: Sequence[str], at: int, before: int) -> tuple[list[V4aHunk], int]:
    """Parse the hunks of an update from index ``at`` on; return them and the index after the last."""
    hunks: list[V4aHunk] = []
    while at < len(lines) and not lines[at].startswith("*"):
        if not lines[at].strip(_WHITE):
            at += 1
            continue
        hunk, at = _hunk(lines, at, before, first=not hunks)
        hunks.append(hunk)
    return hunks, at


def _hunk(lines: Sequence[str], at: int, before: int, *, first: bool) -> tuple[V4aHunk, int]:
    header, number = None, at + 1 + before
    if lines[at] == "@@" or lines[at].startswith("@@ "):
        header, at = lines[at][3:] or None, at + 1
    elif not first:
        raise V4aError(f'line {number}: a hunk begins with "@@", not "{_shown(lines[at])}"')
    found: list[Line] = []
    at_end = False
    while at < len(lines) and not at_end:
        line = lines[at]
        if line == _END_OF_FILE and found:
            at_end = True
        elif line[:1] in ("", " ", "-", "+"):
            found.append((line[:1] or " ", line[1:]))
        elif found:
            break
        else:
            message = f'"{_shown(line)}" in a hunk begins neither with a space nor with - or +'
            raise V4aError(f"line {at + 1 + before}: {message}")
        at += 1
    if not found:
        raise V4aError(f"line {number}: the hunk has no lines")
    return V4aHunk(header, tuple(found), at_end, number), at


def _shown(line: str) -> str:
    return shown_line(line[:100])


def apply_patch(sections: Sequence[Section], texts: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the new text of each file that a patch changes; None for removed files.

    ``texts`` holds every path that ``sections`` name; None if there is no file. Sections apply one after the other.
    Raises EditRefused, whose message begins with the path.
    """
    changed: dict[str, str | None] = {}
    work = 0
    for section in sections:
        match section:
            case V4aAdd(path, text):
                changed[path] = text
            case V4aDelete(path):
                _existing_text(path, changed, texts)
                changed[path] = None
            case V4aUpdate(path, move_to, hunks):
                text = _existing_text(path, changed, texts)
                work += len(hunks) * len(text)
                try:
                    if work > _MAX_CHARS_READ:
                        raise EditRefused("the patch has too many hunks for files of this size: make several of it")
                    edited = update(text, hunks)
                except EditRefused as refusal:
                    raise EditRefused(f"{shown_name(path)}: {refusal}") from None
                if move_to is not None:
                    changed[path] = None
                changed[path if move_to is None else move_to] = edited
    return changed


def _existing_text(path: str, changed: Mapping[str, str | None], texts: Mapping[str, str | None]) -> str:
    text = changed[path] if path in changed else texts[path]
    if text is None:
        raise EditRefused(f"{shown_name(path)}: there is no such file")
    return text


def update(text: str, hunks: Sequence[V4aHunk]) -> str:
    """Apply ``hunks`` to ``text`` from top to bottom.

    Raises EditRefused, which names the hunk and the nearest lines.
    """
    if text.count("\n") > MOST_LINES:
        raise EditRefused(f"has more than {MOST_LINES:,} lines; change it with a program")
    mark = _BOM if text.startswith(_BOM) else ""
    rows = _split_lines(text.removeprefix(_BOM))
    file = _SearchableLines([body for body, _ in rows])
    changes: list[tuple[int, Sequence[Line]]] = []
    at = 0
    for index, hunk in enumerate(hunks, 1):
        try:
            if hunk.header is not None:
                at = _after_header(file, hunk.header, at)
            start, lines = _locate(file, hunk, at)
        except EditRefused as refusal:
            raise EditRefused(f"hunk {index} of {len(hunks)} (line {hunk.number} of the patch): {refusal}") from None
        changes.append((start, lines))
        at = start + len(_old(lines)) if _old(hunk.lines) else at
    return mark + _apply_changes(rows, sorted(changes, key=lambda change: change[0]))


def _split_lines(text: str) -> list[Line]:
    """Split text into lines and their line ends."""
    *whole, rest = text.split("\n")
    rows = [(line[:-1], "\r\n") if line.endswith("\r") else (line, "\n") for line in whole]
    return [*rows, (rest, "")] if rest else rows


class _SearchableLines:
    """The lines of a file, indexed for searches: each search is linear in the size of the file."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self._prepared: dict[int, tuple[str, list[int]]] = {}

    def seek(self, wanted: Sequence[str], start: int, *, at_end: bool = False) -> int | None:
        """Return the first index from ``start`` on at which ``wanted`` matches, by the strictest leniency that matches
        anywhere.

        ``at_end``: compare only the last lines, regardless of ``start``.
        """
        if not wanted:
            return start
        first = len(self.lines) - len(wanted) if at_end else start
        if not 0 <= first <= len(self.lines) - len(wanted):
            return None
        for level, lenient in enumerate(_LENIENCIES):
            text, starts = self._normalized(level)
            found = text.find("\n".join(["", *map(lenient, wanted), ""]), starts[first])
            if found >= 0:
                return bisect_left(starts, found)
        return None

    def _normalized(self, level: int) -> tuple[str, list[int]]:
        """Return all lines under a leniency as one text, each between line ends, and the offset of the line end before
        each.
        """
        if level not in self._prepared:
            lines = [_LENIENCIES[level](line) for line in self.lines]
            starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
            self._prepared[level] = "\n".join(["", *lines, ""]), starts
        return self._prepared[level]


def _old(lines: Sequence[Line]) -> list[str]:
    return [text for sign, text in lines if sign != "+"]


def _after_header(file: _SearchableLines, header: str, at: int) -> int:
    found = file.seek([header], at)
    if found is not None:
        return found + 1
    where, above = f" after line {at}" if at else "", file.seek([header], 0)
    hint = not_found("\n".join(file.lines), header, "it") if above is None else f"it is line {above + 1}"
    raise EditRefused(f'"@@ {_shown(header)}": what follows @@ must be a whole line of the file{where}; {hint}')


def _locate(file: _SearchableLines, hunk: V4aHunk, at: int) -> tuple[int, Sequence[Line]]:
    """Return the index of the line where a hunk applies, at ``at`` or later, and the lines to apply there."""
    lines: Sequence[Line] = hunk.lines
    old = _old(lines)
    if not old:  # only additions: place them at the end, before an empty last line
        return len(file.lines) - bool(file.lines and not file.lines[-1]), lines
    found = file.seek(old, at, at_end=hunk.at_end)
    if found is None and not old[-1]:  # the empty last line may stand for the file's last line end
        lines = _drop_last_empty(lines)
        found = file.seek(old[:-1], at, at_end=hunk.at_end)
    if found is None:
        raise EditRefused(_mismatch_reason(file, old, at, hunk.at_end))
    return found, lines


def _drop_last_empty(lines: Sequence[Line]) -> Sequence[Line]:
    """Drop the last old line, which is empty, and the last new line if it is empty too."""
    last = max(index for index, (sign, _) in enumerate(lines) if sign != "+")
    kept = [*lines[:last], *lines[last + 1 :]]
    if lines[last][0] == "-" and kept and kept[-1] == ("+", ""):
        kept.pop()
    return kept


def _mismatch_reason(file: _SearchableLines, old: Sequence[str], at: int, at_end: bool) -> str:
    there = file.seek(old, 0)
    if there is not None and at_end:
        return f'its lines are at line {there + 1}, not at the end of the file as "{_END_OF_FILE}" says'
    if there is not None:
        return f"its lines are at line {there + 1}, above line {at + 1}: hunks go from top to bottom"
    return not_found("\n".join(file.lines), "\n".join(old), "what its lines expect")


def _apply_changes(rows: Sequence[Line], changes: Sequence[tuple[int, Sequence[Line]]]) -> str:
    """Apply the changes and return the new text. A missing final line end stays missing if that line stays the last."""
    usual = next((end for _, end in rows if end), "\n")
    new: list[Line] = []
    at = 0
    for start, lines in changes:
        new += rows[at:start]
        at = max(at, start)
        for sign, text in lines:
            if sign == "+":
                new.append((text, usual))
            else:
                new += [rows[at]] if sign == " " else []
                at += 1
    new += rows[at:]
    return "".join(body + (end or usual) for body, end in new[:-1]) + "".join(body + end for body, end in new[-1:])
