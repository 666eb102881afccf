"""The verdict on a change, reached in a fresh sandbox of the pristine image."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import GradingMode, ReportFormat, Task, Verifier
from farm.grading.apply import carry_out, clear_way, plan_change
from farm.grading.batch import each
from farm.grading.capture import MAX_BYTES, Baseline, is_executable, read_content, take_baseline
from farm.grading.errors import ChangeRefused, ReportError, VerifierError
from farm.grading.exam import Exam, set_exam
from farm.grading.junit import MAX_REPORT_BYTES, parse_junit
from farm.grading.patch import MAX_SHOWN_BYTES, render_patch
from farm.grading.protect import Protection, split_change
from farm.grading.reward_file import MAX_REWARD_BYTES, parse_reward
from farm.grading.verdict import Evidence, Verdict, decide, decide_reward_file, refusal
from farm.tasks.bundle import BundleFile, TaskBundle
from farm.tasks.images import sandbox_spec
from sandboxes.errors import GoneBy, PathError, SandboxGone
from sandboxes.sandbox import ExecResult, FileKind, Runtime, Sandbox

SHELL = ("/.farm/bin/bash", "-c")
OUTPUT_BYTES = 16 * 1024
UNREAD = b"\0"
"""Stands for pristine content that is not worth reading: too big to be shown, of another size than the new."""

PYTEST_ENV = {
    "PYTEST_ADDOPTS": "-p no:cacheprovider -o xfail_strict=true",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
}
HARBOR_TESTS = "/tests"
HARBOR_LOGS = "/logs/verifier"


async def grade(
    bundle: TaskBundle,
    change: Change,
    runtime: Runtime,
    *,
    verify_s: float | None,
    rng: random.Random,
    boot_timeout_s: float = 60.0,
    baseline: Baseline | None = None,
    turns: asyncio.Semaphore | None = None,
) -> Verdict:
    """Judge a change of the task's workspace.

    ``turns``: so many test commands may run at once; a time-out begins with the command's turn.
    ``baseline`` spares a walk where it is of the image that the sandbox boots from. ``verify_s`` caps the task's own
    limit on the verifier. ``rng`` names the canary and the report: it must not be
    guessable by the agent. Raises VerifierError where the verifier does not work even with nothing changed or the task
    cannot be judged this way, and the errors of ``sandboxes`` for infrastructure: SandboxGone among them, unless it
    was by the change's doing. A change whose code makes the command hang, die or report nothing, or takes the sandbox
    down, is judged 0.
    """
    task = bundle.task
    if task.retrieval is not None:
        raise VerifierError("the task asks for an answer, not for a change")
    _refuse_unfit(task.verifier, bundle)
    started = time.monotonic()
    spec = sandbox_spec(task, labels={"task": task.id, "purpose": "grading"})
    is_exam = task.verifier.report is ReportFormat.PYTEST
    exam = asyncio.get_running_loop().run_in_executor(None, _set_exam, bundle, change, rng) if is_exam else None
    async with runtime.scope(spec, boot_timeout_s=boot_timeout_s) as sandbox:
        booted = time.monotonic()
        grading = _Grading(bundle, sandbox, _limit_s(task.verifier, verify_s), baseline, turns or asyncio.Semaphore())
        try:
            if exam is not None:
                verdict = await grading.judge_exam(change, await exam)
            else:
                verdict = await grading.judge_reward_file(change)
        except VerifierError as error:
            error.command_s = grading.command_s
            raise
    return replace(
        verdict,
        boot_s=booted - started,
        queue_s=grading.queue_s,
        command_s=grading.command_s,
        total_s=time.monotonic() - started,
    )


def _refuse_unfit(verifier: Verifier, bundle: TaskBundle) -> None:
    if verifier.mode is not GradingMode.PATCH:
        raise VerifierError(f'grading mode {verifier.mode} is not available; set grading = "patch" in task.toml')
    if verifier.report is ReportFormat.REWARD_FILE:
        if "test.sh" not in bundle.tests:
            raise VerifierError("the task has no tests/test.sh to write its reward file")
        return
    if not verifier.fail_to_pass and not verifier.pass_to_pass:
        raise VerifierError("the task expects no test; name some in fail_to_pass or pass_to_pass")
    for placeholder in ("{report}", "{files}"):
        if placeholder not in verifier.command:
            raise VerifierError(f"the test command lacks {placeholder}; a verdict needs it")


def _set_exam(bundle: TaskBundle, change: Change, rng: random.Random) -> Exam:
    return set_exam(bundle.task.verifier, bundle.tests, [file.path for file in change.files], rng)


def _limit_s(verifier: Verifier, verify_s: float | None) -> float:
    return verifier.timeout_s if verify_s is None else min(verify_s, verifier.timeout_s)


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A change as it travels, and the pristine workspace that it travels to. ``files`` it really changes.

    The ``patch`` is rendered while the tests run.
    """

    travels: Change
    dropped: tuple[str, ...]
    kinds: Mapping[str, FileKind]
    files: int
    patch: asyncio.Future[str]

    @property
    def pristine(self) -> bool:
        """Nothing of the change travels."""
        return self.travels.empty


class _Grading:
    """One change in one fresh sandbox."""

    def __init__(
        self,
        bundle: TaskBundle,
        sandbox: Sandbox,
        limit_s: float,
        baseline: Baseline | None,
        turns: asyncio.Semaphore,
    ) -> None:
        self._bundle = bundle
        self._task: Task = bundle.task
        self._sandbox = sandbox
        self._limit_s = limit_s
        self._known = baseline
        self._turns = turns
        self.queue_s = 0.0
        self.command_s = 0.0

    async def judge_exam(self, change: Change, exam: Exam) -> Verdict:
        verifier = self._task.verifier
        weighed = await self._weigh(change, injected=(*exam.tests, *exam.files))
        try:
            await self._put(weighed, exam.tests)
            await self._sandbox.write_file(f"{exam.report}.log", b"", parents=True)
            result = await self._run(exam.command(verifier.command), PYTEST_ENV)
            evidence = await self._read_evidence(result, exam)
        except (ChangeRefused, PathError) as error:
            return await self._refuse(weighed, error)
        except SandboxGone as error:
            return await self._blame(weighed, error)
        verdict = decide(verifier, exam.canary, exam.contradiction, evidence, pristine=weighed.pristine)
        return await _with_facts(verdict, weighed, result)

    async def judge_reward_file(self, change: Change) -> Verdict:
        weighed = await self._weigh(change, injected=())
        try:
            await self._put(weighed, {})
            await self._put_harbor_tests()
            result = await self._run(self._task.verifier.command or f"bash {HARBOR_TESTS}/test.sh", {})
            reward = await self._read_reward(result)
        except (ChangeRefused, PathError) as error:
            return await self._refuse(weighed, error)
        except SandboxGone as error:
            return await self._blame(weighed, error)
        verdict = decide_reward_file(reward, pristine=weighed.pristine)
        return await _with_facts(verdict, weighed, result)

    async def _read_old(self, change: Change, pristine: Baseline) -> dict[str, FileChange]:
        """What the pristine workspace holds at the changed paths."""
        room = MAX_BYTES

        async def read(file: FileChange) -> FileChange | None:
            nonlocal room
            entry = pristine.entries.get(file.path)
            if entry is None:
                return None
            kind = ChangeKind.SYMLINK if entry.kind is FileKind.SYMLINK else ChangeKind.WRITE
            content = UNREAD
            if entry.size <= room and (entry.size <= MAX_SHOWN_BYTES or entry.size == len(file.content)):
                room -= entry.size
                content = await read_content(self._sandbox, self._task.workspace, file.path, entry.kind)
            return FileChange(file.path, kind, content, is_executable(entry) and kind is ChangeKind.WRITE)

        return {file.path: file for file in await each(change.files, read) if file is not None}

    async def _baseline(self) -> Baseline:
        if self._known is not None and self._known.image_digest == self._sandbox.image_digest:
            return self._known
        return await take_baseline(self._sandbox, self._task.workspace)

    async def _weigh(self, change: Change, *, injected: Sequence[str]) -> _Weighed:
        pristine = await self._baseline()
        kinds = {path: entry.kind for path, entry in pristine.entries.items()}
        old = await self._read_old(change, pristine)

        real = Change(tuple(file for file in change.files if _is_real(file, old.get(file.path))))
        protection = Protection(self._task.verifier, injected, kinds)
        contents = {path: file.content for path, file in old.items()}
        travels, dropped = await asyncio.to_thread(split_change, real, protection, contents.get)
        patch = asyncio.get_running_loop().run_in_executor(None, render_patch, real, old.get)
        return _Weighed(travels, dropped, kinds, len(real.files), patch)

    async def _put(self, weighed: _Weighed, tests: Mapping[str, BundleFile]) -> None:
        """The change and the tests in one go; whatever stands in the way of a test is removed."""
        merged = {file.path: file for file in (*weighed.travels.files, *clear_way(tests, weighed.kinds).files)}
        for path, file in tests.items():
            merged[path] = FileChange(path, ChangeKind.WRITE, file.content, file.executable)
        plan = plan_change(Change(tuple(merged.values())), weighed.kinds)
        await carry_out(self._sandbox, self._task.workspace, plan)

    async def _put_harbor_tests(self) -> None:
        await each((HARBOR_TESTS, HARBOR_LOGS), self._sandbox.remove_path)
        await self._sandbox.write_file(f"{HARBOR_LOGS}/.farm", b"", parents=True)

        async def put(path: str) -> None:
            file = self._bundle.tests[path]
            await self._sandbox.write_file(
                f"{HARBOR_TESTS}/{path}", file.content, executable=file.executable, parents=True
            )

        await each(self._bundle.tests, put)

    async def _run(self, command: str, env: Mapping[str, str]) -> ExecResult:
        asked = time.monotonic()
        async with self._turns:
            self.queue_s = time.monotonic() - asked
            result = await self._sandbox.exec(
                (*SHELL, command),
                cwd=self._task.workspace,
                env=env,
                timeout_s=self._limit_s,
                output_limit=OUTPUT_BYTES,
                merge_stderr=True,
            )
            await self._sandbox.kill_all()
        self.command_s = result.duration_s
        return result

    async def _read_evidence(self, result: ExecResult, exam: Exam) -> Evidence:
        if result.timed_out:
            return Evidence(fault=self._timed_out(), timed_out=True)
        try:
            content = await self._sandbox.read_file(exam.report, limit=MAX_REPORT_BYTES + 1)
            return Evidence(await asyncio.to_thread(parse_junit, content, exam.files))
        except PathError:
            return Evidence(fault=f"the test command wrote no report (exit code {result.exit_code})")
        except ReportError as error:
            return Evidence(fault=str(error))

    async def _read_reward(self, result: ExecResult) -> float | ReportError:
        if result.timed_out:
            return ReportError(self._timed_out(), timed_out=True)
        for name in ("reward.json", "reward.txt"):
            try:
                content = await self._sandbox.read_file(f"{HARBOR_LOGS}/{name}", limit=MAX_REWARD_BYTES + 1)
                return parse_reward(content, is_json=name.endswith(".json"))
            except PathError:
                continue
            except ReportError as error:
                return error
        return ReportError(f"the verifier wrote no reward file (exit code {result.exit_code})")

    def _timed_out(self) -> str:
        return f"the test command did not end within {self._limit_s:g} s"

    async def _refuse(self, weighed: _Weighed, error: Exception) -> Verdict:
        if weighed.pristine:
            raise VerifierError(f"the tests cannot be put into the workspace: {error}") from error
        return await _with_facts(refusal(f"the change does not apply: {error}"), weighed, None)

    async def _blame(self, weighed: _Weighed, error: SandboxGone) -> Verdict:
        if weighed.pristine or error.by is GoneBy.OUTSIDE:
            raise error
        reason = (
            "the tests ran out of memory" if error.by is GoneBy.MEMORY else f"the tests lost their sandbox: {error}"
        )
        return await _with_facts(refusal(reason), weighed, None)


def _is_real(file: FileChange, old: FileChange | None) -> bool:
    """Whether a path differs from the pristine one in what travels."""
    if file.kind is ChangeKind.DELETE:
        return old is not None
    return old is None or (old.kind, old.content, old.executable) != (file.kind, file.content, file.executable)


async def _with_facts(verdict: Verdict, weighed: _Weighed, result: ExecResult | None) -> Verdict:
    facts = {"changed_files": float(weighed.files), "protected_paths_touched": float(len(weighed.dropped))}
    output = b"" if result is None else result.stdout.tail or result.stdout.head
    return replace(
        verdict,
        components={**verdict.components, **facts},
        protected_paths=weighed.dropped,
        patch=await weighed.patch,
        output=output.decode(errors="replace"),
    )
