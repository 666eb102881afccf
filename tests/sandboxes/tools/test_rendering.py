"""Bytes of a sandbox as text for a policy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes.interface import Capture
from sandboxes.tools.packs.default.glob import split_pattern
from sandboxes.tools.rendering import captured, fitting, printed, shown_name, visible
from sandboxes.tools.result_limit import clipped


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m plain", "red plain"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link", "alink"),
        (b"\x1b(B\x1b=ok\x1bM", "ok"),
        (b"\x1b[", "␛["),
        (b"a\r\nb\rc\r\r\nd", "a\nb\nc\n\nd"),
        (b"nul\x00 bell\x07 back\x08 del\x7f", "nul␀ bell␇ back␈ del␡"),
        (b"caf\xe9 \xc3\xa9 \xff\xfe", "caf\ufffd é \ufffd\ufffd"),
        ("\x85\x9b31m".encode(), "\ufffd\ufffd31m"),
        (b"\ttab\n", "\ttab\n"),
    ],
)
def test_program_output_is_rendered_readable(data: bytes, text: str) -> None:
    assert printed(data) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"  1%\r 50%\r100%\ndone\n", "100%\ndone\n"),
        (b"abcdef\rxy\n", "xycdef\n"),
        (b"a\r\nb\r\r\n\r\n", "a\nb\n\n"),
        (b"Downloading 99%\r\x1b[KDone", "Done"),
        (b"Downloading 99%\r\x1b[32m\x1b[0KDone\x1b[0m", "Done"),
        (b"Downloading 99%\x1b[2K\rDone", "Done"),
        (b"working\r\x1b[2K\nnext", "\nnext"),
        (b"caf\xe9\r\x00", "␀af\ufffd"),
        (b"\r\r", ""),
    ],
)
def test_overwritten_line_shows_its_last_state(data: bytes, text: str) -> None:
    assert captured(Capture(data), None) == text


@settings(deadline=None)
@given(st.lists(st.text("ab\x1b[K", max_size=6), min_size=1, max_size=8))
def test_overwriting_works_column_by_column(states: list[str]) -> None:
    shown = list[str]()
    for state in states:
        plain = printed(state.encode())
        if state.startswith("\x1b[K"):
            shown = []
        shown[: len(plain)] = plain
    assert captured(Capture("\r".join(states).encode()), None) == "".join(shown)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_rendered_text_is_clean_and_not_longer(data: bytes) -> None:
    """The text has at most as many characters as the output has bytes."""
    for text in (printed(data), captured(Capture(data), None)):
        assert len(text) <= len(data)
        assert not any((ord(char) < 32 and char not in "\t\n") or 0x7F <= ord(char) < 0xA0 for char in text)
        text.encode()


@given(st.text(st.characters(codec="utf-8", max_codepoint=0xFF)))
def test_visible_renders_each_character_independently(text: str) -> None:
    assert visible(text + "…") == visible(text) + "…"
    assert visible(text) == "".join(map(visible, text))


@settings(deadline=None)
@given(st.text(min_size=1), st.integers(0, 400), st.integers(0, 400))
def test_truncated_character_is_dropped(text: str, head: int, tail: int) -> None:
    data = text.encode()
    head = min(head, len(data))
    tail = min(tail, len(data) - head)
    if head + tail == len(data):
        return
    shown = captured(Capture(data[:head], data[len(data) - tail :], len(data) - head - tail), "/tmp/out")
    assert "\ufffd" not in shown or "\ufffd" in printed(data)
    assert f"{len(data) - head - tail:,} bytes elided; the full output, 64 MiB at most, is in /tmp/out" in shown


def test_capture_halves_are_joined_before_decoding() -> None:
    assert captured(Capture(b"caf\xc3", b"\xa9"), None) == "café"


@settings(deadline=None)
@given(st.text(), st.integers(100, 300))
def test_clipped_keeps_both_ends_within_the_limit(text: str, limit: int) -> None:
    shown = clipped(text * 20, limit)
    assert len(shown) <= limit
    assert shown == text * 20 or (shown.startswith(text[:20]) and shown.endswith(text[-20:]))


@settings(deadline=None)
@given(st.lists(st.text(max_size=5)), st.integers(0, 40))
def test_fitting_returns_number_of_complete_lines(lines: list[str], limit: int) -> None:
    count = fitting(lines, limit)
    assert sum(len(line) + 1 for line in lines[:count]) <= limit
    assert count == len(lines) or sum(len(line) + 1 for line in lines[: count + 1]) > limit


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a b.py", "a b.py"), (b"caf\xe9", "caf\\xe9"), ("line\nbreak\x1b[1m", "line␊break␛[1m"), ("\udcff", "\\xff")],
)
def test_file_name_is_shown_on_one_line(name: str | bytes, shown: str) -> None:
    assert shown_name(name) == shown


@pytest.mark.parametrize(
    ("pattern", "directory", "rest"),
    [
        ("*.py", "", "*.py"),
        ("src/**/*.py", "", "src/**/*.py"),
        ("/srv/app/*.py", "/srv/app/", "/*.py"),
        ("/srv/{a,b}/x", "/srv/", "/{a,b}/x"),
        ("./src/*.py", "./src/", "/*.py"),
        ("../x.py", "../", "/x.py"),
        ("/*", "/", "/*"),
    ],
)
def test_absolute_pattern_is_split_at_its_directory(pattern: str, directory: str, rest: str) -> None:
    assert split_pattern(pattern) == (directory, rest)
