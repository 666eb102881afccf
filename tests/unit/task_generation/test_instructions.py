"""A failed test in words, and instructions that name no changed file where they must not."""

import ast

import pytest

from farm.task_generation.mutation.fault_choice import Fault
from farm.task_generation.mutation.trials import FailedTest
from farm.task_generation.wording.failing_statement import Example
from farm.task_generation.wording.failure_examples import best_examples, describe_failure, describe_wanted
from farm.task_generation.wording.instructions import Symptom, names_a_file, write_instruction

TESTS = b"""\
import unittest
import pytest
import lib


@pytest.mark.parametrize("args, expected", [([1000], "1,000")])
def test_comma(args, expected):
    assert lib.comma(*args) == expected


def test_steps():
    text = "a  b"
    result = lib.squeeze(text)
    assert result == "a b"
    text = "c"
    assert lib.squeeze(text) == "c"


def test_lambda():
    f = lambda sql: lib.format(sql, upper=True)
    assert f("a") == "\\n".join(["A", "B"])


def test_raises():
    with pytest.raises(ValueError):
        lib.parse("x")


def test_pair():
    'Of two.'
    left, right = lib.split("a-b")
    assert right == "b"


def test_state():
    'Of a box.'
    box = lib.Box()
    box.put(1)
    assert len(box) == 1


def test_address():
    assert lib.make() == object()


class TestUnit(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(lib.size([1]), 1)
        self.assertEqual(self.other, 2)

    def test_long(self):
        text = (
            "LONG"
        )
        self.assertEqual(text, lib.render(text))
"""


def line_of(text: str, nth: int = 0) -> int:
    return [number for number, line in enumerate(TESTS.decode().splitlines(), 1) if text in line][nth]


def failure(test: str, line: int, **fields: object) -> FailedTest:
    plain = {"error": "AssertionError", "message": "", "deeper": False, "compared": None, "names": {}}
    return FailedTest.model_validate({"test": f"test_a.py::{test}", "line": line, **plain, **fields})


def told(one: FailedTest) -> str | None:
    example = describe_failure(one, {"test_a.py": TESTS})
    return None if example is None else example.text


def test_arguments_are_shown_in_the_call() -> None:
    one = failure(
        "test_comma[args0-1,000]",
        line_of("lib.comma"),
        compared=["==", "'1000'", "'1,000'"],
        names={"args": "[1000]", "expected": "'1,000'"},
    )
    assert told(one) == "`lib.comma(1000)` gives `'1000'`, where `'1,000'` is expected."


def test_names_have_their_value_at_the_line() -> None:
    names = {"text": "'a  b'", "result": "'a  b'"}
    one = failure("test_steps", line_of('result == "a b"'), compared=["==", "'a  b'", "'a b'"], names=names)
    assert told(one) == "`lib.squeeze('a  b')` gives `'a  b'`, where `'a b'` is expected."
    later = failure(
        "test_steps", line_of('== "c"'), error="KeyError", message="'c'", deeper=True, names={"text": "'c'"}
    )
    assert told(later) == "`lib.squeeze('c')` raises `KeyError: 'c'`, where `'c'` is expected."


def test_lambda_and_join_are_reduced() -> None:
    one = failure("test_lambda", line_of('f("a")'), compared=["==", "'a'", "'A\\nB'"])
    assert told(one) == "`lib.format('a', upper=True)` gives `'a'`, where `'A\\nB'` is expected."


def test_one_of_several_results_is_indexed() -> None:
    names = {"left": "'a'", "right": "'a'"}
    one = failure("test_pair", line_of('right == "b"'), compared=["==", "'a'", "'b'"], names=names)
    assert told(one) == "`lib.split('a-b')[1]` gives `'a'`, where `'b'` is expected."


def test_changes_in_between_are_shown() -> None:
    one = failure("test_state", line_of("len(box)"), compared=["==", "0", "1"])
    block = "After\n\n  ```python\n  box = lib.Box()\n  box.put(1)\n  ```\n\n  "
    assert told(one) == block + "`len(box)` gives `0`, where `1` is expected."


def test_missing_exception_is_described() -> None:
    one = failure("test_raises", line_of("lib.parse"), error="Failed", message="DID NOT RAISE")
    assert told(one) == "`lib.parse('x')` is to raise `ValueError`, and does not."
    other = failure("test_raises", line_of("lib.parse"), error="KeyError", message="'x'", deeper=True)
    assert told(other) == "`lib.parse('x')` raises `KeyError: 'x'`, where `ValueError` is expected."


def test_unittest_assertion_is_described() -> None:
    one = failure("TestUnit::test_equal", line_of("lib.size"), deeper=True, message="2 != 1")
    assert told(one) == "`lib.size([1])` is to be `1`, and is not."
    assert told(failure("TestUnit::test_equal", line_of("self.other"), deeper=True)) is None


def test_long_description_has_steps() -> None:
    test = {"test_a.py": TESTS.replace(b"LONG", b"x" * 400)}
    one = failure("TestUnit::test_long", line_of("lib.render"), error="KeyError", message="1", deeper=True)
    assert describe_failure(one, test) is None
    example = describe_failure(one, test, at_length=True)
    assert example is not None
    assert example.text.startswith("After\n\n  ```python\n  text = (\n")
    assert example.text.endswith("`lib.render(text)` raises `KeyError: 1`, where `text` is expected.")


def test_values_of_one_run_are_not_shown() -> None:
    compared = ["==", "<A object at 0x7f>", "<object object at 0x7e>"]
    assert told(failure("test_address", line_of("lib.make"), compared=compared)) is None
    assert told(failure("test_gone", 0)) is None


def test_missing_feature_is_described_by_wanted_behaviour() -> None:
    one = failure("test_steps", line_of("lib.squeeze(text)"), error="NotImplementedError", names={"text": "'a  b'"})
    texts = [example.text for example in describe_wanted(one, {"test_a.py": TESTS})]
    assert texts == ["`lib.squeeze('a  b')` is to give `'a b'`.", "`lib.squeeze('c')` is to give `'c'`."]


def symptom(path: str = "src/lib/core.py") -> Symptom:
    one = failure(
        "test_steps", line_of('result == "a b"'), compared=["==", "'a  b'", "'a b'"], names={"text": "'a  b'"}
    )
    example = describe_failure(one, {"test_a.py": TESTS})
    assert example is not None
    return Symptom(Fault("k", path, "squeeze", "condition", (), ()), (example,))


SOURCES = {"src/lib/core.py": b'def squeeze(text):\n    """Make spaces one. And more."""\n'}


@pytest.mark.parametrize("feature", [False, True])
def test_higher_instruction_levels_reveal_less(feature: bool) -> None:
    first, second, third = (
        write_instruction("lib", [symptom()], SOURCES, level, feature=feature) or "" for level in (1, 2, 3)
    )
    assert "src/lib/core.py" in first
    assert "`squeeze`" in second
    assert '"Make spaces one"' in second
    assert "squeeze`" not in third
    assert "lib.squeeze('a  b')" in third
    for text in (second, third):
        assert not names_a_file(text, ["src/lib/core.py"])


def test_instruction_that_names_the_file_is_refused() -> None:
    source = {"src/lib/core.py": b'def squeeze(text):\n    """Of core.py."""\n'}
    assert write_instruction("lib", [symptom()], source, 1, feature=False) is not None
    assert write_instruction("lib", [symptom()], source, 2, feature=False) is None
    nothing = Symptom(symptom().fault, ())
    assert write_instruction("lib", [nothing], source, 1, feature=False) is None


def test_best_examples_cover_several_tests() -> None:
    one = symptom().examples[0]
    vague = type(one)("t::other", "`x`", places=frozenset({"t.py"}))
    longer = type(one)(one.test, one.text + " And so on.")
    assert best_examples([vague, longer, one], 2) == [one, vague]
    assert best_examples([vague, longer, one], 2, avoid=["squeeze"])[0] in (one, longer)
    assert ast.parse(TESTS)


BORROWED = b'''\
import pytest
import lib
from tests.support import shape

WIDTH = 12


@pytest.fixture
def runner():
    made = lib.Runner()
    return made


def brief(text):
    return text[:3]


class StatementNames:
    def test_own(self, tmp_path):
        assert brief(lib.wrap("a", WIDTH)) == shape("b")

    def test_nested(self, runner):
        @lib.command
        def greet():
            return """
                Hello
            """
        result = runner.call(greet)
        assert lib
        assert result.output == "Hello"

    @pytest.mark.parametrize("kind", [lib.A, lib.B])
    def test_parameter(self, kind):
        assert lib.make(kind) == "a"

    def test_around(self):
        counted = []

        def call(item):
            assert item == lib.count(counted)

        lib.each(call)

    def test_with(self):
        box = lib.Box(1)
        box.shut()
        with pytest.raises(lib.Closed) as caught:
            box.take()
        assert caught.value.depth == 2

    def test_turned(self):
        made = lib.parse("1997-07-16")
        assert made == lib.date(1997, 7, 16)
        expected = lib.date(1997, 7, 16)
        assert expected == lib.parse("1997-07-16")
        assert_equal(expected, made)

    def test_clock(self):
        made = lib.now()
        with lib.frozen("2020-01-01"):
            assert lib.age(made) == 7

    def test_same(self):
        assert lib.Box(1) == lib.Box(1)
'''


def told_of(test: str, text: str, **fields: object) -> Example | None:
    line = next(number for number, line in enumerate(BORROWED.decode().splitlines(), 1) if text in line)
    one = failure("", line, **fields).model_copy(update={"test": f"tests/test_b.py::StatementNames::{test}"})
    return describe_failure(one, {"tests/test_b.py": BORROWED, "tests/support.py": b"def shape(text): ...\n"})


def test_names_of_the_tests_are_explained() -> None:
    example = told_of("test_own", "brief(lib")
    assert example is not None
    assert example.text == (
        "`brief(lib.wrap('a', WIDTH))` is to be `shape('b')`, and is not."
        " (`WIDTH` is `12`) (`brief` is in `tests/test_b.py`) (`shape` is in `tests/support.py`)"
    )
    assert example.places == {"tests/test_b.py", "tests/support.py"}


def test_steps_keep_function_definitions() -> None:
    example = told_of("test_nested", "result.output")
    assert example is not None
    assert example.text == (
        'After\n\n  ```python\n  @lib.command\n  def greet():\n      return """\n                  Hello\n'
        '              """\n  result = runner.call(greet)\n  ```\n\n  '
        "`result.output` is to be `'Hello'`, and is not. (`runner` is a fixture in `tests/test_b.py`)"
    )


def test_unknown_names_give_no_example() -> None:
    assert told_of("test_parameter", "lib.make(kind)") is None
    assert told_of("test_around", "lib.count(counted)") is None
    assert told_of("test_clock", "lib.age(made)") is None


def test_steps_before_an_expected_error() -> None:
    example = told_of("test_with", "box.take()", error="KeyError", deeper=True)
    assert example is not None
    assert example.text.endswith(
        "  box = lib.Box(1)\n  box.shut()\n  ```\n\n  `box.take()` raises `KeyError`, where `lib.Closed` is expected."
    )
    after = told_of("test_with", "caught.value.depth")
    assert after is not None
    assert "  with pytest.raises(lib.Closed) as caught:\n      box.take()\n  ```" in after.text


def test_expected_side_of_a_comparison() -> None:
    said = "`lib.parse('1997-07-16')` is to be `lib.date(1997, 7, 16)`, and is not."
    for line in ("assert made ==", "assert expected =="):
        example = told_of("test_turned", line)
        assert example is not None
        assert example.text == said
    helper = told_of("test_turned", "assert_equal(expected", deeper=True)
    assert helper is not None
    assert helper.text == said


def test_comparison_of_equal_expressions() -> None:
    example = told_of("test_same", "lib.Box(1) ==")
    assert example is not None
    assert example.text == "`lib.Box(1) == lib.Box(1)` is to hold, and does not."
    one = failure("", BORROWED[: BORROWED.index(b"lib.Box(1) ==")].count(b"\n") + 1)
    one = one.model_copy(update={"test": "tests/test_b.py::StatementNames::test_same"})
    assert [wanted.text for wanted in describe_wanted(one, {"tests/test_b.py": BORROWED})] == [
        "`lib.Box(1) == lib.Box(1)` is to hold."
    ]
