"""A change as text for people: a git-format patch, which ``git apply`` takes where it is whole."""

from collections.abc import Callable, Iterator, Sequence

from farm.core.change import Change, ChangeKind, FileChange
from farm.grading.diff import Allowance, Edit, find_edits

CONTEXT = 3
MAX_SHOWN_BYTES = 1024 * 1024
MAX_PATCH_CHARS = 4 * 1024 * 1024

_ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


def render_patch(change: Change, read_old: Callable[[str], FileChange | None]) -> str:
    """``read_old`` gives the pristine file at a path as a write or a symlink, None where there is none.

    Valid Unicode whatever the names and contents: odd names are quoted as git does, contents that are not UTF-8 text,
    and those over MAX_SHOWN_BYTES, are named as binary. Takes a few seconds at the very most.
    """
    parts: list[str] = []
    room, allowance = MAX_PATCH_CHARS, Allowance()
    for file in change.files:
        part = "".join(_render_file(file, read_old(file.path), allowance)) if room > 0 else None
        if part is None or len(part) > room:
            part = f"{_header(file)}Binary files differ ({len(file.content)} bytes, not shown)\n"
        room -= len(part)
        parts.append(part)
    return "".join(parts)


def _header(file: FileChange) -> str:
    return f"diff --git {_quote('a/' + file.path)} {_quote('b/' + file.path)}\n"


def _render_file(file: FileChange, old: FileChange | None, allowance: Allowance) -> Iterator[str]:
    new = None if file.kind is ChangeKind.DELETE else file
    if old is not None and new is not None and (old.kind is ChangeKind.SYMLINK) != (new.kind is ChangeKind.SYMLINK):
        yield from _render_file(FileChange(file.path, ChangeKind.DELETE), old, allowance)
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
    old_name = "/dev/null" if old is None else _quote("a/" + file.path)
    new_name = "/dev/null" if new is None else _quote("b/" + file.path)
    old_text, new_text = _text(before), _text(after)
    if old_text is None or new_text is None:
        yield f"Binary files {old_name} and {new_name} differ\n"
        return
    yield f"--- {_terminated(old_name)}\n+++ {_terminated(new_name)}\n"
    yield from _hunks(lines_of(old_text), lines_of(new_text), allowance)


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


def lines_of(text: str) -> list[str]:
    """Split at ``\\n`` alone, which stays with its line."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _hunks(old: Sequence[str], new: Sequence[str], allowance: Allowance) -> Iterator[str]:
    groups: list[list[Edit]] = []
    for edit in find_edits(old, new, allowance):
        if groups and edit.old_from - groups[-1][-1].old_to <= 2 * CONTEXT:
            groups[-1].append(edit)
        else:
            groups.append([edit])
    for group in groups:
        yield from _hunk(old, new, group)


def _hunk(old: Sequence[str], new: Sequence[str], group: Sequence[Edit]) -> Iterator[str]:
    first, last = group[0], group[-1]
    start, end = max(0, first.old_from - CONTEXT), min(len(old), last.old_to + CONTEXT)
    new_start, new_end = first.new_from - (first.old_from - start), last.new_to + (end - last.old_to)
    yield f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@\n"
    at = start
    for edit in group:
        yield from (_line(" ", line) for line in old[at : edit.old_from])
        yield from (_line("-", line) for line in old[edit.old_from : edit.old_to])
        yield from (_line("+", line) for line in new[edit.new_from : edit.new_to])
        at = edit.old_to
    yield from (_line(" ", line) for line in old[at:end])


def _range(start: int, end: int) -> str:
    count = end - start
    return f"{start + 1 if count else start},{count}"


def _line(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _terminated(name: str) -> str:
    """A name with a blank in it ends with a tab, so that no reader takes what follows for a date."""
    return f"{name}\t" if " " in name else name


def _quote(name: str) -> str:
    """As git quotes: in double quotes with C escapes where a name holds a control character, a quote or no UTF-8."""
    quoted: list[str] = []
    for char in name:
        code = ord(char)
        if code in _ESCAPES:
            quoted.append(_ESCAPES[code])
        elif code < 32 or code == 127 or 0xDC80 <= code <= 0xDCFF:
            quoted.append(f"\\{code & 0xFF:03o}")
        else:
            quoted.append(char)
    text = "".join(quoted)
    return f'"{text}"' if text != name else name
