"""Which lines of the old files a gold solution changes."""

import pytest

from farm.task_generation.searchable_lines import changed_lines, is_unfindable


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("a\nb\nc\n", "a\nB\nc\n", [(2, 2)]),
        ("a\nb\nc\n", "a\nc\n", [(2, 2)]),
        ("a\nb\nc\n", "a\nb\nnew\nc\n", [(2, 3)]),
        ("a\nb\nc\n", "new\na\nb\nc\n", [(1, 1)]),
        ("a\nb\nc\n", "a\nb\nc\nnew\n", [(3, 3)]),
        ("a\nb\nc\nd\ne\n", "A\nb\nc\nd\nE\n", [(1, 1), (5, 5)]),
        ("a\nb\n", "", [(1, 2)]),
        ("", "new\n", []),
        ("a", "a\n", []),
        ("a\n", "a\n", []),
    ],
)
def test_removed_and_adjacent_lines_are_returned(old: str, new: str, lines: list[tuple[int, int]]) -> None:
    assert changed_lines("a.py", old.encode(), new.encode()) == lines


@pytest.mark.parametrize(
    ("path", "old", "new", "lines"),
    [
        ("a.py", '__version__ = "1.2"\nx = 1\n', '__version__ = "1.3"\nx = 1\n', []),
        ("a.py", "VERSION = (1, 2)\n", "VERSION = (1, 3)\n", []),
        ("a.py", "version = old()\n", "version = new()\n", [(1, 1)]),
        ("a.py", "# one\nx = 1\n", "# two\nx = 1\n", []),
        ("a.py", "f(a,\n  b)\n", "f(\n    a, b\n)\n", []),
        ("a.py", "a\n# one\n\nb\n", "A\nB\n", [(1, 1), (4, 4)]),
        ("a.py", "a\n# later\nb\n", "a\nnow\nb\n", [(1, 3)]),
        ("a.c", "#define A 1\n", "#define A 2\n", [(1, 1)]),
        ("a.c", "// one\n/* two\n * three */\n", "// 1\n", []),
    ],
)
def test_comments_and_versions_are_left_out(path: str, old: str, new: str, lines: list[tuple[int, int]]) -> None:
    assert changed_lines(path, old.encode(), new.encode()) == lines


@pytest.mark.parametrize("path", ["p/_meta.py", "p/__about__.py", "_version.py", "locale/de/humanize.po", "setup.cfg"])
def test_metadata_and_catalogues_are_unfindable(path: str) -> None:
    assert is_unfindable(path)
    assert not is_unfindable("p/metadata.py")


def test_too_different_files_give_none() -> None:
    old, new = (b"".join(b"%s %d\n" % (name, number) for number in range(3000)) for name in (b"old", b"new"))
    assert changed_lines("a.py", old, new) is None
