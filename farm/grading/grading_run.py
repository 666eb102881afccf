"""One run of a task's verifier on a change: change and tests go into a sandbox, the command runs, and its result is
judged."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import Verifier
from farm.core.test_frameworks import is_python, owned_files
from farm.grading.changes.apply import clear_way, execute_plan, plan_change
from farm.grading.decoys.verifier_plan import VerifierPlan
from farm.grading.errors import ReportError, raise_if_host_fault
from farm.grading.prepared_change import ChangePreparer, PreparedChange
from farm.grading.reports.harbor import COMMAND, clear_logs, put_tests
from farm.grading.reports.outcome import MAX_REPORT_BYTES
from farm.grading.reports.parsers import read_report
from farm.grading.request import GradingRequest
from farm.grading.sandboxes import GradingSandboxes, drop_bytecode
from farm.grading.stress import ORDERED
from farm.grading.test_files import tests_of
from farm.grading.tripwire.findings import NO_FINDINGS, read_findings
from farm.grading.tripwire.tripwire import Tripwire, make_tripwire
from farm.grading.verdict import Verdict, VerifierEvidence, decide, decide_exit_code, decide_reward_file
from farm.grading.verifier_run import (
    TEST_ENV,
    CommandTimes,
    Placement,
    VerifierCommand,
    VerifierRun,
    judge_run,
    reward_of_run,
    run_verifier,
)
from farm.tasks.bundle import BundleFile
from sandboxes.errors import PathError


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The result of the tests, and their report as it was written; None if there is none."""

    outcome: VerifierEvidence
    report: bytes | None = None


class GradingRun:
    """Judge one change in ``sandboxes``. ``times`` and ``facts`` hold also if the run raised."""

    def __init__(self, request: GradingRequest, sandboxes: GradingSandboxes) -> None:
        self._request = request
        self._task = request.bundle.task
        self._sandboxes = sandboxes
        self._sandbox = sandboxes.tests
        self._preparer = ChangePreparer(self._task, sandboxes, request.baseline)
        self.times = CommandTimes()
        self.facts: Mapping[str, float] = {}

    async def close(self) -> None:
        """End work beside the tests if no verdict waits for it."""
        await self._preparer.close()

    async def run_verifier_plan(self, change: Change, plan: VerifierPlan, verifier: Verifier) -> Verdict:
        """Return the verdict by the report on the tests that ``verifier`` expects: all of the task or a part."""
        injected = (*plan.tests, *owned_files(self._task.verifier))
        prepared = await self._preparer.prepare(change, injected=injected)
        return await self._judge_prepared(prepared, partial(self._judge_report, prepared, plan, verifier))

    async def run_for_exit_code(self, change: Change) -> Verdict:
        """Return the verdict of a verifier that tells only by its exit code whether it succeeded."""
        tests = await tests_of(self._request.bundle, self._sandboxes.pristine)
        prepared = await self._preparer.prepare(change, injected=tuple(tests))
        return await self._judge_prepared(prepared, partial(self._judge_exit_code, prepared, tests))

    async def run_for_reward_file(self, change: Change) -> Verdict:
        """Return the verdict of a verifier that writes its reward into a file."""
        prepared = await self._preparer.prepare(change, injected=())
        return await self._judge_prepared(prepared, partial(self._judge_reward_file, prepared))

    async def _judge_prepared(self, prepared: PreparedChange, run: Callable[[], Awaitable[Verdict]]) -> Verdict:
        placement = Placement(
            is_pristine=prepared.is_pristine,
            is_fresh=not self._sandboxes.holds_agent_state,
            tests_fault="the tests cannot be put into the workspace",
            work_fault="the change does not apply",
        )
        return await prepared.add_facts(await judge_run(run, placement))

    async def _judge_report(self, prepared: PreparedChange, plan: VerifierPlan, verifier: Verifier) -> Verdict:
        await self._put(prepared, plan.tests)
        tripwire = self._tripwire(prepared, plan, verifier)
        for path, program in {**plan.programs, **(tripwire.programs if tripwire else {})}.items():
            await self._sandbox.write_file(path, program, parents=True)
        command = plan.command(verifier.command, tracebacks=self._request.tracebacks)
        env = {**dict(verifier.env), **TEST_ENV, **(plan.run_order.env if plan.run_order else {})}
        run = await self._run_command(command, env, tripwire)
        evidence = await self._read_evidence(run, plan, verifier)
        if plan.run_order is not None:
            self.facts = {**self.facts, ORDERED: await plan.run_order.was_applied(self._sandbox)}
        decide_outcome = partial(decide, verifier, plan.decoys, evidence.outcome, pristine=prepared.is_pristine)
        verdict = await asyncio.to_thread(decide_outcome)  # a report may name half a million tests
        findings = NO_FINDINGS
        if tripwire is not None:
            findings = await asyncio.to_thread(read_findings, tripwire, run.hook_output, evidence.report)
        return replace(findings.on(verdict, verifier), output=run.output, screened=findings.evidence)

    async def _judge_exit_code(self, prepared: PreparedChange, tests: Mapping[str, BundleFile]) -> Verdict:
        await self._put(prepared, tests)
        run = await self._run_command(self._task.verifier.command, {**dict(self._task.verifier.env), **TEST_ENV})
        verdict = decide_exit_code(run.result.exit_code, run.timeout_fault, pristine=prepared.is_pristine)
        return replace(verdict, output=run.output)

    async def _judge_reward_file(self, prepared: PreparedChange) -> Verdict:
        await self._put(prepared, {})
        await put_tests(self._sandbox, self._request.bundle.tests)
        await clear_logs(self._sandbox)
        run = await self._run_command(self._task.verifier.command or COMMAND, dict(self._task.verifier.env))
        verdict = decide_reward_file(await reward_of_run(self._sandbox, run), pristine=prepared.is_pristine)
        return replace(verdict, output=run.output)

    async def _put(self, prepared: PreparedChange, tests: Mapping[str, BundleFile]) -> None:
        """Put the change and the tests in at once, and remove what stands in the way of a test."""
        if self._sandboxes.holds_agent_state:
            await drop_bytecode(self._sandbox, self._task.workspace)
        cleared = clear_way(tests, prepared.workspace_files)
        merged = {file.path: file for file in (*prepared.applied.files, *cleared.files)}
        for path, file in tests.items():
            merged[path] = FileChange(path, ChangeKind.WRITE, file.content, file.executable)
        plan = plan_change(Change(tuple(merged.values())), prepared.workspace_files)
        await execute_plan(self._sandbox, self._task.workspace, plan)

    def _tripwire(self, prepared: PreparedChange, plan: VerifierPlan, verifier: Verifier) -> Tripwire | None:
        """Return None if the tests are not Python's or nothing of the agent's is in the sandbox."""
        if not prepared.changed_lines or not is_python(verifier):
            return None
        workspace, tests = self._task.workspace, list(plan.tests)
        return make_tripwire(
            plan.report_path, workspace, prepared.changed_lines, tests, plan.test_containers, self._request.rng
        )

    async def _run_command(self, command: str, env: Mapping[str, str], tripwire: Tripwire | None = None) -> VerifierRun:
        stress, request = self._request.stress, self._request
        text = stress.around(tripwire.around(command) if tripwire else command)
        verifier_command = VerifierCommand(text, env, request.limit_s, self._task.workspace)
        run = await run_verifier(self._sandbox, verifier_command, request, self.times, tripwire)
        self.facts = await stress.facts(self._sandbox)
        return run

    async def _read_evidence(self, run: VerifierRun, plan: VerifierPlan, verifier: Verifier) -> _Evidence:
        if run.timeout_fault is not None:
            return _Evidence(VerifierEvidence(fault=run.timeout_fault, timed_out=True))
        content: bytes | None = None
        try:
            content = await self._sandbox.read_file(plan.report_path, limit=MAX_REPORT_BYTES + 1)
            expected = (*verifier.fail_to_pass, *verifier.pass_to_pass)
            outcomes = await asyncio.to_thread(
                read_report, content, plan.report_format, plan.test_containers, self._task.workspace, expected
            )
            return _Evidence(VerifierEvidence(outcomes), content)
        except PathError as error:
            raise_if_host_fault(error)
            why = f"exit code {run.result.exit_code}; {run.result.last_line or 'no output'}"
            return _Evidence(VerifierEvidence(fault=f"the test command wrote no report ({why})"))
        except ReportError as error:
            return _Evidence(VerifierEvidence(fault=str(error)), content)
