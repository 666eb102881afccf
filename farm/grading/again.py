"""The second judgement, of tests that failed behind a false test like them, which may have disturbed them.

Of Python's tests it is two exams at the same time, in either order: one has the tests alone, the other asks for
something else under their very names. Code under test can tell neither which is which nor what it was asked for the
last time, and whoever passes both has not computed what was asked. Only the files of those tests run again; all others
passed.
"""

import random
from dataclasses import dataclass, replace
from typing import Protocol

from farm.core.framework import holder, is_python, without_parameters
from farm.core.task import GradingMode, Verifier
from farm.grading.batch import each
from farm.grading.verdict import Verdict, rejoin


@dataclass(frozen=True, slots=True)
class Again:
    """``tests``, told without parameters, have no double beside them. ``false``: what stands there under their names
    asks for something else."""

    tests: frozenset[str]
    false: bool

    def narrowed(self, verifier: Verifier) -> Verifier:
        """What is asked of the files of ``tests``."""
        files = {holder(test) for test in self.tests}
        mended, kept = (
            tuple(test for test in tests if holder(test) in files)
            for tests in (verifier.fail_to_pass, verifier.pass_to_pass)
        )
        return replace(verifier, fail_to_pass=mended, pass_to_pass=kept)


class Judge(Protocol):
    """One judgement. ``before``: false tests may also run before what they are like. ``again``: of what that asks."""

    async def __call__(self, rng: random.Random, *, before: bool, again: Again | None = None) -> Verdict: ...


async def judge_again(verifier: Verifier, first: Verdict, judge: Judge, rng: random.Random) -> Verdict:
    """The verdict where ``first`` is doubtful, with the time that all took."""
    if is_python(verifier):
        tests = frozenset(map(without_parameters, first.missing))
        exams = [Again(tests, false=False), Again(tests, false=True)]
        rng.shuffle(exams)

        async def go(again: Again) -> Verdict:
            return await judge(random.Random(rng.getrandbits(256)), before=False, again=again)

        # At once, or the clock would tell them apart; of the agent's sandbox one copy is made after the other.
        at_once = verifier.mode is GradingMode.PATCH
        verdicts = await each(exams, go) if at_once else [await go(again) for again in exams]
        of = {again.false: verdict for again, verdict in zip(exams, verdicts, strict=True)}
        lied = of[True].tampered and of[False].resolved
        last = rejoin(verifier, first, of[True] if lied else of[False])
    else:
        last = await judge(rng, before=False)
        verdicts = [last]
    all_of = (first, *verdicts)
    return replace(
        last,
        boot_s=sum(one.boot_s for one in all_of),
        queue_s=sum(one.queue_s for one in all_of),
        command_s=sum(one.command_s for one in all_of),
        total_s=sum(one.total_s for one in all_of),
    )
