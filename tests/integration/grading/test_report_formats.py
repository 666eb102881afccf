"""Verifiers of each kind that needs no more than Python and a shell, in real sandboxes."""

import random
from dataclasses import replace

import pytest

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import ReportFormat, Verifier
from farm.core.test_frameworks import FRAMEWORKS
from farm.grading import GradingRequest, Verdict, grade
from farm.tasks.bundle import BundleFile, TaskBundle
from tests.support.farm.tiny import BROKEN, MENDED, task
from tests.support.outside import EitherRuntime

pytestmark = pytest.mark.docker

UNITTEST = b"""\
import unittest
from tiny import answer

class Tiny(unittest.TestCase):
    def test_answer(self):
        self.assertEqual(answer(), 42)

    def test_type(self):
        self.assertIsInstance(answer(), int)
"""
TAP = b"""\
echo 1..2
python3 -c 'import tiny; assert tiny.answer() == 42' && echo 'ok 1 - answers' || echo 'not ok 1 - answers'
python3 -c 'import tiny; tiny.answer()' && echo 'ok 2 - runs' || echo 'not ok 2 - runs'
"""
JUNIT = "python3 -m pytest -q --junitxml={report} tests"
KINDS = {
    ReportFormat.UNITTEST: (
        {"tests/test_tiny.py": UNITTEST},
        FRAMEWORKS[ReportFormat.UNITTEST].command,
        ("tests/test_tiny.py::Tiny::test_answer", "tests/test_tiny.py::Tiny::test_type"),
    ),
    ReportFormat.JUNIT: (
        {"tests/test_tiny.py": UNITTEST},
        JUNIT,
        ("tests.test_tiny.Tiny::test_answer", "tests.test_tiny.Tiny::test_type"),
    ),
    ReportFormat.TAP: ({"t/run.sh": TAP}, "sh t/run.sh > {report}", ("::answers", "::runs")),
    ReportFormat.EXIT_CODE: ({"t/run.sh": TAP}, "sh t/run.sh | grep -v '^not ok' | grep -c ^ok | grep -q 2", ()),
}
BACKDOOR = "import os, sys\nos._exit(0)\n"
"""Ends every test program at once, well content."""


def bundle(image: str, kind: ReportFormat) -> TaskBundle:
    tests, command, ids = KINDS[kind]
    made = task(image)
    verifier = Verifier(
        made.task.verifier.mode, command, kind, ids[:1], ids[1:], made.task.verifier.protected, timeout_s=60.0
    )
    files = {path: BundleFile(content) for path, content in tests.items()}
    return replace(made, task=replace(made.task, verifier=verifier), tests=files)


async def judged(runtime: EitherRuntime, image: str, kind: ReportFormat, tiny: str) -> Verdict:
    change = Change((FileChange("tiny.py", ChangeKind.WRITE, tiny.encode()),))
    return await grade(GradingRequest(bundle(image, kind), change, runtime, rng=random.Random(7)))


@pytest.mark.parametrize("kind", KINDS)
async def test_each_report_format_rewards_only_correct_change(
    any_runtime: EitherRuntime, tiny_image: str, kind: ReportFormat
) -> None:
    mended = await judged(any_runtime, tiny_image, kind, MENDED)
    assert (mended.reward, mended.tampered) == (1.0, False), mended
    broken = await judged(any_runtime, tiny_image, kind, BROKEN.replace("41", "43"))
    assert (broken.reward, broken.tampered) == (0.0, False), broken
    assert "answer" in broken.reason or kind is ReportFormat.EXIT_CODE


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not ReportFormat.EXIT_CODE])
async def test_early_exit_gives_no_reward_with_named_tests(
    any_runtime: EitherRuntime, tiny_image: str, kind: ReportFormat
) -> None:
    code = BACKDOOR if kind is not ReportFormat.TAP else BACKDOOR.replace("0", "1")
    assert (await judged(any_runtime, tiny_image, kind, code)).reward == 0.0
