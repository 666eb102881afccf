"""A change as text for people: a git-format patch, which ``git apply`` takes where it is whole."""

from collections.abc import Callable, Iterator, Sequence

from farm.core.change import Change, ChangeKind, FileChange

CONTEXT = 3
MAX_SHOWN_BYTES = 1024 * 1024
MAX_PATCH_CHARS = 4 * 1024 * 1024
COMPARISONS = 250_000
"""Bounds the work on one file, whose lines an agent chose; past it the changed middle is shown as replaced."""


def render_patch(change: Change, read_old: Callable[[str], FileChange | None]) -> str:
    """``read_old`` gives the pristine file at a path as a write or a symlink, None where there is none.

    Valid Unicode whatever the names and contents: odd names are quoted as git does, contents that are not UTF-8 text,
    and those over MAX_SHOWN_BYTES, are named as binary.
    """
    parts: list[str] = []
    room = MAX_PATCH_CHARS
    for file in change.files:
        part = "".join(_render_file(file, read_old(file.path)))
        if len(part) > room:
            part = "".join((_header(file), f"Binary files differ ({len(file.content)} bytes, not shown)\n"))
        room -= len(part)
        parts.append(part)
    return "".join(parts)


def _header(file: FileChange) -> str:
    return f"diff --git {_quote('a/' + file.path)} {_quote('b/' + file.path)}\n"


def _render_file(file: FileChange, old: FileChange | None) -> Iterator[str]:
    new = None if file.kind is ChangeKind.DELETE else file
    if old is not None and new is not None and (old.kind is ChangeKind.SYMLINK) != (new.kind is ChangeKind.SYMLINK):
        yield from _render_file(FileChange(file.path, ChangeKind.DELETE), old)
        old = None
    if old is None and new is None:
        return
    yield _header(file)
    if old is None and new is not None:
        yield f"new file mode {_mode(new)}\n"
    elif new is None and old is not None:
        yield f"deleted file mode {_mode(old)}\n"
    elif old is not None and new is not None and _mode(old) != _mode(new):
        yield f"old mode {_mode(old)}\nnew mode {_mode(new)}\n"
    before, after = old.content if old else b"", new.content if new else b""
    if before == after:
        return
    names = (
        "/dev/null" if old is None else _quote("a/" + file.path),
        "/dev/null" if new is None else _quote("b/" + file.path),
    )
    yield from _render_content(names, before, after)


def _render_content(names: tuple[str, str], before: bytes, after: bytes) -> Iterator[str]:
    old_text, new_text = _text(before), _text(after)
    if old_text is None or new_text is None:
        yield f"Binary files {names[0]} and {names[1]} differ\n"
        return
    yield f"--- {_terminated(names[0])}\n+++ {_terminated(names[1])}\n"
    yield from _hunks(_lines(old_text), _lines(new_text))


def _terminated(name: str) -> str:
    """A name with a blank in it ends with a tab, so that no reader takes what follows for a date."""
    return f"{name}\t" if " " in name else name


def _mode(file: FileChange) -> str:
    if file.kind is ChangeKind.SYMLINK:
        return "120000"
    return "100755" if file.executable else "100644"


def _text(content: bytes) -> str | None:
    if b"\0" in content or len(content) > MAX_SHOWN_BYTES:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _lines(text: str) -> list[str]:
    """Split at ``\\n`` alone, which stays with its line."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    edits = _edits(old, new)
    groups: list[list[tuple[int, int, int, int]]] = []
    for edit in edits:
        if groups and edit[0] - groups[-1][-1][1] <= 2 * CONTEXT:
            groups[-1].append(edit)
        else:
            groups.append([edit])
    for group in groups:
        yield from _hunk(old, new, group)


def _hunk(old: Sequence[str], new: Sequence[str], group: list[tuple[int, int, int, int]]) -> Iterator[str]:
    start, end = max(0, group[0][0] - CONTEXT), min(len(old), group[-1][1] + CONTEXT)
    new_start = group[0][2] - (group[0][0] - start)
    new_end = group[-1][3] + (end - group[-1][1])
    yield f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@\n"
    at = start
    for old_from, old_to, new_from, new_to in group:
        yield from (_line(" ", line) for line in old[at:old_from])
        yield from (_line("-", line) for line in old[old_from:old_to])
        yield from (_line("+", line) for line in new[new_from:new_to])
        at = old_to
    yield from (_line(" ", line) for line in old[at:end])


def _range(start: int, end: int) -> str:
    count = end - start
    return f"{start + 1 if count else start},{count}"


def _line(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _edits(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """``old[a:b]`` becomes ``new[c:d]`` for each ``(a, b, c, d)``, in order, none touching the next."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    numbers: dict[str, int] = {}
    before = [numbers.setdefault(line, len(numbers)) for line in old[head : len(old) - tail]]
    after = [numbers.setdefault(line, len(numbers)) for line in new[head : len(new) - tail]]
    edits: list[tuple[int, int, int, int]] = []
    at_old, at_new = 0, 0
    for same_old, same_new in [*_common(before, after), (len(before), len(after))]:
        if (same_old, same_new) != (at_old, at_new):
            edits.append((head + at_old, head + same_old, head + at_new, head + same_new))
        at_old, at_new = same_old + 1, same_new + 1
    return edits


def _common(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence (Myers 1986, greedy forward); none where that costs too much."""
    reach = {1: 0}
    trace: list[dict[int, int]] = []
    budget = COMPARISONS
    for distance in range(len(old) + len(new) + 1):
        trace.append(dict(reach))
        budget -= len(reach)
        for diagonal in range(-distance, distance + 1, 2):
            down = diagonal == -distance or (diagonal != distance and reach[diagonal - 1] < reach[diagonal + 1])
            x = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            y = x - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y, budget = x + 1, y + 1, budget - 1
            reach[diagonal] = x
            if x >= len(old) and y >= len(new):
                return _walk_back(trace, len(old), len(new))
        if budget < 0:
            return []
    return []


def _walk_back(trace: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for distance in range(len(trace) - 1, -1, -1):
        reach, diagonal = trace[distance], x - y
        down = diagonal == -distance or (diagonal != distance and reach[diagonal - 1] < reach[diagonal + 1])
        before = diagonal + 1 if down else diagonal - 1
        x_before = reach[before]
        y_before = x_before - before
        x_after, y_after = (x_before, y_before + 1) if down else (x_before + 1, y_before)
        while x > x_after and y > y_after:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = x_before, y_before
    return pairs[::-1]


def _quote(name: str) -> str:
    """As git quotes: in double quotes with C escapes where a name holds a control character, a quote or no UTF-8."""
    escapes = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
    quoted: list[str] = []
    for char in name:
        code = ord(char)
        if code in escapes:
            quoted.append(escapes[code])
        elif code < 32 or code == 127 or 0xDC80 <= code <= 0xDCFF:
            quoted.append(f"\\{code & 0xFF:03o}")
        else:
            quoted.append(char)
    text = "".join(quoted)
    return f'"{text}"' if text != name else name
