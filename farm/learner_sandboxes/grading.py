"""Grade the work in a learner sandbox: collect it from a copy, as an episode does, and judge it in fresh sandboxes."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from farm.core.change import Change
from farm.core.run import EpisodeLimits
from farm.core.task import GradingMode
from farm.episode import NodeServices
from farm.grading import (
    Artifacts,
    ChangeTooLarge,
    Forfeit,
    GradingRequest,
    Verdict,
    VerifierError,
    Work,
    WorkspaceBaseline,
    WrittenAnswer,
    collect_work,
    grade,
)
from farm.grading.errors import raise_if_host_fault
from farm.learner_sandboxes.messages import GradeResult
from farm.tasks import TaskBundle
from sandboxes.cancellation import shielded
from sandboxes.errors import LossCause, PathError, SandboxGone, SnapshotError
from sandboxes.interface import Sandbox

_NEEDS_COPY = (GradingMode.SNAPSHOT, GradingMode.SHARED)
"""Modes in which grading needs the sandbox that the work was taken from."""
_LIMITS = EpisodeLimits()


@dataclass(frozen=True, slots=True)
class GradedTask:
    """The parts that grading needs of a sandbox that was made from a task.

    ``baseline``: the workspace before any call; None if the task's work is compared with nothing.
    """

    bundle: TaskBundle
    sandbox: Sandbox
    baseline: WorkspaceBaseline | None


async def grade_work(
    graded: GradedTask,
    services: NodeServices,
    fork: Callable[[], Awaitable[Sandbox]],
    *,
    answer: str | None,
    lost: SandboxGone | None,
) -> GradeResult:
    """Return the verdict on the work so far.

    ``fork`` copies the sandbox. ``answer``: the arguments of the last ``answer`` call, for retrieval.
    ``lost``: the error of an earlier call that lost the sandbox; as in an episode, that is worth 0 if the inside caused
    it. The work is taken from a copy without processes, so the sandbox and what runs in it stay as they are. Raises the
    errors of ``sandboxes`` for infrastructure.
    """
    task = graded.bundle.task
    async with AsyncExitStack() as stack:
        copy: Sandbox | None = None
        if task.retrieval is not None:
            work: Work = WrittenAnswer(answer)
        elif lost is not None:
            work = lost_work(lost)
        else:
            try:
                copy = await fork()
                stack.push_async_callback(_remove, copy)
                await copy.shut_egress()
                work = await _collect(graded, copy)
            except SandboxGone as error:
                work = lost_work(error)
            except SnapshotError as error:
                if not error.unfit:
                    raise
                work = Forfeit(f"no sandbox starts on what was left: {error}")
        if task.verifier.mode not in _NEEDS_COPY:
            await stack.aclose()
        return await _judge(graded, services, work, copy)


def lost_work(error: SandboxGone) -> Forfeit:
    """Return the work of a sandbox that was lost from inside. Raises ``error`` if it was lost from outside."""
    if error.by is LossCause.OUTSIDE:
        raise error
    return Forfeit(f"the work was lost: {error}")


async def _remove(copy: Sandbox) -> None:
    await shielded(copy.remove())


async def _collect(graded: GradedTask, copy: Sandbox) -> Change | Artifacts | Forfeit:
    try:
        return await collect_work(copy, graded.bundle.task, graded.baseline, limit_s=_LIMITS.tool_s)
    except TimeoutError:
        return Forfeit(f"the sandbox did not give its change within {_LIMITS.tool_s:g} s")
    except (ChangeTooLarge, PathError) as error:
        if isinstance(error, PathError):
            raise_if_host_fault(error)
        return Forfeit(str(error))


async def _judge(graded: GradedTask, services: NodeServices, work: Work, copy: Sandbox | None) -> GradeResult:
    request = GradingRequest(
        graded.bundle,
        work,
        services.runtime,
        boot_timeout_s=_LIMITS.boot_s,
        baseline=graded.baseline,
        test_slots=services.test_slots,
        open_block=partial(services.standstill.hold, graded.bundle.task.digest),
        agent_sandbox=copy,
        tracebacks=services.tracebacks,
    )
    try:
        verdict = await grade(request)
        if verdict.unreported or verdict.none_passed:
            await services.verifier_check.require(request, graded.sandbox.image_digest)
    except VerifierError as error:
        return GradeResult(judged=False, resolved=False, reason=f"not judged: {error}", components={})
    return _result(verdict)


def _result(verdict: Verdict) -> GradeResult:
    components = {"verdict": verdict.reward, **verdict.components}
    return GradeResult(True, verdict.resolved, verdict.reason, components, seconds=verdict.total_s)
