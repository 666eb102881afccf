"""Tests that the nesting limit is the same on all Python versions and at any stack depth."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from farm.core.nesting_limit import MAX_DEPTH, TooDeep, check_depth, read_json
from farm.core.toml import read_toml


@pytest.fixture
def _deep_stack() -> Iterator[None]:
    """Raise Python's recursion limit far above its default, as in version 3.13."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    yield
    sys.setrecursionlimit(before)


def _json(depth: int) -> Any:
    return read_json("[" * depth + "]" * depth)


def _objects(depth: int) -> Any:
    return read_json('{"a":' * depth + "1" + "}" * depth)


def _toml(depth: int) -> Any:
    return read_toml(("a = " + "[" * (depth - 1) + "]" * (depth - 1)).encode())  # the document is a level too


@pytest.mark.usefixtures("_deep_stack")
@pytest.mark.parametrize("read", [_json, _objects, _toml])
def test_nesting_beyond_limit_raises(read: Callable[[int], Any]) -> None:
    read(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 1350):
        with pytest.raises(TooDeep, match="more than 100 levels"):
            read(depth)


def test_value_containing_itself_is_too_deep() -> None:
    value: list[Any] = []
    value.extend([value] * 8)
    with pytest.raises(TooDeep):
        check_depth(value)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000])
def test_parser_recursion_error_becomes_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply"):
        read_json(text)


def test_wide_document_is_accepted() -> None:
    assert len(read_json("[" + "[]," * 50_000 + "[]]")) == 50_001
