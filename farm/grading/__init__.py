"""A change is taken out of the sandbox where the agent worked and judged in a fresh one.

An agent decides what its change holds, and what its code does once the verifier runs it. It decides nothing else: not
which tests run, not what surrounds them, not where the report lies or what counts as passed.
"""

from farm.grading.apply import apply_change
from farm.grading.capture import Baseline, take_baseline, take_change
from farm.grading.errors import ChangeRefused, ChangeTooLarge, GradingError, ReportError, VerifierError
from farm.grading.patch import render_patch
from farm.grading.verdict import Verdict
from farm.grading.verify import grade

__all__ = [
    "Baseline",
    "ChangeRefused",
    "ChangeTooLarge",
    "GradingError",
    "ReportError",
    "Verdict",
    "VerifierError",
    "apply_change",
    "grade",
    "render_patch",
    "take_baseline",
    "take_change",
]
