"""Unified diffs, with git's extensions: parse them as data and apply them to bytes, without touching files."""

import base64
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

MAX_BYTES = 32 * 1024 * 1024
MAX_FILES = 5_000
MAX_STEPS = 2_000_000
_RANGE = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_LITERAL = re.compile(rb"literal (\d{1,9})")
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ESCAPE = re.compile(rb'\\([0-7]{3}|[abtnvfr"\\])')
_ESCAPED = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
_HEADER_PREFIXES = (
    *(b"rename from ", b"rename to ", b"copy from ", b"copy to ", b"new file mode ", b"deleted file mode "),
    *(b"old mode ", b"new mode "),
)
_NO_NEWLINE = b"\\ No newline"
_MODE = re.compile(rb"(?:(?:new file|deleted file|old|new) mode|index [0-9a-f]+\.\.[0-9a-f]+) ([0-7]{6})\r?")
_UNSUPPORTED_MODES = {b"120000": "a symlink", b"160000": "a submodule"}


class UnifiedDiffError(ValueError):
    """A patch cannot be read, leaves its directory, or does not fit a file; one line."""


@dataclass(frozen=True, slots=True)
class DiffHunk:
    """A hunk. Lines keep their ends.

    ``start`` is the first old line, counted from 1; without old lines, the line before.
    """

    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FilePatch:
    """The patch of one file. ``old`` is None if the file is created, ``new`` if it is deleted. Both are relative paths.

    ``content``: the whole content, from a binary patch. ``hollow``: the file is binary and the patch lacks its content.
    ``executable`` None: unchanged. ``text``: the section as it was written.
    """

    old: str | None
    new: str | None
    hunks: tuple[DiffHunk, ...] = ()
    content: bytes | None = None
    hollow: bool = False
    executable: bool | None = None
    text: bytes = b""


def parse_patch(text: bytes) -> tuple[FilePatch, ...]:
    """Return the files of a patch in order; text before the first one is ignored. Raises UnifiedDiffError."""
    if len(text) > MAX_BYTES:
        raise UnifiedDiffError(f"the patch holds more than {MAX_BYTES >> 20} MiB")
    lines = text.split(b"\n")
    starts = list(_section_starts(lines))
    if len(starts) > MAX_FILES:
        raise UnifiedDiffError(f"the patch changes more than {MAX_FILES} files")
    patches = []
    for start, end in pairwise([*starts, len(lines)]):
        section = b"\n".join(lines[start:end])
        patches.append(replace(_parse_file(lines[start:end]), text=section.rstrip(b"\n") + b"\n"))
    if not patches and text.strip():
        raise UnifiedDiffError("no file is named in the patch")
    new_paths = [patch.new for patch in patches if patch.new is not None]
    if duplicate := next((path for path, count in Counter(new_paths).items() if count > 1), None):
        raise UnifiedDiffError(f"{duplicate} is written twice")
    return tuple(patches)


def apply_patch(patch: FilePatch, old: bytes | None) -> bytes:
    """Return the content of the file after the patch. ``old`` is None if the file does not exist.

    Raises UnifiedDiffError if the patch does not fit.
    """
    name = patch.new or patch.old
    if patch.hollow:
        raise UnifiedDiffError(f"{name}: the patch lacks the binary content")
    if patch.content is not None:
        return patch.content
    if patch.old is not None and old is None:
        raise UnifiedDiffError(f"{name}: the file to change does not exist")
    old_lines = _split_lines(old or b"") if patch.old is not None else []
    new_lines: list[bytes] = []
    position = offset = 0
    search = _HunkSearch(old_lines)
    for hunk in patch.hunks:
        expected_at = hunk.start - 1 if hunk.old else hunk.start
        found_at = search.find(hunk.old, expected_at + offset, position)
        if search.steps > MAX_STEPS:
            raise UnifiedDiffError(f"{name}: finding its hunks takes more than {MAX_STEPS} steps; make the patch again")
        if found_at is None:
            raise UnifiedDiffError(f"{name}: the lines from {hunk.start} on do not match the file")
        new_lines += [*old_lines[position:found_at], *hunk.new]
        position, offset = found_at + len(hunk.old), found_at - expected_at
    return b"".join([*new_lines, *old_lines[position:]])


def _section_starts(lines: Sequence[bytes]) -> Iterator[int]:
    """Yield the index of each file's first line. Lines of hunks are counted, so that none is taken for a header."""
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
            index = _hunk_end(lines, index + 1, *_line_counts(match))
            continue
        index += 1


def _line_counts(match: re.Match[bytes]) -> tuple[int, int]:
    return int(match[2] or 1) if match[2] != b"0" else 0, int(match[4] or 1) if match[4] != b"0" else 0


def _hunk_end(lines: Sequence[bytes], index: int, old: int, new: int) -> int:
    while index < len(lines) and (old > 0 or new > 0 or lines[index].startswith(_NO_NEWLINE)):
        sign = lines[index][:1]
        if sign not in (b" ", b"+", b"-", b"\\", b"", b"\r"):
            break
        if sign != b"\\":
            old -= sign != b"+"
            new -= sign != b"-"
        index += 1
    return index


def _parse_file(lines: Sequence[bytes]) -> FilePatch:
    headers: dict[bytes, bytes] = {}
    names: list[str | None] = []
    hunks: list[DiffHunk] = []
    modes: set[bytes] = set()
    content, hollow = None, False
    index = 0
    while index < len(lines):
        line = lines[index]
        if line.startswith(b"--- ") and lines[index + 1 : index + 2] and lines[index + 1].startswith(b"+++ "):
            names = [_header_path(line[4:], b"a/"), _header_path(lines[index + 1][4:], b"b/")]
            index += 2
        elif match := _RANGE.match(line):
            old, new = _line_counts(match)
            end = _hunk_end(lines, index + 1, old, new)
            hunks.append(_parse_hunk(int(match[1]), lines[index + 1 : end], old, new))
            index = end
        elif line == b"GIT binary patch":
            content, index = _parse_binary(lines, index + 1)
            hollow = content is None
            break
        elif line.startswith(b"Binary files "):
            hollow = True
            index += 1
        else:
            if match := _MODE.fullmatch(line):
                modes.add(match[1])
            for prefix in _HEADER_PREFIXES:
                if line.startswith(prefix):
                    headers.setdefault(prefix, line.removeprefix(prefix).rstrip(b"\r"))
            index += 1
    old_name, new_name = names or _header_names(lines[0], headers)
    renamed = _renamed(headers)
    if renamed and [old_name, new_name] != renamed:
        raise UnifiedDiffError(
            f"{renamed[0]} is renamed to {renamed[1]}, but the hunks are of {old_name} and {new_name}"
        )
    for kind, description in _UNSUPPORTED_MODES.items():
        if kind in modes:
            raise UnifiedDiffError(f"{new_name or old_name} is {description}, not a regular file")
    mode = headers.get(b"new file mode ") or headers.get(b"new mode ")
    executable = None if mode is None else mode == b"100755"
    return FilePatch(old_name, new_name, tuple(hunks), content, hollow, executable)


def _header_names(line: bytes, headers: dict[bytes, bytes]) -> list[str | None]:
    """Return the old and the new path of a section without hunks: a rename, a mode, an empty or a binary file."""
    if renamed := _renamed(headers):
        return renamed
    names = line.removeprefix(b"diff --git ").rstrip(b"\r")
    if names.startswith(b'"'):
        match = _QUOTED.match(names)
        halves = (match[0], names[match.end() + 1 :]) if match else (b"", b"")
    else:
        middle = len(names) // 2
        halves = (names[:middle], names[middle + 1 :])
    old_name, new_name = _header_path(halves[0], b"a/"), _header_path(halves[1], b"b/")
    if old_name != new_name or old_name is None:
        raise UnifiedDiffError(f"{names[:100]!r}: the two names cannot be separated")
    return [None if b"new file mode " in headers else old_name, None if b"deleted file mode " in headers else new_name]


def _renamed(headers: dict[bytes, bytes]) -> list[str | None]:
    """Return the old and the new path of a rename or a copy; empty if it is neither."""
    for verb in (b"rename", b"copy"):
        if verb + b" from " in headers or verb + b" to " in headers:
            return [_checked_path(_unquote(headers.get(verb + end, b""))) for end in (b" from ", b" to ")]
    return []


def _header_path(name: bytes, prefix: bytes) -> str | None:
    quoted = _QUOTED.match(name)
    name = _unquote(quoted[0] if quoted else name.rstrip(b"\r").split(b"\t", 1)[0])
    return None if name == b"/dev/null" else _checked_path(name.removeprefix(prefix))


def _unquote(name: bytes) -> bytes:
    if len(name) < 2 or not (name.startswith(b'"') and name.endswith(b'"')):
        return name

    def plain(match: re.Match[bytes]) -> bytes:
        word = match[1]
        return bytes([int(word, 8) & 255 if len(word) == 3 else _ESCAPED[word[0]]])

    return _ESCAPE.sub(plain, name[1:-1])


def _checked_path(name: bytes) -> str:
    """Return a path below the patch's directory, outside ``.git``. Raises UnifiedDiffError."""
    try:
        path = name.decode()
    except UnicodeDecodeError:
        raise UnifiedDiffError(f"{name[:100]!r} is not a name in UTF-8") from None
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        raise UnifiedDiffError(f"{path[:100]!r} is not a path inside the repository")
    if len(path) > 4096 or any(len(part.encode()) > 255 for part in parts):
        raise UnifiedDiffError(f"{path[:100]!r} is too long for a path")
    return path


def _parse_hunk(start: int, lines: Sequence[bytes], old_count: int, new_count: int) -> DiffHunk:
    old: list[bytes] = []
    new: list[bytes] = []
    sides: list[list[bytes]] = []
    for line in lines:
        sign, rest = line[:1], line[1:] + b"\n"
        if sign == b"\\":
            for side in sides:
                side[-1] = side[-1].removesuffix(b"\n")
            continue
        if sign not in (b" ", b"+", b"-"):  # an empty context line without its leading blank
            rest = line + b"\n"
        sides = [old] if sign == b"-" else [new] if sign == b"+" else [old, new]
        for side in sides:
            side.append(rest)
    if (len(old), len(new)) != (old_count, new_count):
        raise UnifiedDiffError(f"a hunk of {old_count} old and {new_count} new lines is incomplete")
    return DiffHunk(start, tuple(old), tuple(new))


def _parse_binary(lines: Sequence[bytes], index: int) -> tuple[bytes | None, int]:
    """Return the content of a literal, and the index behind it.

    The content of a delta is None, because it needs the old content.
    """
    match = _LITERAL.fullmatch(lines[index].rstrip(b"\r")) if index < len(lines) else None
    if match is None:
        return None, len(lines)
    size = int(match[1])
    if size > MAX_BYTES:
        raise UnifiedDiffError(f"a binary file of {size} bytes is larger than the limit")
    compressed = bytearray()
    for line in lines[index + 1 :]:
        if not line.strip():
            break
        try:
            compressed += base64.b85decode(line.rstrip(b"\r")[1:])[: _decoded_length(line[0])]
        except ValueError:
            raise UnifiedDiffError("a binary file is not encoded as git does") from None
    try:
        content = zlib.decompressobj().decompress(bytes(compressed), size + 1)
    except zlib.error as error:
        raise UnifiedDiffError(f"a binary file cannot be unpacked: {error}") from None
    if len(content) != size:
        raise UnifiedDiffError(f"a binary file does not have the {size} bytes that the patch declares")
    return content, len(lines)


def _decoded_length(letter: int) -> int:
    return letter - 64 if letter <= 90 else letter - 70


def _split_lines(content: bytes) -> list[bytes]:
    """Split at line feeds only."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    lines[-1] = lines[-1].removesuffix(b"\n")
    return lines if lines[-1] else lines[:-1]


class _HunkSearch:
    """A search for hunks in a file, with a limit: one line repeated in file and patch would take minutes."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.steps = 0
        self._lines = lines

    def find(self, old: Sequence[bytes], expected_at: int, minimum: int) -> int | None:
        """Return the position of ``old`` nearest to ``expected_at``, not before ``minimum``.

        None if there is none, or after MAX_STEPS.
        """
        lines = self._lines
        if not old:
            return min(max(expected_at, minimum), len(lines))
        maximum = len(lines) - len(old)
        pattern = list(old)
        for position in _outward(expected_at, minimum, maximum):
            self.steps += 1
            if lines[position] == pattern[0] and lines[position + len(old) - 1] == pattern[-1]:
                self.steps += len(old)
                if lines[position : position + len(old)] == pattern:
                    return position
            if self.steps > MAX_STEPS:
                return None
        return None


def _outward(center: int, minimum: int, maximum: int) -> Iterator[int]:
    """Yield the numbers from ``minimum`` to ``maximum``, the nearest to ``center`` first, and the smaller of two."""
    if maximum < minimum:
        return
    lower = min(max(center, minimum), maximum)
    upper = lower + 1
    while lower >= minimum or upper <= maximum:
        if upper > maximum or (lower >= minimum and abs(lower - center) <= abs(upper - center)):
            yield lower
            lower -= 1
        else:
            yield upper
            upper += 1
