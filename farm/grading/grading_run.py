"""One run of a task's verifier: change and tests go into a place, the command runs, and what it gave is judged."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import Task, Verifier
from farm.core.test_frameworks import is_python, owned_files
from farm.grading.changes.apply import clear_way, execute_plan, plan_change
from farm.grading.changes.capture import MAX_BYTES, WorkspaceBaseline, is_executable, read_content, take_baseline
from farm.grading.changes.concurrency import map_concurrently
from farm.grading.changes.protected_paths import ProtectedPaths, split_change
from farm.grading.changes.summary import ChangeSummary, drop_unchanged, read_old, summarize_change
from farm.grading.decoys.verifier_plan import VerifierPlan
from farm.grading.errors import ChangeRefused, ReportError, VerifierError, raise_if_host_fault
from farm.grading.prepared_change import PreparedChange, with_facts
from farm.grading.reports.harbor import COMMAND, clear_logs, put_tests, read_reward
from farm.grading.reports.outcome import MAX_REPORT_BYTES
from farm.grading.reports.parsers import read_report
from farm.grading.sandboxes import GradingSandboxes, drop_bytecode
from farm.grading.stress import ORDERED, Stress
from farm.grading.test_files import tests_of
from farm.grading.tripwire.tripwire import (
    NO_FINDINGS,
    Tripwire,
    TripwireOutput,
    make_tripwire,
    read_findings,
    touched_files,
)
from farm.grading.verdict import Verdict, VerifierEvidence, decide, decide_exit_code, decide_reward_file, zero_verdict
from farm.tasks.bundle import BundleFile, TaskBundle
from sandboxes.errors import LossCause, PathError, SandboxGone
from sandboxes.interface import ExecResult, FileEntry, FileKind

SHELL = ("/.farm/bin/bash", "-c")
OUTPUT_BYTES = 16 * 1024
_KINDS = {ChangeKind.WRITE: FileKind.FILE, ChangeKind.SYMLINK: FileKind.SYMLINK}
TEST_ENV = {
    "PYTEST_ADDOPTS": "-p no:cacheprovider -o xfail_strict=true",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
}
"""Variables of every test command."""


class GradingRun:
    """Judge one change in one place. ``limit_s`` bounds the test command; other arguments as ``grade`` takes them."""

    def __init__(
        self,
        bundle: TaskBundle,
        place: GradingSandboxes,
        limit_s: float,
        baseline: WorkspaceBaseline | None,
        turns: asyncio.Semaphore | None,
        tracebacks: bool,
        stress: Stress,
        rng: random.Random,
    ) -> None:
        self._rng = rng
        self._bundle = bundle
        self._task: Task = bundle.task
        self._place = place
        self._sandbox = place.tests
        self._limit_s = limit_s
        self._known = baseline
        self._turns = turns or asyncio.Semaphore()
        self._tracebacks = tracebacks
        self._stress = stress
        self._looking: asyncio.Task[ChangeSummary] | None = None
        self._reported = TripwireOutput()
        self.facts: Mapping[str, float] = {}
        self.queue_s = 0.0
        self.command_s = 0.0

    async def close(self) -> None:
        """End work beside the tests if no verdict waits for it."""
        if self._looking is not None and not self._looking.done():
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def run_verifier_plan(self, change: Change, exam: VerifierPlan, asked: Verifier) -> Verdict:
        verifier = self._task.verifier
        weighed = await self._weigh(change, injected=(*exam.tests, *owned_files(verifier)))
        try:
            await self._put(weighed, exam.tests)
            tripwire = self._tripwire(weighed, exam, asked)
            for path, program in {**exam.programs, **(tripwire.programs if tripwire else {})}.items():
                await self._sandbox.write_file(path, program, parents=True)
            command = exam.command(verifier.command, tracebacks=self._tracebacks)
            env = {**dict(verifier.env), **TEST_ENV, **(exam.run_order.env if exam.run_order else {})}
            result = await self._run(command, env, tripwire)
            evidence, report = await self._read_evidence(result, exam, asked)
            if exam.run_order is not None:
                self.facts = {**self.facts, ORDERED: await exam.run_order.was_applied(self._sandbox)}
        except (ChangeRefused, PathError) as error:
            return await self._refuse(weighed, error)
        except SandboxGone as error:
            return await self._blame(weighed, error)
        judge = partial(decide, asked, exam.decoys, evidence, pristine=weighed.is_pristine)
        verdict = await asyncio.to_thread(judge)  # a report may name half a million tests
        findings = NO_FINDINGS
        if tripwire is not None:
            findings = await asyncio.to_thread(read_findings, tripwire, self._reported, report)
        return await with_facts(findings.on(verdict, asked), weighed, result, findings)

    async def run_for_exit_code(self, change: Change) -> Verdict:
        tests = await tests_of(self._bundle, self._place.pristine)
        weighed = await self._weigh(change, injected=tuple(tests))
        try:
            await self._put(weighed, tests)
            result = await self._run(self._task.verifier.command, {**dict(self._task.verifier.env), **TEST_ENV})
        except (ChangeRefused, PathError) as error:
            return await self._refuse(weighed, error)
        except SandboxGone as error:
            return await self._blame(weighed, error)
        timed_out = self._timed_out() if result.timed_out else None
        verdict = decide_exit_code(result.exit_code, timed_out, pristine=weighed.is_pristine)
        return await with_facts(verdict, weighed, result)

    async def run_for_reward_file(self, change: Change) -> Verdict:
        weighed = await self._weigh(change, injected=())
        try:
            await self._put(weighed, {})
            await put_tests(self._sandbox, self._bundle.tests)
            await clear_logs(self._sandbox)
            command = self._task.verifier.command or COMMAND
            result = await self._run(command, dict(self._task.verifier.env))
            late = ReportError(self._timed_out(), timed_out=True) if result.timed_out else None
            reward = late or await read_reward(self._sandbox, result)
        except (ChangeRefused, PathError) as error:
            return await self._refuse(weighed, error)
        except SandboxGone as error:
            return await self._blame(weighed, error)
        verdict = decide_reward_file(reward, pristine=weighed.is_pristine)
        return await with_facts(verdict, weighed, result)

    async def _baseline(self) -> WorkspaceBaseline:
        pristine = self._place.pristine
        if self._known is not None and self._known.image_digest == pristine.image_digest:
            return self._known
        return await take_baseline(pristine, self._task.workspace)

    async def _weigh(self, change: Change, *, injected: Sequence[str]) -> PreparedChange:
        pristine = await self._baseline()
        kinds = {path: entry.kind for path, entry in pristine.entries.items()}
        protection = await asyncio.to_thread(ProtectedPaths, self._task.verifier, injected, kinds)
        if self._place.holds_agent_state:
            change = await self._with_unseen(change, protection, pristine)
        old = await read_old(self._place.pristine, self._task.workspace, change, pristine.entries)
        real = drop_unchanged(change, old)
        contents = {path: file.content for path, file in old.items()}
        travels, dropped = await asyncio.to_thread(split_change, real, protection, contents.get)
        seen = self._looking = asyncio.create_task(summarize_change(real, old.get))
        touched = await asyncio.to_thread(touched_files, travels, old.get)
        if not self._place.holds_agent_state:
            return PreparedChange(travels, dropped, kinds, travels.empty, len(real.files), seen, touched)
        back = await self._put_back(dropped, pristine)
        changed = {file.path: _KINDS.get(file.kind) for file in change.files}
        there = {path: kind for path, kind in (kinds | changed).items() if kind is not None}
        return PreparedChange(back, dropped, there, False, len(real.files), seen, touched)

    async def _with_unseen(self, change: Change, protection: ProtectedPaths, pristine: WorkspaceBaseline) -> Change:
        """Return ``change`` with protected files that differ though their size and time were kept.

        Other files need no such look, because the sandbox itself is judged.
        """
        told = {file.path for file in change.files}
        untold = [entry for path, entry in pristine.entries.items() if path not in told]
        guarded = await asyncio.to_thread(
            lambda: [entry for entry in untold if entry.kind is FileKind.FILE and protection.is_protected(entry.path)]
        )

        async def read(entry: FileEntry) -> FileChange | None:
            old = await read_content(self._place.pristine, self._task.workspace, entry.path, entry.kind)
            try:
                new = await read_content(self._sandbox, self._task.workspace, entry.path, entry.kind)
            except PathError as error:
                raise_if_host_fault(error)
                raise ChangeRefused(f"a protected file was made unreadable: {error}") from None
            return None if new == old else FileChange(entry.path, ChangeKind.WRITE, new, is_executable(entry))

        unseen = [file for file in await map_concurrently(guarded, read) if file is not None]
        return Change(tuple(sorted((*change.files, *unseen), key=lambda file: file.path))) if unseen else change

    async def _put_back(self, paths: Sequence[str], pristine: WorkspaceBaseline) -> Change:
        """Return the change that puts protected paths back in the agent's own sandbox."""
        room = MAX_BYTES

        async def put_back(path: str) -> FileChange:
            nonlocal room
            entry = pristine.entries.get(path)
            if entry is None:
                return FileChange(path, ChangeKind.DELETE)
            room -= entry.size
            if room < 0:
                raise ChangeRefused(f"protected files of more than {MAX_BYTES >> 20} MiB were changed")
            content = await read_content(self._place.pristine, self._task.workspace, path, entry.kind)
            if entry.kind is FileKind.SYMLINK:
                return FileChange(path, ChangeKind.SYMLINK, content)
            return FileChange(path, ChangeKind.WRITE, content, is_executable(entry))

        return Change(tuple(await map_concurrently(paths, put_back)))

    async def _put(self, weighed: PreparedChange, tests: Mapping[str, BundleFile]) -> None:
        """Put the change and the tests in at once, and remove what stands in the way of a test."""
        if self._place.holds_agent_state:
            await drop_bytecode(self._sandbox, self._task.workspace)
        merged = {
            file.path: file for file in (*weighed.applied.files, *clear_way(tests, weighed.workspace_files).files)
        }
        for path, file in tests.items():
            merged[path] = FileChange(path, ChangeKind.WRITE, file.content, file.executable)
        plan = plan_change(Change(tuple(merged.values())), weighed.workspace_files)
        await execute_plan(self._sandbox, self._task.workspace, plan)

    def _tripwire(self, weighed: PreparedChange, exam: VerifierPlan, asked: Verifier) -> Tripwire | None:
        """None if the tests are not Python's or nothing of the agent's is there."""
        if not weighed.touched or not is_python(asked):
            return None
        workspace, tests = self._task.workspace, list(exam.tests)
        return make_tripwire(exam.report_path, workspace, weighed.touched, tests, exam.test_containers, self._rng)

    async def _run(self, command: str, env: Mapping[str, str], tripwire: Tripwire | None = None) -> ExecResult:
        asked = time.monotonic()
        command = self._stress.around(tripwire.around(command) if tripwire else command)
        run = partial(
            self._sandbox.exec,
            (*SHELL, command),
            cwd=self._task.workspace,
            env=env,
            timeout_s=self._limit_s,
            output_limit=OUTPUT_BYTES,
            merge_stderr=True,
        )
        async with self._turns:
            self.queue_s = time.monotonic() - asked
            if tripwire is None:
                result = await run()
            else:
                result, self._reported = await tripwire.watch(self._sandbox, run, self._limit_s)
            await self._sandbox.kill_all()
        self.command_s = result.duration_s
        self.facts = await self._stress.facts(self._sandbox)
        return result

    async def _read_evidence(
        self, result: ExecResult, exam: VerifierPlan, asked: Verifier
    ) -> tuple[VerifierEvidence, bytes | None]:
        """Return what the tests gave, and their report as it was written, None if there is none."""
        if result.timed_out:
            return VerifierEvidence(fault=self._timed_out(), timed_out=True), None
        content: bytes | None = None
        try:
            content = await self._sandbox.read_file(exam.report_path, limit=MAX_REPORT_BYTES + 1)
            expected = (*asked.fail_to_pass, *asked.pass_to_pass)
            outcomes = await asyncio.to_thread(
                read_report, content, exam.report_format, exam.test_containers, self._task.workspace, expected
            )
            return VerifierEvidence(outcomes), content
        except PathError as error:
            raise_if_host_fault(error)
            why = f"exit code {result.exit_code}; {result.last_line or 'no output'}"
            return VerifierEvidence(fault=f"the test command wrote no report ({why})"), None
        except ReportError as error:
            return VerifierEvidence(fault=str(error)), content

    def _timed_out(self) -> str:
        return f"the test command did not end within {self._limit_s:g} s"

    async def _refuse(self, weighed: PreparedChange, error: Exception) -> Verdict:
        if isinstance(error, PathError):
            raise_if_host_fault(error, fresh=not self._place.holds_agent_state)
        if weighed.is_pristine:
            raise VerifierError(f"the tests cannot be put into the workspace: {error}") from error
        return await with_facts(zero_verdict(f"the change does not apply: {error}"), weighed, None)

    async def _blame(self, weighed: PreparedChange, error: SandboxGone) -> Verdict:
        if weighed.is_pristine or error.by is LossCause.OUTSIDE:
            raise error
        reason = (
            "the tests ran out of memory" if error.by is LossCause.MEMORY else f"the tests lost their sandbox: {error}"
        )
        return replace(await with_facts(zero_verdict(reason), weighed, None), unreported=True)
