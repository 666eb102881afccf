"""Edit a text file by pure functions: bytes outside the edit stay as they are.

A file's text is its bytes decoded as UTF-8 with ``surrogateescape``, so that Latin-1 bytes, a byte order mark, CR LF
line ends and a missing final newline survive a round trip. Lines end at LF; a CR before it belongs to the line end.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sandboxes.tools.rendering import shown_line

_MAX_PLACES = 20
_MAX_REPLACED = 100_000
_MAX_CHARS = 16 * 1024 * 1024
_MAX_CHARS_READ = 32 * 1024 * 1024
"""Maximum characters that the edits of one call read; takes a second or two at worst."""
_CHARS_PER_PLACE = 64
_BOM = "\ufeff"
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_NUMBERED = re.compile(r"\s*\d+\t")


class EditRefused(Exception):
    """An edit that does not fit the file. The message is for the policy."""


@dataclass(frozen=True, slots=True)
class EditedText:
    """The new text and the lines (from 1, inclusive) that the edit wrote; ``last < first`` if the edit only removed
    text.

    ``at`` is the offset of the first place that changed. ``places`` is the number of places.
    """

    text: str
    first: int
    last: int
    at: int
    places: int = 1


@dataclass(frozen=True, slots=True)
class Replacement:
    """The arguments of one ``replace``."""

    old: str
    new: str
    everywhere: bool = False


def decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def lines_of(text: str) -> list[str]:
    """Split text into lines, without line ends and byte order mark."""
    return _lines(text.removeprefix(_BOM))


def count_lines(text: str) -> int:
    """Return the number of lines that ``lines_of`` returns."""
    text = text.removeprefix(_BOM)
    return text.count("\n") + bool(text and not text.endswith("\n"))


def lines_around(edited: EditedText, margin: int) -> tuple[int, list[str]]:
    """Return the edited lines with ``margin`` lines on either side, after the number of the first of them."""
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
    """Return the line end of the majority of the lines."""
    return "\r\n" if _has_crlf(text) and 2 * text.count("\r\n") > text.count("\n") else "\n"


def _has_crlf(text: str) -> bool:
    return "\r" in text and "\r\n" in text  # a search for one character is a hundred times faster


def replace(
    text: str, old: str, new: str, *, everywhere: bool = False, names: tuple[str, str] = ("old_str", "new_str")
) -> EditedText:
    """Replace the only occurrence of ``old`` by ``new``; with ``everywhere``, all non-overlapping occurrences from the
    left.

    ``names`` are the policy's names of the two arguments. In a text with CR LF line ends, LF in ``old`` matches either
    line end, and ``new`` takes the line end of the majority. Raises EditRefused if there is no occurrence, or more than
    one without ``everywhere``.
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
        _check_size(flat, old, new)
    places = _find_separate(flat, old) if everywhere else _find_all(flat, old)
    if not places:
        raise EditRefused(not_found(text, old, names[0]))
    if len(places) > 1 and not everywhere:
        lines = dict.fromkeys(flat.count("\n", 0, place) + 1 for place in places[:_MAX_PLACES])
        numbers = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
        occurrences = f"more than {_MAX_PLACES}" if len(places) > _MAX_PLACES else str(len(places))
        raise EditRefused(
            f"{names[0]} occurs {occurrences} times, at {numbers}: give more of the text around the one meant"
        )
    pieces, done = list[str](), 0
    bounds = (at for place in places for at in (place, place + len(old)))
    offsets = bounds if flat is text else _map_to_crlf(text, bounds)
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
    """Apply replacements one after the other, each to the result of the previous one: all of them or none.

    Raises EditRefused if one of them fails.
    """
    edited, places, work = text, 0, 0
    for number, change in enumerate(changes, 1):
        work += len(edited)
        try:
            if work + _CHARS_PER_PLACE * places > _MAX_CHARS_READ:
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


def _map_to_crlf(text: str, offsets: Iterator[int]) -> Iterator[int]:
    """Map ascending ``offsets`` in the text with LF for CR LF to offsets in ``text``; at a line end, to its CR."""
    seen = dropped = 0
    for at in offsets:
        while (end := at + dropped) > seen:
            dropped += text.count("\r\n", seen, end + 1)
            seen = end
        yield at + dropped


def _find_all(text: str, part: str) -> list[int]:
    """Return the offsets of ``part``, overlaps included, up to one more than ``_MAX_PLACES``."""
    places = list[int]()
    at = text.find(part)
    while at >= 0 and len(places) <= _MAX_PLACES:
        places.append(at)
        at = text.find(part, at + 1)
    return places


def _check_size(text: str, old: str, new: str) -> None:
    count = text.count(old)
    if count > _MAX_REPLACED or len(text) + count * (len(new) - len(old)) > _MAX_CHARS:
        raise EditRefused(
            f"{count:,} places are too many for one edit, or would make the file too large; use bash (sed)"
        )


def _find_separate(text: str, part: str) -> list[int]:
    """Return the offsets of the non-overlapping occurrences of ``part``, from the left."""
    places, at = list[int](), text.find(part)
    while at >= 0:
        places.append(at)
        at = text.find(part, at + len(part))
    return places


def insert(text: str, line: int, addition: str) -> EditedText:
    """Insert ``addition`` as whole lines after line ``line``; 0 is before the first line.

    The insertion takes the line end of the majority. A missing final newline stays missing if ``addition`` has none.
    Raises EditRefused if ``line`` is past the end.
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
    """Return the offset of the line after the first ``line`` lines, or of the end of the text."""
    at = len(_BOM) if text.startswith(_BOM) else 0
    for _ in range(line):
        at = text.find("\n", at) + 1 or len(text)
    return at


def _counted(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines} lines"


def not_found(text: str, old: str, name: str) -> str:
    """Explain why ``old`` is not in ``text``, as far as it can be determined, and show the nearest lines."""
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
    stray = (
        "; bytes that are no UTF-8 are shown as \\x.. and cannot be given" if _NOT_UTF8.search("".join(window)) else ""
    )
    return f"{name} does not occur; {reason} line {at + 1}{stray}:\n{shown}"


def _nearest(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Return the index of the line where ``wanted`` matches best, or None.

    Words in common select candidates; text similarity ranks them.
    """
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
