"""Unified diffs, git's and plain ones: read as data, and applied to bytes; no file is touched and no program run."""

import base64
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

MAX_BYTES = 32 * 1024 * 1024
MAX_FILES = 5_000
MOST_STEPS = 2_000_000
_RANGE = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_LITERAL = re.compile(rb"literal (\d{1,9})")
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ESCAPE = re.compile(rb'\\([0-7]{3}|[abtnvfr"\\])')
_ESCAPED = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
_EXTENDED = (
    *(b"rename from ", b"rename to ", b"copy from ", b"copy to ", b"new file mode ", b"deleted file mode "),
    *(b"old mode ", b"new mode "),
)
_CUT = b"\\ No newline"
_MODE = re.compile(rb"(?:(?:new file|deleted file|old|new) mode|index [0-9a-f]+\.\.[0-9a-f]+) ([0-7]{6})\r?")
_NO_FILES = {b"120000": "a symlink", b"160000": "a submodule"}


class UnifiedDiffError(ValueError):
    """A patch cannot be read, leaves its directory, or does not fit a file; one line."""


@dataclass(frozen=True, slots=True)
class DiffHunk:
    """``start`` is the first old line, from 1; where no line is old, the one before. Lines keep their ends."""

    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FilePatch:
    """One file: ``old`` None where it is made, ``new`` None where it goes; both are relative and stay where they start.

    ``content`` is what a binary patch brings whole. ``hollow``: the file is binary, and the patch does not bring it.
    ``executable`` None: as before. ``text`` is the section as it was written.
    """

    old: str | None
    new: str | None
    hunks: tuple[DiffHunk, ...] = ()
    content: bytes | None = None
    hollow: bool = False
    executable: bool | None = None
    text: bytes = b""


def parse_patch(text: bytes) -> tuple[FilePatch, ...]:
    """The files of a patch in its order; what stands before the first is passed over. Raises PatchError."""
    if len(text) > MAX_BYTES:
        raise UnifiedDiffError(f"the patch holds more than {MAX_BYTES >> 20} MiB")
    lines = text.split(b"\n")
    starts = list(_starts(lines))
    if len(starts) > MAX_FILES:
        raise UnifiedDiffError(f"the patch changes more than {MAX_FILES} files")
    found = []
    for start, end in pairwise([*starts, len(lines)]):
        section = b"\n".join(lines[start:end])
        found.append(replace(_file(lines[start:end]), text=section.rstrip(b"\n") + b"\n"))
    if not found and text.strip():
        raise UnifiedDiffError("no file is named in the patch")
    made = [patch.new for patch in found if patch.new is not None]
    if twice := next((path for path, count in Counter(made).items() if count > 1), None):
        raise UnifiedDiffError(f"{twice} is made twice over")
    return tuple(found)


def apply_patch(patch: FilePatch, old: bytes | None) -> bytes:
    """What the file holds afterwards. ``old`` None: it is not there. Raises PatchError where the patch does not fit."""
    name = patch.new or patch.old
    if patch.hollow:
        raise UnifiedDiffError(f"{name}: the patch does not bring the binary content")
    if patch.content is not None:
        return patch.content
    if patch.old is not None and old is None:
        raise UnifiedDiffError(f"{name}: the file to be changed is not there")
    have = _lines(old or b"") if patch.old is not None else []
    made: list[bytes] = []
    at = offset = 0
    search = _Search(have)
    for hunk in patch.hunks:
        wanted = hunk.start - 1 if hunk.old else hunk.start
        place = search.find(hunk.old, wanted + offset, at)
        if search.steps > MOST_STEPS:
            raise UnifiedDiffError(f"{name}: finding its hunks takes more than {MOST_STEPS} steps; make the patch anew")
        if place is None:
            raise UnifiedDiffError(f"{name}: the lines from {hunk.start} on are not there")
        made += [*have[at:place], *hunk.new]
        at, offset = place + len(hunk.old), place - wanted
    return b"".join([*made, *have[at:]])


def _starts(lines: Sequence[bytes]) -> Iterator[int]:
    """Where each file's section begins; lines of hunks are counted, so that none of them is taken for a header."""
    index, in_git = 0, False
    while index < len(lines):
        line = lines[index]
        if line.startswith(b"diff --git "):
            in_git = True
            yield index
        elif line.startswith(b"--- ") and lines[index + 1 : index + 2] and lines[index + 1].startswith(b"+++ "):
            if not in_git:
                yield index
            in_git = False
            index += 1
        elif match := _RANGE.match(line):
            in_git = False
            index = _after_hunk(lines, index + 1, *_counts(match))
            continue
        index += 1


def _counts(match: re.Match[bytes]) -> tuple[int, int]:
    return int(match[2] or 1) if match[2] != b"0" else 0, int(match[4] or 1) if match[4] != b"0" else 0


def _after_hunk(lines: Sequence[bytes], index: int, old: int, new: int) -> int:
    while index < len(lines) and (old > 0 or new > 0 or lines[index].startswith(_CUT)):
        sign = lines[index][:1]
        if sign not in (b" ", b"+", b"-", b"\\", b"", b"\r"):
            break
        if sign != b"\\":
            old -= sign != b"+"
            new -= sign != b"-"
        index += 1
    return index


def _file(lines: Sequence[bytes]) -> FilePatch:
    named: dict[bytes, bytes] = {}
    names: list[str | None] = []
    hunks: list[DiffHunk] = []
    modes: set[bytes] = set()
    content, hollow = None, False
    index = 0
    while index < len(lines):
        line = lines[index]
        if line.startswith(b"--- ") and lines[index + 1 : index + 2] and lines[index + 1].startswith(b"+++ "):
            names = [_side(line[4:], b"a/"), _side(lines[index + 1][4:], b"b/")]
            index += 2
        elif match := _RANGE.match(line):
            old, new = _counts(match)
            end = _after_hunk(lines, index + 1, old, new)
            hunks.append(_hunk(int(match[1]), lines[index + 1 : end], old, new))
            index = end
        elif line == b"GIT binary patch":
            content, index = _binary(lines, index + 1)
            hollow = content is None
            break
        elif line.startswith(b"Binary files "):
            hollow = True
            index += 1
        else:
            if match := _MODE.fullmatch(line):
                modes.add(match[1])
            for prefix in _EXTENDED:
                if line.startswith(prefix):
                    named.setdefault(prefix, line.removeprefix(prefix).rstrip(b"\r"))
            index += 1
    old_name, new_name = names or _names_of_header(lines[0], named)
    moved = _moved(named)
    if moved and [old_name, new_name] != moved:
        raise UnifiedDiffError(f"{moved[0]} is to become {moved[1]}, and the lines are of {old_name} and {new_name}")
    for kind, what in _NO_FILES.items():
        if kind in modes:
            raise UnifiedDiffError(f"{new_name or old_name} is {what}, and no file that lines are of")
    mode = named.get(b"new file mode ") or named.get(b"new mode ")
    executable = None if mode is None else mode == b"100755"
    return FilePatch(old_name, new_name, tuple(hunks), content, hollow, executable)


def _names_of_header(line: bytes, named: dict[bytes, bytes]) -> list[str | None]:
    """Of a section without hunks: a rename, a mode, an empty file or a binary one."""
    if moved := _moved(named):
        return moved
    both = line.removeprefix(b"diff --git ").rstrip(b"\r")
    if both.startswith(b'"'):
        match = _QUOTED.match(both)
        halves = (match[0], both[match.end() + 1 :]) if match else (b"", b"")
    else:
        half = len(both) // 2
        halves = (both[:half], both[half + 1 :])
    one, other = _side(halves[0], b"a/"), _side(halves[1], b"b/")
    if one != other or one is None:
        raise UnifiedDiffError(f"{both[:100]!r}: the two names are not told apart")
    return [None if b"new file mode " in named else one, None if b"deleted file mode " in named else other]


def _moved(named: dict[bytes, bytes]) -> list[str | None]:
    """From where and to where a file is renamed or copied; empty where it is neither."""
    for how in (b"rename", b"copy"):
        if how + b" from " in named or how + b" to " in named:
            return [_path(_unquote(named.get(how + end, b""))) for end in (b" from ", b" to ")]
    return []


def _side(name: bytes, prefix: bytes) -> str | None:
    quoted = _QUOTED.match(name)
    name = _unquote(quoted[0] if quoted else name.rstrip(b"\r").split(b"\t", 1)[0])
    return None if name == b"/dev/null" else _path(name.removeprefix(prefix))


def _unquote(name: bytes) -> bytes:
    if len(name) < 2 or not (name.startswith(b'"') and name.endswith(b'"')):
        return name

    def plain(match: re.Match[bytes]) -> bytes:
        word = match[1]
        return bytes([int(word, 8) & 255 if len(word) == 3 else _ESCAPED[word[0]]])

    return _ESCAPE.sub(plain, name[1:-1])


def _path(name: bytes) -> str:
    """Raises PatchError for what is no path below the directory that the patch is for, or is git's own."""
    try:
        path = name.decode()
    except UnicodeDecodeError:
        raise UnifiedDiffError(f"{name[:100]!r} is no name in UTF-8") from None
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        raise UnifiedDiffError(f"{path[:100]!r} is not a path inside the repository")
    if len(path) > 4096 or any(len(part.encode()) > 255 for part in parts):
        raise UnifiedDiffError(f"{path[:100]!r} is too long for a path")
    return path


def _hunk(start: int, lines: Sequence[bytes], old_count: int, new_count: int) -> DiffHunk:
    old: list[bytes] = []
    new: list[bytes] = []
    last: list[list[bytes]] = []
    for line in lines:
        sign, rest = line[:1], line[1:] + b"\n"
        if sign == b"\\":
            for side in last:
                side[-1] = side[-1].removesuffix(b"\n")
            continue
        if sign not in (b" ", b"+", b"-"):  # an empty line of context whose blank was cut off
            rest = line + b"\n"
        last = [old] if sign == b"-" else [new] if sign == b"+" else [old, new]
        for side in last:
            side.append(rest)
    if (len(old), len(new)) != (old_count, new_count):
        raise UnifiedDiffError(f"a hunk of {old_count} old and {new_count} new lines breaks off")
    return DiffHunk(start, tuple(old), tuple(new))


def _binary(lines: Sequence[bytes], index: int) -> tuple[bytes | None, int]:
    """The content that a literal brings; None of a delta, which needs the old one."""
    match = _LITERAL.fullmatch(lines[index].rstrip(b"\r")) if index < len(lines) else None
    if match is None:
        return None, len(lines)
    size = int(match[1])
    if size > MAX_BYTES:
        raise UnifiedDiffError(f"a binary file of {size} bytes is not taken")
    packed = bytearray()
    for line in lines[index + 1 :]:
        if not line.strip():
            break
        try:
            packed += base64.b85decode(line.rstrip(b"\r")[1:])[: _length(line[0])]
        except ValueError:
            raise UnifiedDiffError("a binary file is not encoded as git does") from None
    try:
        content = zlib.decompressobj().decompress(bytes(packed), size + 1)
    except zlib.error as error:
        raise UnifiedDiffError(f"a binary file cannot be unpacked: {error}") from None
    if len(content) != size:
        raise UnifiedDiffError(f"a binary file is not of {size} bytes, as the patch says")
    return content, len(lines)


def _length(letter: int) -> int:
    return letter - 64 if letter <= 90 else letter - 70


def _lines(content: bytes) -> list[bytes]:
    """Split at line feeds alone."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    lines[-1] = lines[-1].removesuffix(b"\n")
    return lines if lines[-1] else lines[:-1]


class _Search:
    """Finds the lines of hunks in a file. One line repeated, in the file and in the patch, would take minutes."""

    def __init__(self, have: Sequence[bytes]) -> None:
        self.steps = 0
        self._have = have

    def find(self, old: Sequence[bytes], wanted: int, least: int) -> int | None:
        """Where ``old`` stands at or after ``least``, the nearest to ``wanted``; None if it does not, or if there were
        more than MOST_STEPS."""
        have = self._have
        if not old:
            return min(max(wanted, least), len(have))
        last = len(have) - len(old)
        pattern = list(old)
        for place in _outward(wanted, least, last):
            self.steps += 1
            if have[place] == pattern[0] and have[place + len(old) - 1] == pattern[-1]:
                self.steps += len(old)
                if have[place : place + len(old)] == pattern:
                    return place
            if self.steps > MOST_STEPS:
                return None
        return None


def _outward(wanted: int, least: int, last: int) -> Iterator[int]:
    """The numbers from ``least`` to ``last``, the nearest to ``wanted`` first; of two, the smaller."""
    if last < least:
        return
    lower = min(max(wanted, least), last)
    upper = lower + 1
    while lower >= least or upper <= last:
        if upper > last or (lower >= least and abs(lower - wanted) <= abs(upper - wanted)):
            yield lower
            lower -= 1
        else:
            yield upper
            upper += 1
