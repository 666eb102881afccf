"""The author of a task wants its compose file to take more of the processor than a file of its size should.

Work is counted as calls of Python functions, which is the same on each machine.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import yaml

from farm.tasks import TaskError
from farm.tasks.schema.compose import MAX_BYTES, parse_compose

FILE = Path("task/environment/docker-compose.yaml")
SERVICE = "services: {main: {}}\n"
STEPS_MAX = 600_000
"""Some 10 calls for each of the 64 Ki characters: what the scanner needs for text that is one value."""


def steps(work: Callable[[], object]) -> int:
    """Return the number of calls of Python functions in ``work`` until it ends or raises."""
    count = 0

    def observe(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(observe)
    try:
        work()
    except (TaskError, yaml.YAMLError, ArithmeticError):
        pass
    finally:
        sys.setprofile(before)
    return count


def filled(part: str, before: str = "", after: str = "") -> str:
    """Repeat a part, in which ``#`` is its number, up to the size of the largest file."""
    parts: list[str] = []
    size = len(SERVICE) + len(before) + len(after)
    while size + len(part) + 5 < MAX_BYTES:
        parts.append(part.replace("#", str(len(parts))))
        size += len(parts[-1])
    return SERVICE + before + "".join(parts) + after


MANY_VALUES = {
    "items": filled("a,", "x-a: [", "]"),
    "lists": filled("[],", "x-a: [", "]"),
    "objects": filled("{},", "x-a: [", "]"),
    "block": filled("- a\n", "x-a:\n"),
    "nested block": filled("- - a\n", "x-a:\n"),
    "keys": filled("x-#:\n"),
    "tags": filled("!!str a,", "x-a: [", "]"),
}


@pytest.mark.parametrize("text", MANY_VALUES.values(), ids=MANY_VALUES)
def test_number_of_values_is_bounded(text: str) -> None:
    assert len(text) <= MAX_BYTES
    assert steps(lambda: yaml.safe_load(text)) > STEPS_MAX
    assert steps(lambda: parse_compose(FILE, text.encode())) < STEPS_MAX
    with pytest.raises(TaskError, match="more than 2000 values"):
        parse_compose(FILE, text.encode())


def test_aliases_do_not_multiply_values() -> None:
    """Each level holds the one below it twice, so that eight lines stand for 256 times the first one."""
    first = "x-a0: &a0 [" + "a," * 1_900 + "]\n"
    levels = "".join(f"x-a{level}: &a{level} [*a{level - 1}, *a{level - 1}]\n" for level in range(1, 9))
    text = f"{first}{levels}services: {{main: {{image: *a8}}}}"
    assert len(str(yaml.safe_load(text)["services"])) > 100 * len(text)
    with pytest.raises(TaskError, match="an alias inside a value with an anchor"):
        parse_compose(FILE, text.encode())


def test_merges_do_not_multiply_keys() -> None:
    first = "x-a0: &a0 {" + "".join(f"k{number}: 1," for number in range(900)) + "}\n"
    levels = "".join(f"x-a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 6))
    text = f"{first}{levels}services: {{main: {{}}}}"
    assert steps(lambda: yaml.safe_load(text)) > STEPS_MAX
    assert steps(lambda: parse_compose(FILE, text.encode())) < STEPS_MAX


@pytest.mark.parametrize("bracket", "[{")
def test_brackets_are_not_scanned_beyond_the_depth(bracket: str) -> None:
    """The scanner compares each open bracket with all others, 1,024 brackets ahead of the parser."""
    text = f"{SERVICE}x-a: {bracket * 60_000}"
    assert steps(lambda: parse_compose(FILE, text.encode())) < 10_000


@pytest.mark.parametrize("end", ["", ".5"])
def test_long_number_is_refused_before_its_digits_are_multiplied(end: str) -> None:
    text = f"{SERVICE}x-a: 1{':1' * 30_000}{end}"
    with pytest.raises(TaskError, match="a value of more than 64 characters that is no text"):
        parse_compose(FILE, text.encode())


@pytest.mark.parametrize("text", ["x: !!int ''", "x: !!float ''", "x: !!bool y", "x: !!timestamp y", "x: 2020-99-99"])
def test_value_that_no_conversion_takes_is_an_error_of_the_task(text: str) -> None:
    with pytest.raises(TaskError, match="not YAML"):
        parse_compose(FILE, f"{SERVICE}{text}".encode())
