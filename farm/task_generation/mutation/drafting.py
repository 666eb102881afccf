"""From faults that tests notice to drafts of tasks: which are combined, what is told, which tests are hidden."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from farm.core.change import Change, ChangeKind, FileChange
from farm.grading.diff.patch import render_patch
from farm.task_generation.mutation.directory import TaskDraft
from farm.task_generation.mutation.edits import fingerprint
from farm.task_generation.mutation.faults import Fault, apply_faults
from farm.task_generation.mutation.features import OPERATOR as FEATURE
from farm.task_generation.mutation.hide_tests import hide_tests
from farm.task_generation.mutation.operators import REMOVED_METHOD
from farm.task_generation.mutation.repository import Repository
from farm.task_generation.mutation.trials import BaselineRun, FailedTest, Trial, TrialResult
from farm.task_generation.wording.failing_statement import Example
from farm.task_generation.wording.failure_examples import tell, tell_wanted
from farm.task_generation.wording.instructions import LEVELS, Symptom, instruction

COMBINED = (1, 1, 2, 1, 3)
"""How many faults the tasks of a package have, in turn."""
MOST_SHARE = 0.15
LEAST_MOST = 5
"""Where more tests than that share fail, or than that number of a small suite, the fault is too plain."""
VERIFY_TIMEOUT_S = 180
_PLAIN = {"NameError", "UnboundLocalError"}
"""Errors that say themselves what to mend."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Faults of one task, and what each alone made of the tests."""

    faults: tuple[Fault, ...]
    results: tuple[TrialResult, ...]
    level: int

    @property
    def key(self) -> str:
        return fingerprint(*sorted(fault.key for fault in self.faults))


def most_failures(survey: BaselineRun) -> int:
    return max(LEAST_MOST, int(MOST_SHARE * len(survey.passing)))


def trial_of(fault: Fault, sources: Mapping[str, bytes], survey: BaselineRun, most: int) -> Trial:
    return Trial(fault.key, apply_faults(sources, [fault]), fault.tests, most + 1)


def judged(result: TrialResult, most: int) -> str:
    """``usable``, or why not."""
    if result.status != "ran":
        return result.status
    if not result.failed:
        return "unnoticed"
    plain = all(failure.error in _PLAIN for failure in result.failures) and result.failures
    return "too plain" if plain or len(result.failed) > most else "usable"


def combine(usable: Sequence[tuple[Fault, TrialResult]], counts: Sequence[int], rng: random.Random) -> list[FaultPlan]:
    """Plans of so many faults each, no fault in two and no function twice in one; levels in turn."""
    left = list(usable)
    plans: list[FaultPlan] = []
    turn = rng.randrange(len(LEVELS))
    for wanted in _endless(counts):
        if not left:
            break
        chosen = [left.pop(0)]
        while len(chosen) < wanted:
            taken = {(fault.path, fault.function) for fault, _ in chosen}
            other = next((pair for pair in left if (pair[0].path, pair[0].function) not in taken), None)
            if other is None:
                break
            left.remove(other)
            chosen.append(other)
        level = LEVELS[(turn + len(plans)) % len(LEVELS)]
        plans.append(FaultPlan(tuple(pair[0] for pair in chosen), tuple(pair[1] for pair in chosen), level))
    return plans


def _endless(counts: Sequence[int]) -> Iterable[int]:
    while True:
        yield from counts


def confirming(plan: FaultPlan, sources: Mapping[str, bytes], most: int) -> Trial | None:
    """All faults of the plan at once; None where two are in each other's way."""
    tests = sorted({test for fault in plan.faults for test in fault.tests})
    try:
        return Trial(f"all {plan.key}", apply_faults(sources, plan.faults), tuple(tests), most * len(plan.faults) + 1)
    except ValueError:
        return None


def confirmed(plan: FaultPlan, result: TrialResult, most: int) -> str:
    """``usable`` where the faults do together what they did alone, or why not."""
    verdict = judged(result, most * len(plan.faults))
    if verdict != "usable":
        return verdict
    failed = set(result.failed)
    if len(plan.faults) == 1:
        return "usable" if failed == set(plan.results[0].failed) else "flaky"
    return "usable" if all(failed & set(alone.failed) for alone in plan.results) else "masked"


def draft(
    plan: FaultPlan, result: TrialResult, strategy: str, repository: Repository, survey: BaselineRun
) -> TaskDraft | None:
    """None where its failures cannot be told."""
    tests = {path: file.content for path, file in repository.tests.items() if path.endswith(".py")}
    sources = repository.sources
    hidden = hide_tests(repository.tests, result.failed)
    gone = {path for path, content in hidden.items() if content is None}
    symptoms = [
        Symptom(
            fault,
            tuple(example for example in _examples(fault, alone, result, tests) if gone.isdisjoint(example.places)),
        )
        for fault, alone in zip(plan.faults, plan.results, strict=True)
    ]
    text = instruction(repository.package, symptoms, sources, plan.level, feature=strategy != "mutate")
    if text is None:
        return None
    faulty = apply_faults(sources, plan.faults)
    kinds = sorted({fault.operator.replace(" ", "-") for fault in plan.faults})
    expected = set(survey.passing) - set(result.failed)
    return TaskDraft(
        name=f"{repository.name}-{strategy}-{plan.key[:10]}",
        strategy=strategy,
        labels=(f"level-{plan.level}", f"faults-{len(plan.faults)}", *kinds),
        difficulty=("easy", "medium", "hard")[min(2, plan.level - 1 + len(plan.faults) - 1)],
        instruction=text,
        patch=_patch(repository, {**faulty, **hidden}),
        changed=tuple(faulty),
        fail_to_pass=tuple(result.failed),
        pass_to_pass=tuple(sorted(expected)),
        verify_timeout_s=VERIFY_TIMEOUT_S,
    )


def _examples(
    fault: Fault, alone: TrialResult, together: TrialResult, tests: Mapping[str, bytes]
) -> tuple[Example, ...]:
    """Of what is gone, what it is to do; of what is wrong, how that shows."""
    if fault.operator not in (FEATURE, REMOVED_METHOD):
        return _shown(alone, together, tests)
    own = [failure for failure in together.failures if failure.test in set(alone.failed)]
    wanted = [example for failure in own for example in tell_wanted(failure, tests)]
    if wanted or fault.operator == FEATURE:
        return tuple(wanted)
    missing = {failure.test for failure in own if failure.error == "AttributeError"}
    return tuple(example for example in _shown(alone, together, tests) if example.test not in missing)


def _shown(alone: TrialResult, together: TrialResult, tests: Mapping[str, bytes]) -> tuple[Example, ...]:
    """Of one fault's failures, those that were the same with all faults; else those with all faults; and at length only
    where there is nothing shorter."""
    own = set(alone.failed)
    for at_length in (False, True):
        before = {example.text for example in _told(alone.failures, tests, at_length)}
        now = _told(together.failures, tests, at_length)
        found = [example for example in now if example.text in before]
        found = found or [example for example in now if example.test in own]
        if found:
            return tuple(found)
    return ()


def _told(failures: Iterable[FailedTest], tests: Mapping[str, bytes], at_length: bool) -> list[Example]:
    told = (tell(failure, tests, at_length=at_length) for failure in failures)
    return [example for example in told if example is not None]


def _patch(repository: Repository, after: Mapping[str, bytes | None]) -> str:
    def old(path: str) -> FileChange | None:
        file = repository.files.get(path)
        return None if file is None else FileChange(path, ChangeKind.WRITE, file.content, file.executable)

    changes = [
        FileChange(path, ChangeKind.DELETE)
        if content is None
        else FileChange(path, ChangeKind.WRITE, content, repository.files[path].executable)
        for path, content in sorted(after.items())
    ]
    return render_patch(Change(tuple(changes)), old)
