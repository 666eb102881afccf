"""Which lines of the old files a gold solution changes."""

import pytest

from farm.workshop.retrieval import changed_lines


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
        ("a", "a\n", [(1, 1)]),
        ("a\n", "a\n", []),
    ],
)
def test_the_lines_that_a_change_takes_away_or_stands_between(old: str, new: str, lines: list[tuple[int, int]]) -> None:
    assert changed_lines(old.encode(), new.encode()) == lines


def test_of_two_files_that_have_nothing_in_common_it_cannot_be_told() -> None:
    old, new = (b"".join(b"%s %d\n" % (name, number) for number in range(3000)) for name in (b"old", b"new"))
    assert changed_lines(old, new) is None
