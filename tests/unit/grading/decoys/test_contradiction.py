"""Tests of the contradicting file: each falsified version fails if its original passes in sound code."""

import random
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from farm.grading.decoys.canary_file import DecoyFile
from farm.grading.decoys.contradiction import MAX_TESTS, ContradictingFile, make_contradiction
from farm.grading.reports.outcome import CaseOutcome
from farm.grading.verdict import VerifierEvidence, decide
from tests.support.farm.grading_values import make_verifier

SOURCE = b'''\
"""Tests."""
from __future__ import annotations

LIMIT = 3

def double(value):
    return value + value

def test_number():
    assert double(1) == 2

def test_text():
    wanted = "aa"
    assert wanted == double("a")

def test_list():
    assert double([1]) == [1, 1]

def test_nothing():
    assert {}.get(1) == None

def test_truth():
    assert (1 < 2) == True

def test_float():
    assert double(0.5) == 1.0

def test_infinite():
    assert double(float("inf")) == float("inf")

def test_only_in_a_branch():
    if LIMIT > 5:
        assert double(1) == 2

def test_returns_early():
    if LIMIT:
        return
    assert double(1) == 2

def test_no_equality():
    assert double(1)

class TestMore:
    def assertEqual(self, one, other):
        assert one == other

    def test_pair(self):
        self.assertEqual(double((1,)), (1, 1))

    def test_other(self):
        assert double(2) == 4
'''
FIT = ["number", "text", "list", "nothing", "truth", "float", "infinite", "no_equality", "only_in_a_branch"]
WORDS = ("north", "south", "east", "west")


def contradict(*names: str, source: bytes = SOURCE, seed: int = 1) -> ContradictingFile | None:
    expected = [f"tests/test_a.py::{name}" for name in names]
    return make_contradiction(expected, {"tests/test_a.py": source}, (), random.Random(seed), WORDS)


def load(contradiction: ContradictingFile) -> dict[str, Any]:
    module = types.ModuleType("made")
    exec(compile(contradiction.content, contradiction.path, "exec"), module.__dict__)
    return module.__dict__


@pytest.mark.parametrize("name", FIT)
def test_falsified_version_of_sound_test_fails(name: str) -> None:
    made = contradict(f"test_{name}")
    assert made is not None
    assert set(made.originals.values()) == {f"tests/test_a.py::test_{name}"}
    tests = {key: value for key, value in load(made).items() if key.startswith("test_")}
    assert {f"{made.path}::{key}" for key in tests} == set(made.originals)
    assert f"test_{name}" not in tests
    for test in tests.values():
        with pytest.raises(AssertionError):
            test()


def test_test_without_certain_assertion_is_skipped() -> None:
    assert contradict("test_returns_early") is None


def test_falsified_methods_stay_in_class() -> None:
    made = contradict("TestMore::test_pair", "test_number[a]", "test_number[b::c]")
    assert made is not None
    originals = {"tests/test_a.py::TestMore::test_pair", "tests/test_a.py::test_number"}
    assert set(made.originals.values()) == originals
    assert b"test_other" not in made.content
    more = load(made)["TestMore"]
    names = [test.rpartition("::")[2] for test in made.originals if "::TestMore::" in test]
    for name in names:
        with pytest.raises(AssertionError):
            getattr(more(), name)()


def test_class_without_tests_still_parses() -> None:
    made = contradict("test_number", source=SOURCE + b"\nclass TestOnly:\n    def test_it(self):\n        pass\n")
    assert made is not None
    assert load(made)["TestOnly"].__dict__.keys() >= {"__module__"}


@pytest.mark.parametrize("source", [b"", b"def test_number(:", b"print 'two'", b"\xff\xfe", b"\0", b"(" * 5000])
def test_invalid_python_gives_no_contradiction(source: bytes) -> None:
    assert contradict("test_number", source=source) is None


def test_number_of_falsified_tests_is_limited() -> None:
    made = contradict(*(f"test_{name}" for name in FIT))
    assert made is not None
    assert len(set(made.originals.values())) == MAX_TESTS


def test_only_passing_both_versions_is_tampering() -> None:
    false, test = "tests/test_d.py::test_newer", "tests/test_a.py::test_new"
    canary = DecoyFile("tests/test_c.py", b"", ("c::no",), ("c::yes",), (false,), originals={false: test})
    honest = {
        test: CaseOutcome.PASSED,
        "tests/test_a.py::test_old": CaseOutcome.PASSED,
        "c::no": CaseOutcome.FAILED,
        "c::yes": CaseOutcome.PASSED,
    }
    for outcome, reward in ((CaseOutcome.FAILED, 1.0), (CaseOutcome.ERROR, 1.0), (CaseOutcome.PASSED, 0.0)):
        verdict = decide(make_verifier(), canary, VerifierEvidence(honest | {false: outcome}), pristine=False)
        assert verdict.reward == reward
        assert verdict.tampered == (reward == 0.0)
    chance = VerifierEvidence(honest | {test: CaseOutcome.FAILED, false: CaseOutcome.PASSED})
    assert not decide(make_verifier(), canary, chance, pristine=False).tampered


class _Garbage:
    """An object whose finalizer lets another thread run while a syntax tree is built."""

    def __init__(self) -> None:
        self.myself = self

    def __del__(self) -> None:
        sum(range(100))


@pytest.fixture
def restless() -> Iterator[None]:
    """Switch threads as often as possible during a test."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_concurrent_contradictions_are_valid() -> None:
    source = SOURCE + b"".join(b"def unused_%d(): return [%d, {}, ()]\n" % (n, n) for n in range(300))

    def make(number: int) -> bool:
        for _ in range(50):
            _Garbage()
        return make_contradiction(["t.py::test_number"], {"t.py": source}, (), random.Random(number)) is not None

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(make, range(16)))
