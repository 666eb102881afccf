"""One task's gradings: nothing done, the gold solution under several conditions, cheats, wrong solutions."""

import asyncio
import math
import os
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from farm.core.change import Change
from farm.core.task import ReportFormat
from farm.core.test_frameworks import is_python
from farm.grading import GradingRequest, Verdict, grade, passed_false
from farm.grading.stress import NO_STRESS, ORDERED, PROCESSOR_S, Stress
from farm.task_validation.cheats import earned_reward_message, stock_cheats, stub_out_functions
from farm.task_validation.flakiness import agree, sort_out
from farm.task_validation.mutants import mutants
from farm.task_validation.result import (
    MUCH_TIMES,
    Condition,
    GradingSample,
    Reason,
    ValidationResult,
    fitting_timeout,
    least_timeout,
)
from farm.tasks import TaskBundle
from sandboxes.interface import Runtime

T = TypeVar("T")

BUSY_A_CORE = 3
"""Busy neighbours for each processor of a sandbox: the tests get a quarter of it."""
PATIENCE_TIMES = 10.0
PATIENCE_S = 30.0
"""The gold solution's further runs have so much more time than the first took, whatever the task grants."""
FALSE_RUNS = 3
"""Runs in which all tests of Python that can be made false are false, each time in another way."""
ORDERS = (1, 2)
"""Seeds, so that what is found today is found tomorrow."""


async def gather_all(*work: Coroutine[Any, Any, T]) -> list[T]:
    """Their results, in order. The first failure ends the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


class TaskValidator:
    """``turns``: so many gradings at once, of all tasks together."""

    def __init__(
        self, bundle: TaskBundle, runtime: Runtime, turns: asyncio.Semaphore, finding: ValidationResult
    ) -> None:
        self._bundle = bundle
        self._runtime = runtime
        self._turns = turns
        self._finding = finding
        self._longest_s = 0.0
        self._orderable = bundle.task.verifier.report in (ReportFormat.PYTEST, ReportFormat.UNITTEST)

    async def judge_once(self, gold: Change) -> None:
        """Nothing done and the gold solution, as they are, one after the other: whoever asks has others to prove."""
        nop = await self._nop()
        self._tell([nop], [await self._gold(gold, Condition.PLAIN, self._first_limit_s)])

    async def judge(self, gold: Change) -> None:
        """The gold solution as it is, in random order and under load, and twice more where these disagree; nothing done
        once, and once more where anything is not as it must be."""
        nop, first = await gather_all(self._nop(), self._gold(gold, Condition.PLAIN, self._first_limit_s))
        limit_s = max(self._first_limit_s, PATIENCE_TIMES * first.seconds + PATIENCE_S)
        nops, golds = [nop], [first]
        golds += await gather_all(
            self._gold(gold, self._ordered, limit_s, ORDERS[0]), self._gold(gold, Condition.LOAD, limit_s)
        )
        if not agree(golds):
            golds += await gather_all(
                self._gold(gold, self._ordered, limit_s, ORDERS[1]), self._gold(gold, Condition.PLAIN, limit_s)
            )
        if not agree(golds) or not self._as_must_be(nop):
            nops.append(await self._nop())
        if self._ordered is Condition.PLAIN:
            self._finding.notes.append(
                "the tests were not run in random order: that takes pytest or unittest, and a command without wrappers"
            )
        lenient = await self._passed_false(gold) if is_python(self._bundle.task.verifier) else set()
        self._tell(nops, golds)
        self._refuse_lenient(lenient.union(*(one.lenient for one in golds)))
        self._weigh_timeout(golds)

    async def cheat(self, gold: Change, present: Mapping[str, bytes]) -> None:
        """Cheats must earn nothing; wrong solutions that earn as much as the gold one are only told.

        ``present``: what the image holds at the gold's paths.
        """
        verifier = self._bundle.task.verifier
        cheats = stock_cheats(verifier, gold, present)
        hollow = {f"{what} may as well do nothing": made for what, made in stub_out_functions(gold, present).items()}
        wrong = hollow | await asyncio.to_thread(mutants, gold, present)
        limit_s = 2 * self._longest_s + PATIENCE_S

        async def judge(change: Change) -> float:
            return (await self._grade(change, limit_s)).reward

        rewards = await gather_all(*map(judge, [*cheats.values(), *wrong.values()]))
        for what, reward in zip(cheats, rewards, strict=False):
            if reward:
                self._finding.refuse(Reason.CHEAT, earned_reward_message(what, reward, verifier))
        self._finding.wrong = len(wrong)
        passed = zip(wrong, rewards[len(cheats) :], strict=True)
        self._finding.weak = [what for what, reward in passed if reward == 1.0]

    @property
    def _ordered(self) -> Condition:
        return Condition.ORDER if self._orderable else Condition.PLAIN

    @property
    def _first_limit_s(self) -> float:
        """Longer than the task grants, so that a time-out that is too short is told from what hangs."""
        return 2 * self._bundle.task.verifier.timeout_s

    async def _nop(self) -> GradingSample:
        verdict = await self._grade(Change(), self._first_limit_s)
        if set(verdict.tests_after_decoy) & set(self._bundle.task.verifier.pass_to_pass):
            # Other tests must fail, so that no second go told whether these did for the false tests before them alone.
            verdict = await self._grade(Change(), self._first_limit_s, single_run=True)
        return GradingSample(Condition.PLAIN, verdict.reward, verdict.command_s, verdict.reason, verdict.missing)

    async def _gold(self, gold: Change, how: Condition, limit_s: float, seed: int | None = None) -> GradingSample:
        cpus = max(1, math.ceil(self._bundle.task.cpus))
        busy = BUSY_A_CORE * cpus if how is Condition.LOAD else 0
        stress = Stress(seed if how is Condition.ORDER else None, busy)
        verdict = await self._grade(gold, limit_s, stress)
        if how is Condition.ORDER and not verdict.components.get(ORDERED):
            # What runs the tests keeps plug-ins out: no fault of theirs.
            self._orderable = False
            return await self._gold(gold, Condition.PLAIN, limit_s)
        timed_out = verdict.command_s >= limit_s
        self._longest_s = max(self._longest_s, verdict.command_s)
        seconds = self._own_seconds(verdict)
        return GradingSample(
            how, verdict.reward, seconds, verdict.reason, verdict.missing, timed_out, verdict.passed_false
        )

    async def _passed_false(self, gold: Change) -> set[str]:
        """Return tests of which a false version passes with the gold solution: an object may equal anything."""

        async def once() -> tuple[str, ...]:
            async with self._turns:
                return await passed_false(GradingRequest(self._bundle, gold, self._runtime))

        return set().union(*await gather_all(*(once() for _ in range(FALSE_RUNS))))

    def _refuse_lenient(self, lenient: Collection[str]) -> None:
        finding = self._finding
        finding.lenient = sorted(lenient)
        if finding.lenient:
            more = f" and {len(finding.lenient) - 1} more" if len(finding.lenient) > 1 else ""
            finding.refuse(
                Reason.LENIENT,
                f"a false version of {finding.lenient[0]}{more} passes with the gold solution, so grading would take "
                "the solution for tampering; name the test in metadata.farm.never_false, or validate with --write",
            )

    async def _grade(
        self, change: Change, limit_s: float, stress: Stress = NO_STRESS, *, single_run: bool = False
    ) -> Verdict:
        task = self._bundle.task
        granted = replace(self._bundle, task=replace(task, verifier=replace(task.verifier, timeout_s=limit_s)))
        async with self._turns:
            verdict = await grade(GradingRequest(granted, change, self._runtime, stress=stress, single_run=single_run))
        self._finding.grade_s = max(self._finding.grade_s, verdict.total_s)
        return verdict

    def _own_seconds(self, verdict: Verdict) -> float:
        """Those that the command would have taken with its sandbox's whole quota. Beside busy neighbours it takes all
        that it is given, so what it was given less is the machine's doing."""
        spent_s = verdict.components.get(PROCESSOR_S)
        if not spent_s:
            return verdict.command_s
        quota = min(self._bundle.task.cpus, float(os.cpu_count() or 1))
        return min(verdict.command_s, spent_s / quota)

    def _as_must_be(self, nop: GradingSample) -> bool:
        return nop.reward == 0.0 and set(nop.missing) <= set(self._bundle.task.verifier.fail_to_pass)

    def _tell(self, nops: Sequence[GradingSample], golds: Sequence[GradingSample]) -> None:
        verifier, finding = self._bundle.task.verifier, self._finding
        finding.nop = [one.reward for one in nops]
        finding.gold = [one.reward for one in golds]
        finding.how = [one.how for one in golds]
        finding.gold_s = [one.seconds for one in golds]
        sort_out(verifier, nops, golds, finding)
        for nop in nops:
            if nop.reward != 0.0:
                finding.refuse(Reason.NOTHING, f"nothing done is judged {nop.reward:g}, not 0")
        for solved in golds:
            if solved.reward == 1.0 or solved.missing or solved.lenient:  # of these each is named
                continue
            finding.refuse(
                Reason.GOLD,
                f"the gold solution is judged {solved.reward:g}, not 1, {solved.how.value}: {solved.reason}",
            )

    def _weigh_timeout(self, golds: Sequence[GradingSample]) -> None:
        verifier, finding = self._bundle.task.verifier, self._finding
        if any(one.timed_out for one in golds):
            return
        # The others are as slow as the machine was busy; of the same machine none is slower than the loaded one.
        slowest_s = finding.slowest_s = max(one.seconds for one in golds if one.how is Condition.LOAD)
        finding.timeout_s = fitting_timeout(slowest_s)
        if verifier.timeout_s < least_timeout(slowest_s):
            finding.new_timeout_s = finding.timeout_s
            finding.refuse(
                Reason.TIME_OUT,
                f"the verifier's time-out is {verifier.timeout_s:g} s, and the slowest gold took "
                f"{slowest_s:.1f} s; set verifier.timeout_sec to {finding.timeout_s:g}, or validate with --write",
            )
        elif verifier.timeout_s > MUCH_TIMES * finding.timeout_s:
            finding.new_timeout_s = finding.timeout_s
