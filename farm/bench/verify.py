"""``verify``: a test command as the farm runs it, beside the same one with tracebacks; and whether both judge alike."""

import difflib
import random
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from farm.bench.results import BenchError, Figure
from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import ReportFormat
from farm.grading import GradingRequest, Verdict, VerifierError, WorkspaceBaseline, grade, take_baseline
from farm.tasks import TaskBundle, sandbox_spec
from sandboxes import Runtime
from sandboxes.errors import PathError

BASELINE = "with_tracebacks"
MOST_WRONG = 6
MOST_EXAMS = 16


async def measure_verify(
    bundles: Sequence[TaskBundle], runtime: Runtime, *, rounds: int, on_task: Callable[[int], None]
) -> tuple[Figure, ...]:
    """Of each task: nothing done, the gold change and parts of it are judged both ways, in turn, ``rounds`` times; each
    pair by the same exam. Raises BenchError where the two verdicts differ in the reward, or in anything else unless
    just the tests that they differ in come out one way and the other with tracebacks alone."""
    brief_s: list[float] = []
    full_s: list[float] = []
    judged = resolved = tests = flapping = 0
    for number, bundle in enumerate(bundles):
        if bundle.gold is None or bundle.task.verifier.report is not ReportFormat.PYTEST:
            raise BenchError(f"{bundle.task.id}: only tasks of pytest whose solution is known can be compared")
        old, baseline = await _pristine(bundle, bundle.gold, runtime)
        changes = [Change(), bundle.gold, *_partial(bundle.gold, old)]
        for change in changes * rounds:
            judge = partial(_judge, bundle, change, runtime, baseline)
            seed = random.randrange(1 << 62)
            full = await judge(seed, tracebacks=True)
            brief = await judge(seed, tracebacks=False)
            full_s.append(full.command_s)
            brief_s.append(brief.command_s)
            judged, resolved = judged + 1, resolved + full.resolved
            if _told(full) == _told(brief):
                tests += len(full.outcomes)
            elif full.reward == brief.reward and await _flap(judge, _apart(full, brief)):
                flapping += 1
            else:
                raise BenchError(f"{bundle.task.id}: {full.reason!r} with tracebacks, {brief.reason!r} without")
        on_task(number)
    return (
        Figure("test_command_p50_s", statistics.median(brief_s), "s", statistics.median(full_s), BASELINE),
        Figure("test_commands_s", sum(brief_s), "s", sum(full_s), BASELINE),
        Figure("changes_judged_alike", judged - flapping, "changes"),
        Figure("changes_that_flap", flapping, "changes"),
        Figure("of_which_resolved", resolved, "changes"),
        Figure("outcomes_alike", tests, "tests"),
    )


async def _judge(
    bundle: TaskBundle, change: Change, runtime: Runtime, baseline: WorkspaceBaseline, seed: int, *, tracebacks: bool
) -> Verdict:
    rng = random.Random(seed)
    try:
        return await grade(GradingRequest(bundle, change, runtime, rng=rng, baseline=baseline, tracebacks=tracebacks))
    except VerifierError as error:
        raise BenchError(f"{bundle.task.id}: {error}") from None


def _apart(one: Verdict, other: Verdict) -> frozenset[str]:
    """The expected tests of which one says that they passed, and the other not."""
    return frozenset(one.missing) ^ frozenset(other.missing)


async def _flap(judge: Callable[..., Awaitable[Verdict]], tests: frozenset[str]) -> bool:
    """Whether tests, these among them, fail in some exams and not in others with tracebacks alone, as behind other
    false tests they may: one that does may also change whether there is a second go, and what that tells."""
    failed: list[frozenset[str]] = []
    while len(failed) < MOST_EXAMS:
        failed.append(frozenset((await judge(random.randrange(1 << 62), tracebacks=True)).missing))
        seen = frozenset.union(*failed) - frozenset.intersection(*failed)
        if seen and tests <= seen:
            return True
    return False


def _told(verdict: Verdict) -> tuple[object, ...]:
    return verdict.reward, verdict.reason, dict(verdict.components), dict(verdict.outcomes)


async def _pristine(
    bundle: TaskBundle, gold: Change, runtime: Runtime
) -> tuple[Mapping[str, bytes], WorkspaceBaseline]:
    old: dict[str, bytes] = {}
    workspace = bundle.task.workspace
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "bench"})) as sandbox:
        baseline = await take_baseline(sandbox, workspace)
        for file in gold.files:
            try:
                old[file.path] = await sandbox.read_file(f"{workspace}/{file.path}")
            except PathError:  # the gold change makes it
                old[file.path] = b""
    return old, baseline


def _partial(gold: Change, old: Mapping[str, bytes]) -> list[Change]:
    """The gold change less one passage each, at most MOST_WRONG of them, spread over all."""
    found = [change for file in gold.files for change in _without_passages(gold, file, old[file.path])]
    return found[:: max(1, -(-len(found) // MOST_WRONG))]


def _without_passages(gold: Change, file: FileChange, old: bytes) -> Iterator[Change]:
    if file.kind is not ChangeKind.WRITE:
        return
    before, after = old.splitlines(keepends=True), file.content.splitlines(keepends=True)
    for what, first, last, start, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if what != "equal":
            content = b"".join([*after[:start], *before[first:last], *after[end:]])
            yield Change(tuple(replace(one, content=content) if one is file else one for one in gold.files))
