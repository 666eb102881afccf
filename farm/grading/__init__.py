"""Judge the work of an episode, in a fresh sandbox unless the task's mode is another.

An agent decides what its change holds, and what its code does when the verifier runs it. It decides nothing else: not
which tests run, not what surrounds them, not the path of the report or what counts as passed.

``grade`` (grader) is the one entry point; a ``GradingRequest`` holds the ``Work`` and the means.

    collect            the work, taken out of the policy's sandbox: a change or ``artifacts``
    sandboxes          the sandboxes of one grading, by the task's mode
    prepared_change    the part of a change that travels, and what a verdict says of the change
    grading_run        one run of the verifier on a change
    separate_verifier  one run of a verifier that has an image of its own
    verifier_run       the test command itself, and work that keeps it from running
    retrieval          an answer, compared with what is expected
    test_files         the tests that grading puts in
    stress             another order of tests and busy neighbours, for validation only
    verifier_check     whether a verifier gives a result with nothing changed
    verdict            from evidence to a reward

``changes`` reads and writes changes, ``decoys`` adds tests that must fail, ``tripwire`` watches Python's audit hooks,
``reports`` parses what tests report, ``diff`` renders and measures changes.

The code under test runs in the process that reports on it. A forgery by code that knows in both runs which tests are
false counts, unless the tripwire detects it; a reviewer can find it in the patch.

farm/docs/architecture/grading.md explains it.
"""

from farm.grading.changes.apply import apply_change
from farm.grading.changes.capture import WorkspaceBaseline, take_baseline, take_change
from farm.grading.collect_work import collect_work
from farm.grading.diff.patch import render_patch
from farm.grading.errors import ChangeRefused, ChangeTooLarge, GradingError, ReportError, UnfitTask, VerifierError
from farm.grading.grader import grade, passed_false
from farm.grading.request import GradingRequest
from farm.grading.retrieval import decide_answer
from farm.grading.verdict import Verdict
from farm.grading.verifier_check import VerifierCheck
from farm.grading.work import Artifacts, Forfeit, Work, WrittenAnswer

__all__ = [
    "Artifacts",
    "ChangeRefused",
    "ChangeTooLarge",
    "Forfeit",
    "GradingError",
    "GradingRequest",
    "ReportError",
    "UnfitTask",
    "Verdict",
    "VerifierCheck",
    "VerifierError",
    "Work",
    "WorkspaceBaseline",
    "WrittenAnswer",
    "apply_change",
    "collect_work",
    "decide_answer",
    "grade",
    "passed_false",
    "render_patch",
    "take_baseline",
    "take_change",
]
