"""Patches as pure functions, against a model that never looks for lines: it knows where each edit was made."""

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandboxes.tools.actions.text_edits import EditRefused
from sandboxes.tools.actions.v4a_patch import (
    Section,
    V4aAdd,
    V4aDelete,
    V4aError,
    V4aHunk,
    V4aUpdate,
    _SearchableLines,
    apply_patch,
    parse_patch,
    update,
)

WHITE = " \t\u00a0\u2003"
bodies = st.text(alphabet="ab é\udcff\u2019-", max_size=4)
ends = st.sampled_from(["\n", "\r\n"])


@dataclass(frozen=True)
class Edit:
    """A file's rows, each with what is put before it and whether it goes; and what is put at the end."""

    rows: tuple[tuple[str, str], ...]
    before: tuple[tuple[str, ...], ...]
    gone: tuple[bool, ...]
    after: tuple[str, ...]
    mark: str

    @property
    def text(self) -> str:
        return self.mark + "".join(body + end for body, end in self.rows)

    @property
    def edited(self) -> str:
        end = next((end for _, end in self.rows if end), "\n")
        left: list[tuple[str, str]] = []
        for row, added, gone in zip(self.rows, self.before, self.gone, strict=True):
            left += [(body, end) for body in added]
            left += [] if gone else [row]
        left += [(body, end) for body in self.after]
        closed = [(body, tail or end) for body, tail in left[:-1]] + left[-1:]
        return self.mark + "".join(body + tail for body, tail in closed)

    def lines(self) -> list[tuple[str, str]]:
        """One hunk that says it all."""
        found: list[tuple[str, str]] = []
        for (body, _), added, gone in zip(self.rows, self.before, self.gone, strict=True):
            found += [("+", text) for text in added]
            found.append(("-" if gone else " ", body))
        return found + [("+", text) for text in self.after]


@st.composite
def edits(draw: st.DrawFn, unique: bool = False) -> Edit:
    count = draw(st.integers(1, 12))
    rows = [(f"{i}:{draw(bodies)}" if unique else draw(bodies), draw(ends)) for i in range(count)]
    if draw(st.booleans()) and rows[-1][0]:
        rows[-1] = (rows[-1][0], "")
    added = st.lists(bodies, max_size=2).map(tuple)
    return Edit(
        tuple(rows),
        tuple(draw(added) if draw(st.booleans()) else () for _ in rows),
        tuple(draw(st.sampled_from([True, False, False])) for _ in rows),
        draw(added),
        draw(st.sampled_from(["", "", "\ufeff"])),
    )


def hunk(lines: list[tuple[str, str]], header: str | None = None, at_end: bool = False) -> V4aHunk:
    return V4aHunk(header, tuple(lines), at_end, 0)


def cut(lines: list[tuple[str, str]], context: int) -> list[V4aHunk]:
    """The lines as hunks with so many lines around each change; at least one old line in each."""
    near = {
        index for at, (sign, _) in enumerate(lines) if sign != " " for index in range(at - context, at + context + 1)
    }
    hunks: list[list[tuple[str, str]]] = [[]]
    for index, line in enumerate(lines):
        if index in near:
            hunks[-1].append(line)
        elif hunks[-1]:
            hunks.append([])
    return [hunk(found) for found in hunks if found]


def written(sections: list[Section]) -> str:
    lines = ["*** Begin Patch"]
    for section in sections:
        match section:
            case V4aAdd(path, text):
                lines += [f"*** Add File: {path}", *(f"+{line}" for line in text.split("\n")[:-1])]
            case V4aDelete(path):
                lines.append(f"*** Delete File: {path}")
            case V4aUpdate(path, move_to, hunks):
                lines += [f"*** Update File: {path}", *([f"*** Move to: {move_to}"] if move_to else [])]
                for each in hunks:
                    lines.append("@@" if each.header is None else f"@@ {each.header}")
                    lines += [sign + text for sign, text in each.lines]
                    lines += ["*** End of File"] if each.at_end else []
    return "\n".join([*lines, "*** End Patch"])


@settings(deadline=None)
@given(edits())
def test_hunk_of_whole_file_gives_edited_file(edit: Edit) -> None:
    assert update(edit.text, [hunk(edit.lines())]) == edit.edited


@settings(deadline=None)
@given(edits(unique=True), st.integers(1, 3))
def test_hunks_with_context_give_edited_file(edit: Edit, context: int) -> None:
    hunks = cut(edit.lines(), context)
    if all(any(sign != "+" for sign, _ in each.lines) for each in hunks):
        assert update(edit.text, hunks) == edit.edited


@settings(deadline=None)
@given(edits(unique=True), st.lists(st.text(WHITE, max_size=2), min_size=48, max_size=48))
def test_white_space_difference_in_old_lines_is_tolerated(edit: Edit, white: list[str]) -> None:
    lines = [
        (sign, text if sign == "+" else white[i % 48] + text + white[-i % 48])
        for i, (sign, text) in enumerate(edit.lines())
    ]
    assert update(edit.text, [hunk(lines)]) == edit.edited


@settings(deadline=None)
@given(edits(), edits())
def test_patch_leaves_unnamed_files_unchanged(one: Edit, other: Edit) -> None:
    texts = {"a": one.text, "b": other.text, "c": None}
    patch: list[Section] = [V4aUpdate("a", None, (hunk(one.lines()),)), V4aAdd("c", "new\n")]
    assert apply_patch(patch, texts) == {"a": one.edited, "c": "new\n"}


@settings(deadline=None)
@given(edits(), st.sampled_from(["missing", "delete", "misfit"]))
def test_failing_section_applies_nothing(edit: Edit, trouble: str) -> None:
    last: dict[str, Section] = {
        "missing": V4aUpdate("no", None, (hunk([("-", "x")]),)),
        "delete": V4aDelete("no"),
        "misfit": V4aUpdate("b", None, (hunk([("-", "not there")]),)),
    }
    texts = {"a": edit.text, "b": "b\n", "no": None}
    with pytest.raises(EditRefused):
        apply_patch([V4aUpdate("a", None, (hunk(edit.lines()),)), last[trouble]], texts)
    assert texts == {"a": edit.text, "b": "b\n", "no": None}


names = st.text("ab/.é ", min_size=1, max_size=6).filter(lambda name: name == name.strip())
texts = st.text(alphabet="ab *@+-é", max_size=5)
hunks = st.builds(
    V4aHunk,
    st.none() | texts.filter(bool),
    st.lists(st.tuples(st.sampled_from(" -+"), texts), min_size=1, max_size=4).map(tuple),
    st.booleans(),
    st.just(0),
)
sections = st.one_of(
    st.builds(V4aAdd, names, st.lists(texts, max_size=3).map(lambda lines: "".join(f"{line}\n" for line in lines))),
    st.builds(V4aDelete, names),
    st.builds(V4aUpdate, names, st.none() | names, st.lists(hunks, min_size=1, max_size=3).map(tuple)),
)


def unnumbered(found: tuple[Section, ...]) -> list[Section]:
    return [
        V4aUpdate(each.path, each.move_to, tuple(V4aHunk(h.header, h.lines, h.at_end, 0) for h in each.hunks))
        if isinstance(each, V4aUpdate)
        else each
        for each in found
    ]


@settings(deadline=None)
@given(st.lists(sections, min_size=1, max_size=4))
def test_written_patch_is_parsed_unchanged(patch: list[Section]) -> None:
    assert unnumbered(parse_patch(written(patch))) == patch


markers = ["Begin Patch", "End Patch", "Add File: a", "Delete File: ", "Update File: a", "End of File", "Move to: b"]
others = ["@@", "@@ a", "@@a", "+a", "-a", " a", "", "a", "<<'EOF'", "EOF", "\0", "*", "\ufeff", "\r"]
pieces = st.sampled_from([f"*** {name}" for name in markers] + others)


@settings(deadline=None)
@given(st.lists(pieces | st.text(max_size=3), max_size=12), st.text(alphabet="a\n\r \ufeff\udcff", max_size=12))
@example([], "")
@example(["*** Update File: a", "@@", "-"], "a")
def test_hostile_patch_applies_or_is_refused(lines: list[str], text: str) -> None:
    for patch in ("\n".join(lines), "\n".join(["*** Begin Patch", *lines, "*** End Patch"])):
        try:
            found = parse_patch(patch)
            named = {each.path for each in found} | {e.move_to for e in found if isinstance(e, V4aUpdate) and e.move_to}
            changed = apply_patch(found, dict.fromkeys(named, text))
        except (V4aError, EditRefused):
            continue
        assert set(changed) <= named


def sought(lines: list[str], wanted: list[str], start: int, at_end: bool) -> int | None:
    """The search as the public program words it: pass after pass, line by line."""
    plain = str.maketrans("\u2019\u2013\u00a0", "'- ")
    passes = (str, str.rstrip, str.strip, lambda line: line.strip().translate(plain))
    first = len(lines) - len(wanted) if at_end else start
    for each in passes:
        for at in range(max(first, 0), len(lines) - len(wanted) + 1):
            if all(each(lines[at + i]) == each(wanted[i]) for i in range(len(wanted))):
                return at
    return None


few = st.lists(st.sampled_from(["a", "a ", " a", "", "'", "\u2019", "-\u00a0a", "\u2013 a"]), max_size=8)


@settings(deadline=None)
@given(few, few.filter(bool), st.integers(0, 8), st.booleans())
def test_lines_are_sought_like_public_program(lines: list[str], wanted: list[str], start: int, at_end: bool) -> None:
    assert _SearchableLines(lines).seek(wanted, start, at_end=at_end) == sought(lines, wanted, start, at_end)


APPLIED = {
    "a change": ("a\nb\nc\n", "@@\n a\n-b\n+B\n c", "a\nB\nc\n"),
    "the first hunk may lack its marker": ("a\nb\n", "-a\n+A", "A\nb\n"),
    "several hunks": ("a\nb\nc\nd\n", "@@\n a\n-b\n+B\n@@\n c\n-d\n+D", "a\nB\nc\nD\n"),
    "a header says after which line": ("x\nf\nx\n", "@@ f\n-x\n+y", "x\nf\ny\n"),
    "a header is looked for below what was found": ("f\nx\nA\nf\nx\n", "@@\n A\n@@ f\n-x\n+y", "f\nx\nA\nf\ny\n"),
    "a last line without an end that is replaced has one then": ("a\nb", "@@\n a\n-b\n+c", "a\nc\n"),
    "a last line without an end that stays has none": ("a\nb", "@@\n-a\n+A\n b", "A\nb"),
    "a line after one without an end": ("a", "@@\n a\n+b", "a\nb\n"),
    "lines to add and nothing around them go to the end": ("a\nb\n", "@@ a\n+c", "a\nb\nc\n"),
    "before a last line that is empty": ("a\n\n", "@@\n+c", "a\nc\n\n"),
    "lines to remove only": ("a\nb\nc\n", "@@\n a\n-b\n c", "a\nc\n"),
    "at the end of the file": ("x\ny\nx\n", "@@\n-x\n+z\n*** End of File", "x\ny\nz\n"),
    "an empty line of the patch is an empty line": ("a\n\nb\n", "@@\n a\n\n-b\n+c", "a\n\nc\n"),
    "an empty old line after the last is the line end": ("a\n", "@@\n-a\n-\n+b\n+", "b\n"),
    "line ends are those of the file": ("a\r\nb\nc\r\n", "@@\n a\n b\n-c\n+C", "a\r\nb\nC\r\n"),
    "plain letters stand for those of typography": (
        "say \u201chi\u201d \u2013 now\n",
        '@@\n-say "hi" - now\n+x',
        "x\n",
    ),
    "an empty file": ("", "@@\n+a", "a\n"),
}


@pytest.mark.parametrize(("text", "body", "becomes"), APPLIED.values(), ids=APPLIED.keys())
def test_patch_is_applied_like_public_program(text: str, body: str, becomes: str) -> None:
    (section,) = parse_patch(f"*** Begin Patch\n*** Update File: f\n{body}\n*** End Patch\n")
    assert isinstance(section, V4aUpdate)
    assert update(text, section.hunks) == becomes


REFUSED = {
    "no begin": ("x", 'the first line of a patch is "*** Begin Patch", not "x"'),
    "no end": ("*** Begin Patch\n*** Delete File: a", 'the last line of a patch is "*** End Patch"'),
    "nothing in it": ("*** Begin Patch\n*** End Patch", "no section"),
    "an unknown section": ("*** Begin Patch\n*** Frob: a\n*** End Patch", 'line 2: "*** Frob: a" begins no section'),
    "an update of nothing": (
        "*** Begin Patch\n*** Update File: a\n*** End Patch",
        "line 2: the update of a has no hunk",
    ),
    "a second hunk without a marker": (
        "*** Begin Patch\n*** Update File: a\n@@\n-x\n*** End of File\nx\n*** End Patch",
        'line 6: a hunk begins with "@@", not "x"',
    ),
    "a line without a sign": (
        "*** Begin Patch\n*** Update File: a\n@@\nx\n*** End Patch",
        'line 4: "x" in a hunk begins neither with a space nor with - or +',
    ),
    "a hunk of nothing": ("*** Begin Patch\n*** Update File: a\n@@\n*** End Patch", "line 3: the hunk has no lines"),
    "a path that is none": ("*** Begin Patch\n*** Delete File: a\0b\n*** End Patch", "is no path"),
}


@pytest.mark.parametrize(("patch", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_malformed_patch_names_its_line(patch: str, told: str) -> None:
    with pytest.raises(V4aError) as error:
        parse_patch(patch)
    assert told in str(error.value)


MISFITS = {
    "lines that are nearly there": (
        [hunk([(" ", "def area(w, h):"), ("-", "    return w * d")])],
        "hunk 1 of 1 (line 0 of the patch): what its lines expect does not occur; the nearest is at line 2",
    ),
    "a header that is no whole line": (
        [hunk([("-", "x = 1")], header="class Box")],
        '"@@ class Box": what follows @@ must be a whole line of the file; it does not occur; the nearest is at line 1',
    ),
    "hunks out of order": (
        [hunk([("-", "x = 1")]), hunk([("-", "class Box:")])],
        "hunk 2 of 2 (line 0 of the patch): its lines are at line 1, above line 5",
    ),
    "a header above": (
        [hunk([("-", "x = 1")]), hunk([("-", "y = 2")], header="class Box:")],
        "must be a whole line of the file after line 4; it is line 1",
    ),
    "not at the end": ([hunk([("-", "class Box:")], at_end=True)], "at line 1, not at the end of the file"),
}


@pytest.mark.parametrize(("found", "told"), MISFITS.values(), ids=MISFITS.keys())
def test_misfitting_hunk_names_nearest_lines(found: list[V4aHunk], told: str) -> None:
    with pytest.raises(EditRefused) as error:
        update("class Box:\n    def area(self, w, h):\n        return w * h\nx = 1\ny = 2\n", found)
    assert told in str(error.value)


def test_heredoc_argument_is_unwrapped() -> None:
    patch = "*** Begin Patch\n*** Delete File: a\n*** End Patch"
    for opening in ("<<EOF", "<<'EOF'", '<<"EOF"'):
        assert parse_patch(f"{opening}\n{patch}\nEOF\n") == (V4aDelete("a"),)


def test_sections_are_applied_in_order() -> None:
    patch: list[Section] = [
        V4aAdd("a", "one\n"),
        V4aUpdate("a", "b", (hunk([("-", "one"), ("+", "two")]),)),
        V4aUpdate("b", None, (hunk([("-", "two"), ("+", "three")]),)),
    ]
    assert apply_patch(patch, {"a": None, "b": "old\n"}) == {"a": None, "b": "three\n"}


def test_oversized_patch_is_refused() -> None:
    large = ("a" * 99 + "\n") * 10_000
    patch: list[Section] = [V4aUpdate("f", None, (hunk([(" ", "a" * 99)]),) * 10)]
    assert apply_patch(patch, {"f": large}) == {"f": large}
    with pytest.raises(EditRefused, match="f: the patch has too many hunks for files of this size"):
        apply_patch(patch * 10, {"f": large})
    with pytest.raises(EditRefused, match="more than 262,144 lines"):
        update("\n" * 300_000, [hunk([(" ", "a")])])
    with pytest.raises(V4aError, match="more than 262,144 lines"):
        parse_patch("*** Begin Patch\n*** Add File: f\n" + "+\n" * 300_000 + "*** End Patch")
