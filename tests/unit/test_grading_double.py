"""A double is told from its original by nothing but what it wants, and fails where its original passes."""

import ast
import os
import random
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.grading.double import Doubled, plant_doubles
from farm.grading.junit import node_ids, parse_junit
from farm.grading.outcome import Outcome
from farm.grading.source import Function, functions, words_of

SOURCE = b'''\
"""Tests."""
import unittest

import pytest

LIMIT = 3


@pytest.fixture
def three():
    return 3


def test_sum():
    assert sum([1, 2]) == 3


@pytest.mark.parametrize("value, wanted", [(1, "1"), (2, "2 "[:1]), (3, "3")])
def test_computed_rows(value, wanted):
    assert str(value) == wanted


@pytest.mark.parametrize("text, wanted", [("a b", ["a", "b"]), pytest.param("c", ["c"], id="one")])
def test_words_of_a_text(text, wanted):
    # a comment goes along
    assert text.split() == wanted


def test_with_a_fixture(three):
    wanted = {"limit": 3, "name": "x\\\\ty"}
    assert {"limit": three, "name": "x\\\\ty"} == wanted


@pytest.mark.parametrize("value", ["x"])
def test_back_and_forth(value):
    assert value.strip() == value


def test_ends_otherwise():
    assert sum([1]) == 1
    LIMIT


def test_refused():
    with pytest.raises(ValueError, match="invalid"):
        int("one")


class TestMore:
    def test_upper(self):
        assert "abc".upper() == "ABC"  # behind it

    def test_lower(self):
        assert "abc" == "ABC".lower()


class CaseTest(unittest.TestCase):
    def testPair(self):
        self.assertEqual(divmod(7, 2), (3, 1))

    def testTruth(self):
        self.assertEqual(bool(1), True)

    def testParts(self):
        self.assertIn("c", "abc")
        self.assertIsNone(None); self.assertRaises(ValueError, int, "one")
'''
FIT = {
    "test_sum",
    "test_words_of_a_text",
    "test_with_a_fixture",
    "TestMore::test_upper",
    "TestMore::test_lower",
    "CaseTest::testPair",
}
SPOILT = {
    "test_computed_rows",
    "test_back_and_forth",
    "test_ends_otherwise",
    "test_refused",
    "CaseTest::testTruth",
    "CaseTest::testParts",
}
"""Their own text says nothing that could be made false."""
WORDS = words_of([SOURCE])


def double(*names: str, source: bytes = SOURCE, seed: int = 1, before: bool = True) -> Doubled | None:
    ids = [f"tests/test_a.py::{name}" for name in names]
    return plant_doubles(source, ids, (), WORDS, random.Random(seed), before=before)


@pytest.mark.parametrize("seed", range(3))
def test_all_tests_pass_as_before_and_each_double_fails(tmp_path: Path, seed: int) -> None:
    false: set[str] = set()
    for number, name in enumerate(sorted(FIT | SPOILT)):
        made = double(name, seed=seed)
        assert made is not None, name
        (tmp_path / f"test_{number}.py").write_bytes(made.content)
        false |= {f"test_{number}.py::{test}" for test in made.false}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml", "."]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(command, cwd=tmp_path, env=alone, check=False, capture_output=True)
    outcomes = parse_junit(
        (tmp_path / "report.xml").read_bytes(), node_ids([f"test_{number}.py" for number in range(len(FIT | SPOILT))])
    )
    assert {test.split("[", 1)[0] for test, outcome in outcomes.items() if outcome is Outcome.FAILED} == false
    assert {test.split("[", 1)[0] for test, outcome in outcomes.items() if outcome is not Outcome.PASSED} == false


@pytest.mark.parametrize("way", ["pytest.raises(ValueError)", "self.assertIn(", "self.assertIsNone(", "assert "])
def test_a_test_that_wants_no_literal_is_spoilt_in_its_own_way_of_asserting(way: str) -> None:
    made = double(
        "test_refused" if "pytest" in way else "CaseTest::testParts" if "self" in way else "test_back_and_forth"
    )
    assert made is not None
    assert made.content.count(way.encode()) > SOURCE.count(way.encode())


def test_neither_length_nor_size_tells_a_double_from_its_original() -> None:
    """It is the shortest by its name, and the least by its value, about as often as the longest and the greatest."""
    shorter, less = [], []
    for seed in range(200):
        made = plant_doubles(ONE, ["tests/test_a.py::test_half"], (), words_of([ONE]), random.Random(seed), before=True)
        assert made is not None
        shorter.append(all(len(name) > len("test_half") for name in made.false))
        values = [int(value) for value in re.findall(rb"== (\d+)", made.content)]
        less.append(min(values) == 24)
    assert sum(shorter) < 100
    assert sum(less) < 100


def test_a_double_does_not_take_the_name_of_a_test_that_its_class_inherits() -> None:
    source = b"class TestHalf(Shared):\n    def test_half(self):\n        assert 48 // 2 == 24\n"
    ids = ["tests/test_a.py::TestHalf::test_half", "tests/test_a.py::TestHalf::test_twice"]
    for seed in range(20):
        made = plant_doubles(source, ids, (), ["twice", "thrice"], random.Random(seed), before=True)
        assert made is not None
        assert not set(made.false) & {"TestHalf::test_twice", "TestHalf::test_half"}


ONE = b"def test_half():\n    assert 48 // 2 == 24\n"


@given(st.integers())
def test_nothing_but_a_name_and_a_value_is_new(seed: int) -> None:
    made = double(*FIT, seed=seed)
    assert made is not None
    source, doubles = made.content, made.false
    assert 1 <= len(doubles) <= 6
    assert all(name.split("::")[-1].encode() not in SOURCE for name in doubles)
    for line in set(source.splitlines()) - set(SOURCE.splitlines()):
        assert any(len(line) - len(old) < 30 and line[:8] == old[:8] for old in SOURCE.splitlines()), line
    assert made == double(*FIT, seed=seed)
    ast.parse(source)


OURS = sorted(Path(__file__).parent.glob("test_*.py"))
"""Test files as people write them."""


@given(st.sampled_from(OURS), st.integers())
def test_the_rest_of_a_file_stands_as_it_stood(path: Path, seed: int) -> None:
    before = path.read_bytes()
    module = ast.parse(before)
    names = [name for name, function, _ in functions(module.body) if function.name.startswith("test_")]
    made = double(*names, source=before, seed=seed)
    after, doubles = (made.content, made.false) if made else (before, ())
    assert list(statements(ast.parse(after).body, after.split(b"\n"), doubles)) == list(
        statements(module.body, before.split(b"\n"), ())
    )


def statements(
    body: Sequence[ast.stmt], lines: Sequence[bytes], but: Collection[str], prefix: str = ""
) -> Iterator[tuple[str, Sequence[bytes]]]:
    """The lines of each statement, a class's head and body apart, with the class it stands in."""
    for statement in body:
        first = first_line(statement)
        if isinstance(statement, ast.ClassDef):
            yield prefix, lines[first - 1 : first_line(statement.body[0]) - 1]
            yield from statements(statement.body, lines, but, f"{prefix}{statement.name}::")
        elif not (isinstance(statement, Function) and prefix + statement.name in but):
            yield prefix, lines[first - 1 : statement.end_lineno]


def first_line(statement: ast.stmt) -> int:
    decorators = statement.decorator_list if isinstance(statement, Function | ast.ClassDef) else []
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def test_where_a_file_knows_its_lines_none_of_them_moves() -> None:
    source = b"import traceback\n\n\n" + SOURCE
    for seed in range(20):
        made = double(*FIT, source=source, seed=seed)
        assert made is None or made.content.startswith(source)
    made = double("CaseTest::testPair", source=source)
    assert made is not None


@pytest.mark.parametrize("source", [b"", b"def test_sum(:", b"\xff\xfe", b"\0", SOURCE.replace(b"\n", b"\r\n")])
def test_what_cannot_be_read_line_by_line_is_left_alone(source: bytes) -> None:
    assert double(*FIT, source=source) is None


def test_words_are_those_of_the_tests() -> None:
    assert {"fixture", "upper", "pair", "back"} <= set(WORDS)
    assert not {"with", "sum", "test"} & set(WORDS)
