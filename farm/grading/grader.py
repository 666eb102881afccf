"""The verdict on a change, reached in a fresh sandbox of the pristine image."""

import asyncio
import random
import time
from collections.abc import Collection, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial, reduce
from typing import Any

from farm.core.change import Change
from farm.core.task import GradingMode, ReportFormat, Verifier
from farm.grading.changes.capture import WorkspaceBaseline
from farm.grading.decoys.control_run import (
    ControlRun,
    confirming_verifier,
    count_control_runs,
    find_unconfirmed,
    mark_unsteady,
    merge_control_run,
    needs_control_run,
    proves_forgery,
    withhold_unconfirmed,
)
from farm.grading.decoys.verifier_plan import build_verifier_plan, check_verifier
from farm.grading.errors import ChangeRefused, VerifierError
from farm.grading.grading_run import GradingRun
from farm.grading.sandboxes import open_grading_sandboxes
from farm.grading.stress import NO_STRESS, Stress
from farm.grading.test_files import are_brought, tests_of
from farm.grading.tripwire.tripwire import keep_findings
from farm.grading.verdict import Verdict, with_time_of, zero_verdict
from farm.tasks.bundle import TaskBundle
from farm.tasks.healthcheck import await_health
from farm.tasks.images import sandbox_spec
from sandboxes.interface import Runtime, Sandbox


async def grade(
    bundle: TaskBundle,
    change: Change,
    runtime: Runtime,
    *,
    verify_s: float | None,
    rng: random.Random,
    boot_timeout_s: float = 60.0,
    baseline: WorkspaceBaseline | None = None,
    turns: asyncio.Semaphore | None = None,
    worked_in: Sandbox | None = None,
    tracebacks: bool = False,
    stress: Stress = NO_STRESS,
    alone: bool = False,
) -> Verdict:
    """Judge a change of the task's workspace.

    ``worked_in`` is the agent's sandbox, from which the change was taken. All modes but ``patch`` need it.
    ``verify_s`` caps the task's own limit on the test command, in seconds. ``turns`` bounds how many test commands run
    at once; the time-out begins when the command has its turn. ``rng`` chooses false tests and names, which the agent
    must not be able to guess. ``baseline`` spares a walk of the workspace if it is of the same image.
    ``tracebacks``: pytest shows where tests failed, which takes up to a third of the command; no verdict depends on it.
    ``stress``: load or another order of tests; if an order was asked for, the component ``ordered`` tells whether the
    tests ran in it. ``alone``: there is no control run, and no test runs behind a false test like it.

    A change that makes the command hang, die or report nothing, or that ends the sandbox, is judged 0. Raises
    VerifierError if the verifier does not work with nothing changed, or if the task cannot be judged this way. Raises
    the errors of ``sandboxes`` for infrastructure, and SandboxGone unless the change ended the sandbox.
    """
    task = bundle.task
    if task.retrieval is not None:
        raise VerifierError("the task asks for an answer, not for a change")
    if task.steps:
        raise VerifierError("a task of several steps is judged step by step, in an episode")
    if task.verifier.mode is GradingMode.SEPARATE:
        raise VerifierError("the task's own verifier is shown artifacts, not a change; play an episode")
    check_verifier(task.verifier, bundle.tests)
    given = (verify_s, boot_timeout_s, baseline, turns, worked_in, tracebacks, stress)
    judge = partial(_judge, bundle, change, runtime, *given)
    # Tests of another language run behind false tests like them, which may disturb them. Tests run once in the agent's
    # own sandbox, in another order, and with nothing changed.
    twice = task.verifier.mode is not GradingMode.SHARED and stress.order is None and not alone
    if not (twice and needs_control_run(task.verifier)) or change.empty:
        first = await judge(rng, before=twice, asked=task.verifier)
        if first.doubtful and twice:
            again = await judge(rng, before=False, asked=task.verifier)
            return with_time_of(keep_findings(first, again), first)
        return first
    return await _judge_controlled(task.verifier, judge, rng)


async def _judge_controlled(
    verifier: Verifier, judge: "partial[Coroutine[Any, Any, Verdict]]", rng: random.Random
) -> Verdict:
    """Return the verdict of the run that counts, as far as the control runs around it bear it out."""
    before, after = count_control_runs(verifier, rng)
    controls: list[Verdict] = []
    for _ in range(before):
        control = await judge(rng, before=False, asked=verifier, control=ControlRun.SOME)
        if control.unreported or proves_forgery(control):
            return reduce(lambda last, other: with_time_of(keep_findings(other, last), other), controls, control)
        controls.append(control)
    first = await judge(rng, before=False, asked=verifier)
    asked = confirming_verifier(verifier, first)
    for _ in range(after if asked is not None else 0):
        controls.append(await judge(rng, before=False, asked=asked, control=ControlRun.SOME, failed=first.missing))
    verdict = first
    for control in controls:
        verdict = merge_control_run(verifier, keep_findings(control, verdict), control)
    if asked is None or verdict.tampered:
        return verdict
    open_tests = {test for control in controls for test in find_unconfirmed(asked, control)}
    if not open_tests:
        return verdict
    control = await judge(rng, before=False, asked=asked, control=ControlRun.LAST, failed=first.missing)
    verdict = mark_unsteady(merge_control_run(verifier, keep_findings(control, verdict), control))
    if verdict.tampered or not find_unconfirmed(asked, control):
        return verdict
    return withhold_unconfirmed(verifier, verdict, find_unconfirmed(asked, control), control.reason)


async def passed_false(bundle: TaskBundle, change: Change, runtime: Runtime, *, rng: random.Random) -> tuple[str, ...]:
    """Return expected tests of Python, without parameters, of which a false version passes with ``change``.

    All tests that can be made false are false at once, each in one way of several. Raises what ``grade`` raises.
    """
    asked = bundle.task.verifier
    given = (None, 60.0, None, None, None, False, NO_STRESS)
    verdict = await _judge(bundle, change, runtime, *given, rng, before=False, asked=asked, control=ControlRun.ALL)
    return verdict.passed_false


async def _judge(
    bundle: TaskBundle,
    change: Change,
    runtime: Runtime,
    verify_s: float | None,
    boot_timeout_s: float,
    baseline: WorkspaceBaseline | None,
    turns: asyncio.Semaphore | None,
    worked_in: Sandbox | None,
    tracebacks: bool,
    stress: Stress,
    rng: random.Random,
    *,
    before: bool,
    asked: Verifier,
    control: ControlRun | None = None,
    failed: Collection[str] = (),
) -> Verdict:
    """Run the tests of ``asked`` once. ``before``, ``control`` and ``failed`` as ``build_verifier_plan`` takes them."""
    task = bundle.task
    started = time.monotonic()
    spec = sandbox_spec(task, labels={"task": task.id, "purpose": "grading"}, hides_tests=True)
    names_tests = task.verifier.report.names_tests
    changed = [file.path for file in change.files]
    set_any = partial(build_verifier_plan, asked, changed=changed, rng=rng, decoys_first=before, seed=stress.order)
    set_one = partial(set_any, control=control, failed=failed)
    in_thread = partial(asyncio.get_running_loop().run_in_executor, None, set_one)
    # While it boots, unless the tests are made of what the image holds.
    exam = in_thread(bundle.tests) if names_tests and are_brought(bundle) else None
    mode = task.verifier.mode
    async with AsyncExitStack() as undo:
        try:
            place = await undo.enter_async_context(
                open_grading_sandboxes(runtime, spec, mode, worked_in, boot_timeout_s=boot_timeout_s)
            )
        except ChangeRefused as error:
            return zero_verdict(str(error))
        if not place.holds_agent_state:
            await await_health(place.tests, task)
        booted = time.monotonic()
        grading = GradingRun(bundle, place, task.verifier.limit_s(verify_s), baseline, turns, tracebacks, stress, rng)
        try:
            if names_tests:
                made = await (exam or in_thread(await tests_of(bundle, place.pristine)))
                verdict = await grading.run_verifier_plan(change, made, asked)
            elif task.verifier.report is ReportFormat.EXIT_CODE:
                verdict = await grading.run_for_exit_code(change)
            else:
                verdict = await grading.run_for_reward_file(change)
        except ChangeRefused as error:
            verdict = zero_verdict(str(error))
        except VerifierError as error:
            error.command_s = grading.command_s
            raise
        finally:
            await grading.close()
    marks = {} if mode is GradingMode.PATCH else {f"graded_{mode.value}": 1.0}
    return replace(
        verdict,
        components={**verdict.components, **marks, **grading.facts},
        boot_s=booted - started,
        queue_s=grading.queue_s,
        command_s=grading.command_s,
        total_s=time.monotonic() - started,
    )
