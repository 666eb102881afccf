"""Edits as pure functions, against a model that works on lists of lines with their line ends kept apart."""

import contextlib
import re
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandboxes.tools.actions.text_edits import (
    EditedText,
    EditRefused,
    Replacement,
    count_lines,
    decode,
    encode,
    insert,
    line_end,
    lines_around,
    lines_of,
    replace,
    replace_each,
)

bodies = st.text(alphabet="ab é\t\udcff", max_size=4)
"""Line bodies of few letters, so that parts recur; one is a byte that is not UTF-8."""


@st.composite
def texts(draw: st.DrawFn, ends: tuple[str, ...] = ("\n", "\r\n")) -> str:
    """A file: perhaps a byte order mark, lines with either end, perhaps no end at the last."""
    rows = draw(st.lists(st.tuples(bodies, st.sampled_from(ends)), max_size=8))
    mark = "\ufeff" if draw(st.booleans()) else ""
    return mark + "".join(body + end for body, end in rows) + draw(bodies)


def rows_of(text: str) -> list[tuple[str, str]]:
    """Each line with the end it has: the model's way to cut a text."""
    cut = re.findall(r"([^\n]*?)(\r?\n|\Z)", text)
    return [(str(body), str(end)) for body, end in cut if body or end]


@settings(deadline=None)
@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbfcaf\xe9\r\n\x00")
def test_any_bytes_survive_decoding_and_encoding(data: bytes) -> None:
    assert encode(decode(data)) == data


@settings(deadline=None)
@given(texts())
def test_lines_equal_rows_without_line_ends(text: str) -> None:
    lines = lines_of(text)
    assert lines == [body for body, _ in rows_of(text.removeprefix("\ufeff"))]
    assert count_lines(text) == len(lines)


@settings(deadline=None)
@given(texts(), st.data(), st.integers(0, 3))
def test_lines_around_edit_match_whole_text(text: str, data: st.DataObject, margin: int) -> None:
    old, new = data.draw(st.text("ab \n", min_size=1, max_size=3)), data.draw(st.text("abc\n", max_size=5))
    row = data.draw(st.integers(0, len(lines_of(text))))
    edits: tuple[Callable[[], EditedText], ...] = (
        lambda: replace(text, old, new, everywhere=True),
        lambda: replace_each(text, [Replacement(old, new)]),
        lambda: insert(text, row, new or "x"),
    )
    for edit in edits:
        with contextlib.suppress(EditRefused):
            edited = edit()
            lines, last = lines_of(edited.text), max(edited.first, edited.last) + margin
            first, shown = lines_around(edited, margin)
            assert shown == lines[first - 1 : last]
            assert first == max(1, min(edited.first, edited.text.count("\n") + 1) - margin)


@settings(deadline=None)
@given(texts(ends=("\n",)), st.text("ab \n", min_size=1, max_size=4), st.text("abc \n\r", max_size=5))
def test_replace_with_plain_line_ends_equals_string_replacement(text: str, old: str, new: str) -> None:
    places = [i for i in range(len(text)) if text.startswith(old, i)]
    if len(places) == 1 and old != new:
        edited = replace(text, old, new)
        assert edited.text == text[: places[0]] + new + text[places[0] + len(old) :]
        if new:
            assert edited.first == text[: places[0]].count("\n") + 1
    else:
        with pytest.raises(EditRefused):
            replace(text, old, new)


@settings(deadline=None)
@given(texts(), st.text("ab \n", min_size=1, max_size=4), st.text("abc\n", max_size=5))
def test_replace_keeps_mixed_line_ends_elsewhere(text: str, old: str, new: str) -> None:
    flat = text.replace("\r\n", "\n")
    places = [i for i in range(len(flat)) if flat.startswith(old, i)]
    if len(places) != 1 or old == new:
        return
    edited = replace(text, old, new)
    rest = flat[places[0] + len(old) :]
    assert edited.text.replace("\r\n", "\n") == flat[: places[0]] + new + rest
    head = next(i for i in range(len(text) + 1) if text[:i].replace("\r\n", "\n") == flat[: places[0]])
    assert edited.text.startswith(text[:head].removesuffix("\r"))
    tail = next(i for i in range(len(text) + 1) if text[len(text) - i :].replace("\r\n", "\n") == rest)
    assert edited.text.endswith(text[len(text) - tail :])
    written = edited.text[head : len(edited.text) - tail]
    assert re.findall(r"\r?\n", written) == [line_end(text)] * new.count("\n")


def signs_of(text: str) -> list[str]:
    """Its characters, CR LF as one: what the model of a replacement everywhere works on."""
    return re.findall(r"\r\n|.", text, re.DOTALL)


def replaced_everywhere(text: str, old: str, new: str) -> tuple[str, int]:
    """The model: sign by sign, where either line end matches LF; and at how many places."""
    signs, wanted, end = signs_of(text), list(old), line_end(text)
    made, at, places = list[str](), 0, 0
    while at < len(signs):
        here = ["\n" if sign == "\r\n" else sign for sign in signs[at : at + len(wanted)]]
        if here == wanted:
            made += [end if sign == "\n" else sign for sign in new]
            at, places = at + len(wanted), places + 1
        else:
            made.append(signs[at])
            at += 1
    return "".join(made), places


@settings(deadline=None)
@given(texts(), st.text("ab \n", min_size=1, max_size=3), st.text("abc\n", max_size=5))
@example("aaaa\r\n", "aa", "a")
@example("a\n", "a", "\n")
def test_replace_everywhere_goes_from_left_to_right(text: str, old: str, new: str) -> None:
    expected, places = replaced_everywhere(text, old, new)
    if not places or old == new:
        with pytest.raises(EditRefused):
            replace(text, old, new, everywhere=True)
        return
    edited = replace(text, old, new, everywhere=True)
    assert (edited.text, edited.places) == (expected, places)
    assert lines_of(edited.text)[: edited.first - 1] == lines_of(text)[: edited.first - 1]
    broken = new.endswith("\n") and not old.endswith("\n")  # what was behind the last place has a line of its own now
    rest = len(lines_of(edited.text)) - max(edited.first, edited.last) - broken
    assert rest <= 0 or lines_of(edited.text)[-rest:] == lines_of(text)[-rest:]


changes = st.builds(Replacement, st.text("ab \n", max_size=3), st.text("abc\n", max_size=4), everywhere=st.booleans())


@settings(deadline=None)
@given(texts(), st.lists(changes, max_size=4))
def test_several_edits_apply_in_order_or_none(text: str, asked: list[Replacement]) -> None:
    expected, places, why = text, 0, ""
    for change in asked:
        try:
            done = replace(expected, change.old, change.new, everywhere=change.everywhere)
        except EditRefused as refusal:
            why = str(refusal)
            break
        expected, places = done.text, places + done.places
    if why:
        with pytest.raises(EditRefused, match=re.escape(f"so none was made: {why}") + "$"):
            replace_each(text, asked)
        return
    edited = replace_each(text, asked)
    assert (edited.text, edited.places) == (expected, places)
    before, after = lines_of(text), lines_of(expected)
    assert after[: edited.first - 1] == before[: edited.first - 1]
    rest = len(after) - edited.last
    assert rest == 0 or after[-rest:] == before[-rest:]


@pytest.mark.parametrize(("old", "new"), [("a", "b" * 100_000), ("a", "")])
def test_edit_of_too_many_places_is_refused(old: str, new: str) -> None:
    with pytest.raises(EditRefused, match="200,000 places are too many"):
        replace("a" * 200_000, old, new, everywhere=True)


@pytest.mark.parametrize("text", ["a\r\n" * 1000 + "x" * 2**20, "a" * 60_000], ids=["large", "many places"])
def test_edits_needing_minutes_are_all_refused(text: str) -> None:
    changes = [Replacement("a", "aa", everywhere=True), Replacement("aa", "a", everywhere=True)] * 500
    with pytest.raises(EditRefused, match="of 1000, so none was made: the edits are too many for a file of this size"):
        replace_each(text, changes)


def test_refusal_uses_argument_names_of_tool() -> None:
    with pytest.raises(EditRefused, match=r"^edit 2 of 2, so none was made: old_string does not occur"):
        replace_each("a\n", [Replacement("a", "b"), Replacement("a", "c")], names=("old_string", "new_string"))


@settings(deadline=None)
@given(texts(), st.integers(-1, 10), st.lists(bodies, min_size=1, max_size=3), st.booleans())
def test_insert_adds_lines_and_changes_no_others(text: str, at: int, added: list[str], ended: bool) -> None:
    addition = "\n".join(added) + "\n" * ended
    before = rows_of(text.removeprefix("\ufeff"))
    if not 0 <= at <= len(before):
        with pytest.raises(EditRefused):
            insert(text, at, addition)
        return
    if not addition:
        return
    edited = insert(text, at, addition)
    end = line_end(text)
    bodies_added = addition.removesuffix("\n").split("\n") if addition != "\n" else [""]
    after = rows_of(edited.text.removeprefix("\ufeff"))
    assert edited.text.startswith("\ufeff") == text.startswith("\ufeff")
    assert [body for body, _ in after] == [b for b, _ in before[:at]] + bodies_added + [b for b, _ in before[at:]]
    kept = after[:at] + after[at + len(bodies_added) :]
    ended_now = [(body, end) for body, own in before[-1:] if not own]
    assert [one for one, other in zip(kept, before, strict=True) if one != other] in ([], ended_now)
    assert (edited.first, edited.last) == (at + 1, at + len(bodies_added))
    if before and at == len(before) and not before[-1][1]:
        assert edited.text.endswith("\n") == addition.endswith("\n")
    else:
        assert edited.text.endswith("\n") == (not before or not before[at:] or bool(before[-1][1]))


@pytest.mark.parametrize(
    ("text", "old", "told"),
    [
        ("a = 1\nb = 2\n", "a = 1", "same"),
        ("x\nx\nx\n", "x", "3 times, at lines 1, 2, 3"),
        ("aaa", "aa", "2 times, at line 1:"),
        ("x\n" * 100, "x", "more than 20 times"),
        (
            "def area(w, h):\n    return w * h\n",
            "def area(w, h):\n  return w * h\n",
            "but for white space it is at line 1",
        ),
        (
            "import os\n\n\ndef total(xs):\n    return sum(xs)\n",
            "def total(ys):\n    return sum(ys)",
            "     4\tdef total",
        ),
        ("a\nb\n", "     1\ta\n     2\tb", "line numbers"),
        ("a\nb\n", "a\r\nb", "CR LF"),
        ("a\nb\n", "zebra", "no line resembles"),
        ("\ufeffcaf\udce9 one\n", "caf two one", "\\xe9"),
    ],
)
def test_refusal_names_the_remedy(text: str, old: str, told: str) -> None:
    with pytest.raises(EditRefused) as refusal:
        replace(text, old, "a = 1")
    assert told in str(refusal.value)
    str(refusal.value).encode()


def test_refusal_in_huge_file_is_cheap() -> None:
    text = "the same words over and over again in a line\n" * 150_000
    with pytest.raises(EditRefused, match="does not occur"):
        replace(text, "the same words over and over, again\n" * 50, "")
