"""What our own false tests do to a task's tests is not held against the task."""

import asyncio
from dataclasses import replace

import pytest

from farm.core.change import Change, ChangeKind, FileChange
from farm.task_validation.gradings import TaskValidator
from farm.task_validation.result import Reason, ValidationResult
from farm.tasks import TaskBundle
from farm.tasks.bundle import BundleFile
from tests.support.farm.tiny import GOLD, task
from tests.support.outside import EitherRuntime

PATH = "tests/test_mended.py"
MENDED = b"""\
from tiny import answer

def test_mended():
    assert answer() == 42
    return
"""
"""No false test is made of one that returns: whatever fails behind its own, this fails beside it."""
COUNTS = """\


CALLS_{n} = []

def calls_{n}():
    CALLS_{n}.append(answer())
    return len(CALLS_{n})

def test_first_call_{n}():
    assert calls_{n}() == {first}
"""
"""Fails behind a call, as its double makes one."""
PATHS = ("tests/test_one.py", "tests/test_other.py")
NUMBERS = range(3)


def counting(image: str, *, first: int = 1) -> TaskBundle:
    """Beside the test to mend some that must still pass, of which each fails behind any other like it."""
    made = task(image)
    kept = tuple(f"{path}::test_first_call_{n}" for path in PATHS for n in NUMBERS)
    content = "from tiny import answer" + "".join(COUNTS.format(n=n, first=first) for n in NUMBERS)
    tests = {PATH: BundleFile(MENDED), **dict.fromkeys(PATHS, BundleFile(content.encode()))}
    verifier = replace(made.task.verifier, fail_to_pass=(f"{PATH}::test_mended",), pass_to_pass=kept)
    return replace(made, task=replace(made.task, verifier=verifier), tests=tests)


@pytest.mark.docker
async def test_empty_change_is_judged_without_decoy_tests(tiny_image: str, any_runtime: EitherRuntime) -> None:
    bundle = counting(tiny_image)
    for _ in range(3):
        finding = ValidationResult(bundle.task.id, bundle.task.digest, bundle.task.image)
        await TaskValidator(bundle, any_runtime, asyncio.Semaphore(2), finding).judge_once(GOLD)
        assert (finding.nop, finding.gold, finding.reasons) == ([0.0], [1.0], []), finding.problems


@pytest.mark.docker
async def test_pass_to_pass_failing_without_change_is_reported(tiny_image: str, any_runtime: EitherRuntime) -> None:
    bundle = counting(tiny_image, first=0)
    finding = ValidationResult(bundle.task.id, bundle.task.digest, bundle.task.image)
    await TaskValidator(bundle, any_runtime, asyncio.Semaphore(2), finding).judge_once(GOLD)
    told = [problem for problem in finding.problems if "with nothing done" in problem]
    assert len(told) == len(PATHS) * len(NUMBERS), finding.problems


EQUALS_ANYTHING = b"""\
class Anything:
    def __eq__(self, other):
        return True

    __hash__ = None


def answer():
    return Anything()


def exact():
    return 42
"""
LENIENT = b"""\
import tiny

def test_lenient():
    assert tiny.answer() == 42

def test_exact():
    assert tiny.exact() == 42
"""


@pytest.mark.docker
async def test_lenient_test_is_reported_unless_spared(tiny_image: str, any_runtime: EitherRuntime) -> None:
    made = task(tiny_image)
    lenient, exact = f"{PATH}::test_lenient", f"{PATH}::test_exact"
    verifier = replace(made.task.verifier, fail_to_pass=(lenient, exact), pass_to_pass=())
    gold = Change((FileChange("tiny.py", ChangeKind.WRITE, EQUALS_ANYTHING),))
    for spared in ((), (lenient,)):
        changed = replace(made.task, verifier=replace(verifier, never_false=spared))
        bundle = replace(made, task=changed, tests={PATH: BundleFile(LENIENT)}, gold=gold)
        finding = ValidationResult(bundle.task.id, bundle.task.digest, bundle.task.image)
        await TaskValidator(bundle, any_runtime, asyncio.Semaphore(2), finding).judge(gold)
        if spared:
            assert (finding.lenient, set(finding.gold), finding.reasons) == ([], {1.0}, []), finding.problems
        else:
            assert (finding.lenient, finding.reasons) == ([lenient], [Reason.LENIENT]), finding.problems
            assert lenient in finding.problems[0]
