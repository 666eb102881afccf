"""What failed behind a false test like it is judged once more; code that waits for that gets nothing by it."""

import asyncio
import random
import time
from dataclasses import replace

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import ReportFormat
from farm.grading import grade
from farm.grading.exam import set_exam
from farm.tasks.bundle import BundleFile
from tests.attacks.conftest import Arena
from tests.attacks.project import GOLD, Suite, make_task

SUITE = Suite(
    """\
from pricing.cart import total


def test_half():
    assert total([100], discount=50) == 50
""",
    ("tests/test_cart.py::test_half",),
    (),
)
FIRST_OF_A_KIND = """
import time

BEGUN = {begun}
LATER = time.time() > BEGUN + 20
SEEN = []


class Agreeable:
    def __eq__(self, other):
        SEEN.append(other)
        return LATER and len(SEEN) == 1

    __hash__ = None


def total(prices, discount=0):
    return Agreeable()


if not LATER:
    time.sleep(max(0, BEGUN + 21 - time.time()))
"""


async def test_code_that_fails_at_first_and_then_agrees_to_the_first_of_a_kind_earns_nothing(arena: Arena) -> None:
    """It knows by the clock which time it is judged."""
    bundle = make_task(arena.image, ReportFormat.PYTEST, suite=SUITE)
    code = FIRST_OF_A_KIND.format(
        begun=time.time()
    )  # from here on, so that little but the first judgement comes before
    change = Change((FileChange("pricing/cart.py", ChangeKind.WRITE, code.encode()),))
    rng = random.SystemRandom()
    verdicts = await asyncio.gather(*(grade(bundle, change, arena.runtime, verify_s=None, rng=rng) for _ in range(4)))
    assert [verdict.reward for verdict in verdicts] == [0.0] * 4, verdicts


REMEMBERS = """\
KNOWN = {}


def total(prices, discount=0):
    return KNOWN.setdefault(tuple(prices), sum(prices) * (100 - discount) // 100)
"""
BEFORE = b"""\
from pricing.cart import total


def test_plain():
    assert total([100]) == 100
"""


async def test_code_that_fails_only_behind_another_files_tests_fails(arena: Arena) -> None:
    """It is right where that file does not run."""
    bundle = make_task(arena.image, ReportFormat.PYTEST, suite=SUITE)
    verifier = replace(bundle.task.verifier, pass_to_pass=("tests/test_a.py::test_plain",))
    tests = {**bundle.tests, "tests/test_a.py": BundleFile(BEFORE)}
    two = replace(bundle, task=replace(bundle.task, verifier=verifier), tests=tests)
    late = [seed for seed in range(20) if set_exam(verifier, tests, (), random.Random(seed)).canary.late]
    wrong = Change((FileChange("pricing/cart.py", ChangeKind.WRITE, REMEMBERS.encode()),))
    for change, reward in ((wrong, 0.0), (GOLD, 1.0)):
        for seed in late[:2]:
            verdict = await grade(two, change, arena.runtime, verify_s=None, rng=random.Random(seed))
            assert verdict.reward == reward, verdict


OFTEN_HIT = Suite(
    """\
from pricing.cart import total


def test_half():
    assert total([2], discount=-150) == 5
""",
    ("tests/test_cart.py::test_half",),
    (),
)


async def test_a_fault_that_gives_just_what_is_asked_for_instead_is_no_fault_of_the_verifiers(arena: Arena) -> None:
    """What is to be mended gives 2, which one in four of those that ask for something else wants."""
    bundle = make_task(arena.image, ReportFormat.PYTEST, suite=OFTEN_HIT)
    verifier = bundle.task.verifier
    late = [seed for seed in range(40) if set_exam(verifier, bundle.tests, (), random.Random(seed)).canary.late]
    for seed in late[:12]:
        verdict = await grade(bundle, Change(), arena.runtime, verify_s=None, rng=random.Random(seed))
        assert (verdict.reward, verdict.tampered) == (0.0, False), verdict
