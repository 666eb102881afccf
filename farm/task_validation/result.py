"""What validation finds of a task, and of a set of them."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

LEAST_S = 30.0
LEAST_TIMES = 2.0
FITTING_TIMES = 5.0
MUCH_TIMES = 10.0
"""A time-out that fits is FITTING_TIMES the slowest gold. With less than LEAST_TIMES, or LEAST_S, a task is unfit; one
of MUCH_TIMES what fits is told. What lies between keeps a busy day's measurement from refusing what fitted before."""


class Reason(StrEnum):
    """Why a task is unfit."""

    TASK = "task or image"
    MACHINE = "not judged"
    HISTORY = "history"
    RESIDUE = "residue"
    NOTHING = "nothing done"
    GOLD = "gold"
    FLAKY_MENDED = "flaky fail_to_pass"
    FLAKY_KEPT = "flaky pass_to_pass"
    TIME_OUT = "time-out"
    CHEAT = "cheat"
    LENIENT = "false tests pass"


REVISED = frozenset({Reason.FLAKY_KEPT, Reason.TIME_OUT, Reason.LENIENT})
"""What ``--write`` mends."""


class Condition(StrEnum):
    """Under which conditions a change was judged."""

    PLAIN = "as it is"
    ORDER = "in random order"
    LOAD = "under load"


@dataclass(frozen=True, slots=True)
class GradingSample:
    """One judgement of the gold solution, or of nothing done.

    ``seconds`` its test command took; under load, those that it would have taken with all of its sandbox's quota,
    whatever else the machine was busy with. ``missing``: expected ids that did not pass, where there was a report.
    ``timed_out``: it did not end. ``lenient``: tests of which a false version passed.
    """

    how: Condition
    reward: float
    seconds: float
    reason: str = ""
    missing: tuple[str, ...] = ()
    timed_out: bool = False
    lenient: tuple[str, ...] = ()


@dataclass(slots=True)
class ValidationResult:
    """What validation found of one task. ``problems`` is empty where the task is fit, and ``reasons`` sorts them.

    ``judged`` is false if the task cannot be read or its image could not be had just now: no report tells of it.
    ``removed``: ids that ``--write`` took out of pass_to_pass, flaky or dependent on the order.

    ``nop`` and ``gold`` are rewards, ``how`` and ``gold_s`` (seconds of the test command) go with ``gold``. ``flaky``:
    expected ids that now pass, now do not; ``order_dependent``: those that fail in random order alone; ``prune``: what
    of both can go. ``slowest_s``: the gold solution's test command under load; ``timeout_s``: the verifier's time-out
    that follows, ``new_timeout_s`` the same where the task's own is far from it. ``weak``: wrong solutions that earn as
    much as the gold one, of ``wrong`` that were tried. ``lenient``: tests of which a false version passes with the gold
    solution. ``notes``: what is worth knowing and no fault.
    """

    task_id: str
    digest: str
    image: str
    image_digest: str = ""
    build_s: float = 0.0
    nop: list[float] = field(default_factory=list)
    gold: list[float] = field(default_factory=list)
    how: list[Condition] = field(default_factory=list)
    gold_s: list[float] = field(default_factory=list)
    grade_s: float = 0.0
    slowest_s: float | None = None
    timeout_s: float | None = None
    new_timeout_s: float | None = None
    flaky: list[str] = field(default_factory=list)
    order_dependent: list[str] = field(default_factory=list)
    prune: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    lenient: list[str] = field(default_factory=list)
    wrong: int = 0
    weak: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    took_s: float = 0.0
    judged: bool = True

    @property
    def fit(self) -> bool:
        return not self.problems

    @property
    def weak_share(self) -> float | None:
        """Of the wrong solutions those that pass; None where none was tried."""
        return len(self.weak) / self.wrong if self.wrong else None

    def refuse(self, reason: Reason, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
        if reason not in self.reasons:
            self.reasons.append(reason)

    def unjudged(self, reason: Reason, problem: str) -> "ValidationResult":
        """Note why the task was not judged. Return the finding."""
        self.refuse(reason, problem)
        self.judged = False
        return self

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "fit": self.fit, "weak_share": self.weak_share}


def fitting_timeout(slowest_s: float) -> float:
    """Whole tens of seconds."""
    return max(LEAST_S, math.ceil(FITTING_TIMES * slowest_s / 10) * 10.0)


def least_timeout(slowest_s: float) -> float:
    return max(LEAST_S, LEAST_TIMES * slowest_s)


@dataclass(frozen=True, slots=True)
class ValidationSummary:
    """Of a set. ``unfit``: how many tasks each reason makes unfit, one task under each of its reasons. ``weak``: tasks
    that let a wrong solution pass, ``flaky`` and ``order_dependent``: ids. ``seconds``: how long each took, summed."""

    tasks: int
    fit: int
    unfit: dict[str, int]
    weak: int
    wrong_passed: int
    wrong: int
    flaky: int
    order_dependent: int
    seconds: float


def summarize(findings: Iterable[ValidationResult]) -> ValidationSummary:
    every = list(findings)
    return ValidationSummary(
        tasks=len(every),
        fit=sum(finding.fit for finding in every),
        unfit=dict(Counter(reason.value for finding in every for reason in finding.reasons).most_common()),
        weak=sum(bool(finding.weak) for finding in every),
        wrong_passed=sum(len(finding.weak) for finding in every),
        wrong=sum(finding.wrong for finding in every),
        flaky=sum(len(finding.flaky) for finding in every),
        order_dependent=sum(len(finding.order_dependent) for finding in every),
        seconds=sum(finding.took_s for finding in every),
    )
