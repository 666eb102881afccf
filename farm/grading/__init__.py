"""A change is taken out of the sandbox where the agent worked and judged in a fresh one.

An agent decides what its change holds, and what its code does once the verifier runs it. It decides nothing else: not
which tests run, not what surrounds them, not where the report lies or what counts as passed.

    capture         change out: every process killed, then the workspace compared with its pristine walk
    taking          what is judged out, be it a change or artifacts
    protect         what does not travel: tests, conftest files, start-up files, shadowing modules
    settings        nor does what tells a test runner something else than the pristine workspace tells it
    apply           change in: planned on the host, no symlink ever walked through, the real tests written over it
    source          test files as Python: text, tree, and the words that tests are named with
    literal         a literal as it is written, made another
    claims          false claims in a test's own way of asserting
    wanted          the value that a comparison wants, made another
    falsify         false versions of tests: whatever passes the test fails its false version
    canary          tests whose results are known beforehand, among the expected ones
    foreign         the same for Go, Rust and JavaScript: a file of ours, and what tests of ours read like
    anchor          tests in files of these languages: where each stands, its name, and what it wants
    among           doubles and tests of ours beside these, since each such file is run by itself
    contradiction   a file of false versions, which runs last: passing both ways is impossible
    control         a second run in which fail-to-pass tests that passed are false
    tripwire        findings of Python's audit hooks on lines of the change
    tests           the task's tests, where they come as a patch of what the image holds
    exam            what the verifier is made to run, another one each time
    stress          another order and busy neighbours, for validation alone
    junit           the report, read on the host as hostile input
    run             one run of the verifier in one place
    soundness       whether the verifier gives a result with nothing changed, if it gave none for a change
    verdict         reward 1 if and only if every expected id was seen passed and nothing gives the results away

A verifier with an image of its own (``separate``) gets the artifacts that the task names, and nothing else.
An answer to a retrieval task needs none of that (``answer``): it is compared with what was expected, here.

The code under test runs in the process that reports on it. Code that forges a result and knows in both runs which tests
are false is believed, unless the tripwire sees how; a reviewer sees it in the patch.

farm/docs/architecture/grading.md explains it.
"""

from farm.grading.changes.apply import apply_change
from farm.grading.changes.capture import WorkspaceBaseline, take_baseline, take_change
from farm.grading.collect import collect_work
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
