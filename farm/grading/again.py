"""The second judgement, of tests that failed behind a false test like them, which may have disturbed them.

Of Python's tests it is two exams at the same time, in either order: one has the tests alone, the other asks for
something else under their very names. Code under test can tell neither which is which nor what it was asked for the
last time, and whoever passes both has not computed what was asked. Only the files of those tests run again; all others
passed. Where that goes well, it is asked again of all files, for a test may fail behind those of another; and again,
since code that tosses a coin for what it agrees to is right each time with one chance in four.
"""

import random
from dataclasses import dataclass, replace
from typing import Protocol

from farm.core.framework import holder, is_python, without_parameters
from farm.core.task import GradingMode, Verifier
from farm.grading.batch import each
from farm.grading.errors import VerifierError
from farm.grading.verdict import Verdict, rejoin

TIMES = 3
"""So often both exams must go well."""


@dataclass(frozen=True, slots=True)
class Again:
    """``tests``, told without parameters, have no double beside them. ``false``: what stands there under their names
    asks for something else. ``whole``: all other files run as well."""

    tests: frozenset[str]
    false: bool
    whole: bool = False

    def narrowed(self, verifier: Verifier) -> Verifier:
        """What is asked of the files of ``tests``, unless it is of all."""
        if self.whole:
            return verifier
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
    """The verdict where ``first`` is doubtful, with the time that all took.

    With nothing changed the task's own fault may happen to give what is asked for instead: raises VerifierError only
    where what was asked for passes as well.
    """
    verdicts = [first]

    async def ask(*, whole: bool) -> Verdict:
        """Of both exams, the verdict that counts."""
        tests = frozenset(map(without_parameters, first.missing))
        exams = [Again(tests, false, whole) for false in (False, True)]
        rng.shuffle(exams)

        async def go(again: Again) -> Verdict | VerifierError:
            try:
                return await judge(random.Random(rng.getrandbits(256)), before=False, again=again)
            except VerifierError as error:
                return error

        # At once, or the clock would tell them apart; of the agent's sandbox one copy is made after the other.
        at_once = verifier.mode is GradingMode.PATCH
        both = await each(exams, go) if at_once else [await go(again) for again in exams]
        verdicts.extend(one for one in both if isinstance(one, Verdict))
        of = {again.false: one for again, one in zip(exams, both, strict=True)}
        asked, other = of[False], of[True]
        if isinstance(asked, VerifierError):
            raise asked
        if isinstance(other, VerifierError):
            if asked.resolved:
                raise other
            return asked
        return other if other.tampered and asked.resolved else asked

    if is_python(verifier):
        last = rejoin(verifier, first, await ask(whole=False))
        times = 1
        while last.resolved and times < TIMES:
            last = await ask(whole=True)
            times += 1
    else:
        last = await judge(rng, before=False)
        verdicts.append(last)
    return replace(
        last,
        boot_s=sum(one.boot_s for one in verdicts),
        queue_s=sum(one.queue_s for one in verdicts),
        command_s=sum(one.command_s for one in verdicts),
        total_s=sum(one.total_s for one in verdicts),
    )
