"""Edits of a text file as pure functions: what an edit does not name keeps its bytes.

A file's text is its bytes decoded as UTF-8 with ``surrogateescape``, so that latin-1 bytes, a byte order mark, CR LF
line ends and a missing final newline come out as they went in. Lines end at LF; a CR before it belongs to the line end.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sandboxes.tools.rendering import shown_line

_MOST_PLACES = 20
_MOST_REPLACED = 100_000
_LONGEST = 16 * 1024 * 1024
_MOST_WORK = 32 * 1024 * 1024
"""Of one call: characters read in all its edits, a second or two of them at the worst."""
_WORK_OF_A_PLACE = 64
_BOM = "\ufeff"
_STRAY = re.compile("[\udc80-\udcff]")
_NUMBERED = re.compile(r"\s*\d+\t")


class EditRefused(Exception):
    """The edit does not fit the file; the message is for the policy."""


@dataclass(frozen=True, slots=True)
class EditedText:
    """The new text and the lines (from 1, inclusive) that the edit wrote; ``last < first`` where it only removed.

    ``at`` is the offset of the first place. ``places``: at how many it did.
    """

    text: str
    first: int
    last: int
    at: int
    places: int = 1


@dataclass(frozen=True, slots=True)
class Replacement:
    """What ``replace`` is asked for."""

    old: str
    new: str
    everywhere: bool = False


def decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def lines_of(text: str) -> list[str]:
    """The lines as a person sees them: without line ends, without a byte order mark."""
    return _lines(text.removeprefix(_BOM))


def count_lines(text: str) -> int:
    """How many ``lines_of`` gives."""
    text = text.removeprefix(_BOM)
    return text.count("\n") + bool(text and not text.endswith("\n"))


def lines_around(edited: EditedText, margin: int) -> tuple[int, list[str]]:
    """The lines that were written with ``margin`` on either side; before them the number of their first."""
    text, start = edited.text, edited.text.rfind("\n", 0, edited.at) + 1
    for _ in range(margin):
        start = text.rfind("\n", 0, max(0, start - 1)) + 1
    first = text.count("\n", 0, start) + 1
    most = max(edited.first, edited.last) + margin + 1 - first
    return first, _lines(text[start:] if start else text.removeprefix(_BOM), most)


def _lines(text: str, most: int = -1) -> list[str]:
    lines = text.split("\n", most)
    if len(lines) == most + 1 or not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def line_end(text: str) -> str:
    """The line end that most lines have."""
    return "\r\n" if _has_crlf(text) and 2 * text.count("\r\n") > text.count("\n") else "\n"


def _has_crlf(text: str) -> bool:
    return "\r" in text and "\r\n" in text  # one character is found a hundred times as fast as two


def replace(
    text: str, old: str, new: str, *, everywhere: bool = False, names: tuple[str, str] = ("old_str", "new_str")
) -> EditedText:
    """Put ``new`` for the one place where ``old`` occurs, or ``everywhere`` for each, from the left and none within
    another. Raises EditRefused where there is none, or more than the one; ``names`` is what the policy calls the two.

    In a text with CR LF line ends, LF in ``old`` stands for either, and ``new`` takes the end that most lines have.
    """
    if not old:
        raise EditRefused(f"{names[0]} is empty: give the text to replace")
    if old == new:
        raise EditRefused(f"{names[0]} and {names[1]} are the same: nothing to change")
    flat = text
    if _has_crlf(text):
        flat = text.replace("\r\n", "\n")
        old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n").replace("\n", line_end(text))
    if everywhere:
        _check_room(flat, old, new)
    places = _apart(flat, old) if everywhere else _places(flat, old)
    if not places:
        raise EditRefused(not_found(text, old, names[0]))
    if len(places) > 1 and not everywhere:
        lines = dict.fromkeys(flat.count("\n", 0, place) + 1 for place in places[:_MOST_PLACES])
        numbers = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
        many = f"more than {_MOST_PLACES}" if len(places) > _MOST_PLACES else str(len(places))
        raise EditRefused(f"{names[0]} occurs {many} times, at {numbers}: give more of the text around the one meant")
    pieces, done = list[str](), 0
    bounds = (at for place in places for at in (place, place + len(old)))
    offsets = bounds if flat is text else _originals(text, bounds)
    for start, end in zip(offsets, offsets, strict=True):
        pieces += (text[done:start], new)
        done = end
    first, edited = flat.count("\n", 0, places[0]) + 1, "".join(pieces)
    last = first - 1 + edited.count("\n", len(pieces[0])) + (not new.endswith("\n"))
    last = last if new or len(places) > 1 else first - 1
    return EditedText(edited + text[done:], first, last, len(pieces[0]), len(places))


def replace_each(
    text: str, changes: Sequence[Replacement], *, names: tuple[str, str] = ("old_str", "new_str")
) -> EditedText:
    """``replace`` one after the other, each in what the one before left: all of them or, with EditRefused, none."""
    edited, places, work = text, 0, 0
    for number, change in enumerate(changes, 1):
        work += len(edited)
        try:
            if work + _WORK_OF_A_PLACE * places > _MOST_WORK:
                raise EditRefused("the edits are too many for a file of this size: make fewer of them in one call")
            done = replace(edited, change.old, change.new, everywhere=change.everywhere, names=names)
        except EditRefused as refusal:
            raise EditRefused(f"edit {number} of {len(changes)}, so none was made: {refusal}") from None
        edited, places = done.text, places + done.places
    before, after = lines_of(text), lines_of(edited)
    most = min(len(before), len(after))
    same = next((i for i in range(most) if before[i] != after[i]), most)
    rest = next((i for i in range(most - same) if before[-1 - i] != after[-1 - i]), most - same)
    return EditedText(edited, same + 1, len(after) - rest, _offset(edited, same), places)


def _originals(text: str, offsets: Iterator[int]) -> Iterator[int]:
    """Where in ``text`` its ``offsets`` with LF for CR LF are, which ascend; at a line end, before its CR."""
    seen = dropped = 0
    for at in offsets:
        while (end := at + dropped) > seen:
            dropped += text.count("\r\n", seen, end + 1)
            seen = end
        yield at + dropped


def _places(text: str, part: str) -> list[int]:
    """Where ``part`` occurs, overlaps included; the search ends past the ``_MOST_PLACES``."""
    places = list[int]()
    at = text.find(part)
    while at >= 0 and len(places) <= _MOST_PLACES:
        places.append(at)
        at = text.find(part, at + 1)
    return places


def _check_room(text: str, old: str, new: str) -> None:
    count = text.count(old)
    if count > _MOST_REPLACED or len(text) + count * (len(new) - len(old)) > _LONGEST:
        raise EditRefused(
            f"{count:,} places are too many for one edit, or would make the file too large; use bash (sed)"
        )


def _apart(text: str, part: str) -> list[int]:
    """Where ``part`` occurs, counted from the left, none within another."""
    places, at = list[int](), text.find(part)
    while at >= 0:
        places.append(at)
        at = text.find(part, at + len(part))
    return places


def insert(text: str, line: int, addition: str) -> EditedText:
    """Put ``addition`` as whole lines after line ``line``; 0 is before the first. Raises EditRefused past the end.

    It takes the line end that most lines have. A missing final newline stays missing where ``addition`` has none.
    """
    count = count_lines(text)
    if not 0 <= line <= count:
        raise EditRefused(f"insert_line is {line}, but the file has {_counted(count)}: give 0 to {count}")
    end = line_end(text)
    if _has_crlf(text):
        addition = addition.replace("\r\n", "\n").replace("\n", end)
    open_end = bool(text.removeprefix(_BOM)) and not text.endswith("\n")
    if open_end and line == count:
        return _inserted(text + end, line, addition, "")
    if not addition.endswith("\n"):
        addition += end
    at = _offset(text, line)
    return _inserted(text[:at], line, addition, text[at:])


def _inserted(before: str, line: int, addition: str, after: str) -> EditedText:
    last = line + max(1, addition.count("\n") + (0 if addition.endswith("\n") else 1))
    return EditedText(before + addition + after, line + 1, last, len(before))


def _offset(text: str, line: int) -> int:
    """Where the line after the first ``line`` ones begins, or the text ends."""
    at = len(_BOM) if text.startswith(_BOM) else 0
    for _ in range(line):
        at = text.find("\n", at) + 1 or len(text)
    return at


def _counted(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines} lines"


def not_found(text: str, old: str, name: str) -> str:
    """Why ``old`` is not in ``text``, as far as that can be told, with the lines that come nearest."""
    wanted = old.split("\n")
    filled = [line for line in wanted if line.strip()]
    if filled and all(_NUMBERED.match(line) for line in filled):
        return f"{name} does not occur: it seems to carry the line numbers that view prints; leave them out"
    if "\r\n" in old and "\r\n" not in text:
        return f"{name} does not occur: it has CR LF line ends, the file has LF"
    lines = lines_of(text)
    at = _nearest(lines, wanted)
    if at is None:
        return f"{name} does not occur in the file, and no line resembles its first one"
    window = lines[at : at + min(len(wanted), 8)]
    space = "".join(old.split()) == "".join("\n".join(lines[at : at + len(wanted)]).split())
    reason = "but for white space it is at" if space else "the nearest is at"
    shown = "\n".join(f"{at + i + 1:6}\t{shown_line(line[:500])}" for i, line in enumerate(window))
    stray = "; bytes that are no UTF-8 are shown as \\x.. and cannot be given" if _STRAY.search("".join(window)) else ""
    return f"{name} does not occur; {reason} line {at + 1}{stray}:\n{shown}"


def _nearest(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Index of the line where ``wanted`` best begins: words in common choose candidates, likeness decides."""
    lead = next((i for i, line in enumerate(wanted) if line.strip()), None)
    if lead is None:
        return None
    words = set(re.findall(r"\w+", wanted[lead][:200]))
    common = ((len(words & set(re.findall(r"\w+", line[:200]))), -i) for i, line in enumerate(lines[:20_000]))
    best, found = 0.5, None
    for shared, negative in sorted(common, reverse=True)[:5]:
        at = -negative - lead
        if not shared or at < 0:
            continue
        pairs = list(zip(lines[at : at + 8], wanted[:8], strict=False))
        score = sum(_likeness(mine, theirs) for mine, theirs in pairs) / len(pairs)
        if score > best:
            best, found = score, at
    return found


def _likeness(one: str, other: str) -> float:
    if one == other:
        return 1.0
    return difflib.SequenceMatcher(None, one.strip()[:100], other.strip()[:100], autojunk=False).ratio()
