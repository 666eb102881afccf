"""Rendering of a change as a patch in git's format, which ``git apply`` accepts if nothing is omitted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from farm.core.change import Change, ChangeKind, FileChange
from farm.grading.diff.line_diff import ComparisonBudget, LineEdit, find_edits

CONTEXT = 3
MAX_SHOWN_BYTES = 1024 * 1024
MAX_PATCH_CHARS = 4 * 1024 * 1024
MAX_KEPT_CHARS = 2 * 1024 * 1024

_ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


@dataclass(frozen=True, slots=True)
class FileEdits:
    """The number of lines that a change adds to a file and removes from it, and the edits.

    All lines of a file count if it is not compared: it is binary, too large, or the patch is full. Otherwise a change
    could hide its size.

    ``old`` and ``new`` are the file's text before and after, "" if there is no file. Text and ``edits`` are kept only
    of some files; for others ``edits`` is None.
    """

    path: str
    added: int = 0
    removed: int = 0
    old: str = ""
    new: str = ""
    edits: tuple[LineEdit, ...] | None = None


@dataclass(frozen=True, slots=True)
class RenderedPatch:
    patch: str
    files: tuple[FileEdits, ...]


def render_patch(change: Change, read_old: Callable[[str], FileChange | None]) -> str:
    """Return only the patch of ``render``."""
    return render(change, read_old).patch


def render(
    change: Change, read_old: Callable[[str], FileChange | None], keep: Callable[[str], bool] = lambda path: False
) -> RenderedPatch:
    """Render a change as a patch, with the line counts of each file.

    ``read_old`` returns the pristine file at a path as a write or a symlink, or None. ``keep`` selects the paths of
    which text and edits are kept, up to MAX_KEPT_CHARS in total.

    The patch is valid Unicode for all names and contents: names are quoted as in git, and files that are not UTF-8 or
    exceed MAX_SHOWN_BYTES are listed as binary. It takes a few seconds at most.
    """
    parts: list[str] = []
    files: list[FileEdits] = []
    chars_left, kept_chars_left, budget = MAX_PATCH_CHARS, MAX_KEPT_CHARS, ComparisonBudget()
    for file in change.files:
        old = read_old(file.path)
        rendered_edits: list[FileEdits] = []
        part = "".join(_render_file(file, old, budget, rendered_edits)) if chars_left > 0 else None
        shown = part is not None and len(part) <= chars_left
        if part is None or not shown:
            part = f"{_header(file)}Binary files differ ({len(file.content)} bytes, not shown)\n"
        chars_left -= len(part)
        parts.append(part)
        for one in rendered_edits or [_uncompared(file, old)]:
            size = len(one.old) + len(one.new)
            if shown and keep(file.path) and size <= kept_chars_left:
                kept_chars_left -= size
                files.append(one)
            else:
                files.append(FileEdits(one.path, one.added, one.removed))
    return RenderedPatch("".join(parts), tuple(files))


def _uncompared(file: FileChange, old: FileChange | None) -> FileEdits:
    if old is not None and (old.kind, old.content) == (file.kind, file.content):
        return FileEdits(file.path)  # a new mode
    return FileEdits(file.path, _count_lines(file.content), _count_lines(old.content) if old else 0)


def _count_lines(content: bytes) -> int:
    return content.count(b"\n") + (not content.endswith(b"\n") if content else 0)


def _header(file: FileChange) -> str:
    return f"diff --git {_quote('a/' + file.path)} {_quote('b/' + file.path)}\n"


def _render_file(
    file: FileChange, old: FileChange | None, budget: ComparisonBudget, rendered_edits: list[FileEdits]
) -> Iterator[str]:
    new = None if file.kind is ChangeKind.DELETE else file
    if old is not None and new is not None and (old.kind is ChangeKind.SYMLINK) != (new.kind is ChangeKind.SYMLINK):
        yield from _render_file(FileChange(file.path, ChangeKind.DELETE), old, budget, rendered_edits)
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
    yield f"--- {_with_tab_if_blank(old_name)}\n+++ {_with_tab_if_blank(new_name)}\n"
    before_lines, after_lines = lines_of(old_text), lines_of(new_text)
    edits = find_edits(before_lines, after_lines, budget)
    added, removed = (
        sum(edit.new_to - edit.new_from for edit in edits),
        sum(edit.old_to - edit.old_from for edit in edits),
    )
    rendered_edits.append(FileEdits(file.path, added, removed, old_text, new_text, tuple(edits)))
    yield from _hunks(before_lines, after_lines, edits)


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
    """Split a text at ``\\n`` only; each line keeps its ``\\n``."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _hunks(old: Sequence[str], new: Sequence[str], edits: Sequence[LineEdit]) -> Iterator[str]:
    groups: list[list[LineEdit]] = []
    for edit in edits:
        if groups and edit.old_from - groups[-1][-1].old_to <= 2 * CONTEXT:
            groups[-1].append(edit)
        else:
            groups.append([edit])
    for group in groups:
        yield from _hunk(old, new, group)


def _hunk(old: Sequence[str], new: Sequence[str], group: Sequence[LineEdit]) -> Iterator[str]:
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


def _with_tab_if_blank(name: str) -> str:
    """Return a name, with a tab appended if it contains a blank, so that no reader parses its end as a date."""
    return f"{name}\t" if " " in name else name


def _quote(name: str) -> str:
    """Quote a name as git does: with C escapes if it has control characters, a quote or bytes that are not UTF-8."""
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
