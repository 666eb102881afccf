"""``verify``: the farm's test command compared with the same command with tracebacks, in time and in verdicts."""

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
MAX_PARTIAL = 6
MAX_GRADINGS = 16


async def measure_verify(
    bundles: Sequence[TaskBundle], runtime: Runtime, *, rounds: int, on_task: Callable[[int], None]
) -> tuple[Figure, ...]:
    """Grade changes of each task with and without tracebacks, alternating, ``rounds`` times.

    The changes are the empty change, the gold change and partial gold changes; both gradings of a pair use the same
    decoy tests. Raises BenchError if two verdicts differ in the reward. Other differences are an error unless exactly
    the tests in which the verdicts differ are flaky with tracebacks alone.
    """
    brief_s: list[float] = []
    full_s: list[float] = []
    judged = resolved = tests = flapping = 0
    for number, bundle in enumerate(bundles):
        if bundle.gold is None or bundle.task.verifier.report is not ReportFormat.PYTEST:
            raise BenchError(
                f"{bundle.task.id} cannot be compared: it needs a gold change and a pytest report; choose others"
            )
        old, baseline = await _pristine(bundle, bundle.gold, runtime)
        changes = [Change(), bundle.gold, *_partial_changes(bundle.gold, old)]
        for change in changes * rounds:
            judge = partial(_judge, bundle, change, runtime, baseline)
            seed = random.randrange(1 << 62)
            full = await judge(seed, tracebacks=True)
            brief = await judge(seed, tracebacks=False)
            full_s.append(full.command_s)
            brief_s.append(brief.command_s)
            judged, resolved = judged + 1, resolved + full.resolved
            if _comparable(full) == _comparable(brief):
                tests += len(full.outcomes)
            elif full.reward == brief.reward and await _is_flaky(judge, _differing_tests(full, brief)):
                flapping += 1
            else:
                raise BenchError(
                    f"verdicts of {bundle.task.id} differ: {full.reason!r} with tracebacks, {brief.reason!r} without"
                )
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


def _differing_tests(one: Verdict, other: Verdict) -> frozenset[str]:
    """Return the expected tests that passed in exactly one of the verdicts."""
    return frozenset(one.missing) ^ frozenset(other.missing)


async def _is_flaky(judge: Callable[..., Awaitable[Verdict]], tests: frozenset[str]) -> bool:
    """Return whether a set of tests that includes ``tests`` is flaky across gradings with tracebacks.

    A test may fail behind some decoy tests and pass behind others. A flaky test may also change whether tests are run a
    second time, and the result of that run.
    """
    failed: list[frozenset[str]] = []
    while len(failed) < MAX_GRADINGS:
        failed.append(frozenset((await judge(random.randrange(1 << 62), tracebacks=True)).missing))
        flaky = frozenset.union(*failed) - frozenset.intersection(*failed)
        if flaky and tests <= flaky:
            return True
    return False


def _comparable(verdict: Verdict) -> tuple[object, ...]:
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
            except PathError:  # created by the gold change
                old[file.path] = b""
    return old, baseline


def _partial_changes(gold: Change, old: Mapping[str, bytes]) -> list[Change]:
    """Return the gold change without one passage each, at most MOST_WRONG variants, spread over all passages."""
    found = [change for file in gold.files for change in _without_passages(gold, file, old[file.path])]
    return found[:: max(1, -(-len(found) // MAX_PARTIAL))]


def _without_passages(gold: Change, file: FileChange, old: bytes) -> Iterator[Change]:
    if file.kind is not ChangeKind.WRITE:
        return
    before, after = old.splitlines(keepends=True), file.content.splitlines(keepends=True)
    for tag, first, last, start, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            content = b"".join([*after[:start], *before[first:last], *after[end:]])
            yield Change(tuple(replace(one, content=content) if one is file else one for one in gold.files))
