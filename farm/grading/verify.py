"""The verdict on a change, reached in a fresh sandbox of the pristine image."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import GradingMode, ReportFormat, Task, Verifier
from farm.grading.apply import carry_out, clear_way, plan_change
from farm.grading.batch import each
from farm.grading.canary import make_canary
from farm.grading.capture import MAX_BYTES, Baseline, is_executable, read_content, take_baseline
from farm.grading.contradiction import make_contradiction
from farm.grading.errors import ChangeRefused, ReportError, VerifierError
from farm.grading.junit import MAX_REPORT_BYTES, parse_junit
from farm.grading.patch import MAX_SHOWN_BYTES, render_patch
from farm.grading.protect import Protection, split_change
from farm.grading.reward_file import MAX_REWARD_BYTES, parse_reward
from farm.grading.verdict import Evidence, Verdict, decide, decide_reward_file, refusal
from farm.tasks.bundle import TaskBundle
from sandboxes.errors import PathError, SandboxGone
from sandboxes.sandbox import ExecResult, FileKind, Runtime, Sandbox
from sandboxes.spec import Limits, SandboxSpec

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
) -> Verdict:
    """Judge a change of the task's workspace.

    ``verify_s`` caps the task's own limit on the verifier. ``rng`` names the canary and the report: it must not be
    guessable by the agent. Raises VerifierError where the verifier does not work even with nothing changed or the task
    cannot be judged this way, and the errors of ``sandboxes`` for infrastructure: SandboxGone among them, unless the
    sandbox ran out of memory. A command that the change's code made hang, die or report nothing is judged 0.
    """
    task = bundle.task
    _refuse_unfit(task.verifier, bundle)
    started = time.monotonic()
    spec = SandboxSpec(
        image=task.image,
        workdir=task.workspace,
        limits=Limits(memory_mib=task.memory_mib, cpus=task.cpus),
        labels={"task": task.id, "purpose": "grading"},
    )
    async with runtime.scope(spec, boot_timeout_s=boot_timeout_s) as sandbox:
        booted = time.monotonic()
        grading = _Grading(bundle, sandbox, _limit_s(task.verifier, verify_s), rng)
        verdict = await grading.judge(change)
    return replace(verdict, boot_s=booted - started, total_s=time.monotonic() - started)


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


def _limit_s(verifier: Verifier, verify_s: float | None) -> float:
    return verifier.timeout_s if verify_s is None else min(verify_s, verifier.timeout_s)


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A change as it travels. ``pristine``: nothing of it does."""

    travels: Change
    dropped: tuple[str, ...]
    pristine: bool
    files: int
    patch: str


class _Grading:
    """One change in one fresh sandbox."""

    def __init__(self, bundle: TaskBundle, sandbox: Sandbox, limit_s: float, rng: random.Random) -> None:
        self._bundle = bundle
        self._task: Task = bundle.task
        self._sandbox = sandbox
        self._limit_s = limit_s
        self._rng = rng

    async def judge(self, change: Change) -> Verdict:
        pristine = await take_baseline(self._sandbox, self._task.workspace)
        kinds = {path: entry.kind for path, entry in pristine.entries.items()}
        old = await self._read_old(change, pristine)
        if self._task.verifier.report is ReportFormat.PYTEST:
            verdict = await self._judge_pytest(change, kinds, old)
        else:
            verdict = await self._judge_reward_file(change, kinds, old)
        return verdict

    async def _judge_pytest(
        self, change: Change, kinds: Mapping[str, FileKind], old: Mapping[str, FileChange]
    ) -> Verdict:
        verifier = self._task.verifier
        expected = (*verifier.fail_to_pass, *verifier.pass_to_pass)
        files = sorted({test.split("::", 1)[0] for test in expected})
        tests = {path: (file.content, file.executable) for path, file in self._bundle.tests.items()}
        taken = {*kinds, *tests, *(file.path for file in change.files)}
        canary = make_canary(files, taken, self._rng)
        sources = {path: content for path, (content, _) in tests.items()}
        contradiction = make_contradiction(expected, sources, taken | {canary.path}, self._rng)
        files.insert(self._rng.randrange(len(files) + 1), canary.path)
        tests[canary.path] = (canary.content, False)
        if contradiction is not None:
            tests[contradiction.path] = (contradiction.content, False)
            files.append(contradiction.path)  # last, so that running a test twice cannot disturb the expected run
        weighed = await asyncio.to_thread(self._weigh, change, kinds, old, (*tests, *files))
        report = self._report_path()
        try:
            await self._put(weighed, tests, kinds)
            await self._sandbox.write_file(f"{report}.log", b"", parents=True)
        except (ChangeRefused, PathError) as error:
            return self._refuse(weighed, error)
        try:
            result = await self._run(self._command(report, files), PYTEST_ENV)
            evidence = await self._read_evidence(result, report, files)
        except SandboxGone as error:
            return self._blame_memory(weighed, error)
        verdict = decide(verifier, canary, contradiction, evidence, pristine=weighed.pristine)
        return _with_facts(verdict, weighed, result)

    async def _judge_reward_file(
        self, change: Change, kinds: Mapping[str, FileKind], old: Mapping[str, FileChange]
    ) -> Verdict:
        weighed = await asyncio.to_thread(self._weigh, change, kinds, old, ())
        try:
            await self._put(weighed, {}, kinds)
        except (ChangeRefused, PathError) as error:
            return self._refuse(weighed, error)
        await self._put_harbor_tests()
        try:
            result = await self._run(self._task.verifier.command or f"bash {HARBOR_TESTS}/test.sh", {})
            reward = await self._read_reward(result)
        except SandboxGone as error:
            return self._blame_memory(weighed, error)
        verdict = decide_reward_file(reward, pristine=weighed.pristine)
        return _with_facts(verdict, weighed, result)

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

    def _weigh(
        self,
        change: Change,
        kinds: Mapping[str, FileKind],
        old: Mapping[str, FileChange],
        injected: Sequence[str],
    ) -> _Weighed:
        real = Change(tuple(file for file in change.files if _is_real(file, old.get(file.path))))
        protection = Protection(self._task.verifier, injected, kinds)
        travels, dropped = split_change(real, protection, lambda path: old[path].content if path in old else None)
        return _Weighed(travels, dropped, travels.empty, len(real.files), render_patch(real, old.get))

    async def _put(
        self, weighed: _Weighed, tests: Mapping[str, tuple[bytes, bool]], kinds: Mapping[str, FileKind]
    ) -> None:
        """The change and the tests in one go; whatever stands in the way of a test is removed."""
        merged = {file.path: file for file in (*weighed.travels.files, *clear_way(tests, kinds).files)}
        for path, (content, executable) in tests.items():
            merged[path] = FileChange(path, ChangeKind.WRITE, content, executable)
        plan = plan_change(Change(tuple(merged.values())), kinds)
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

    def _report_path(self) -> str:
        return f"/tmp/{self._rng.getrandbits(64):016x}/{self._rng.getrandbits(64):016x}.xml"

    def _command(self, report: str, files: Sequence[str]) -> str:
        command = self._task.verifier.command.replace("{files}", " ".join(map(quote, files)))
        return command.replace("{report}", quote(report))

    async def _run(self, command: str, env: Mapping[str, str]) -> ExecResult:
        result = await self._sandbox.exec(
            (*SHELL, command),
            cwd=self._task.workspace,
            env=env,
            timeout_s=self._limit_s,
            output_limit=OUTPUT_BYTES,
            merge_stderr=True,
        )
        await self._sandbox.kill_all()
        return result

    async def _read_evidence(self, result: ExecResult, report: str, files: Sequence[str]) -> Evidence:
        if result.timed_out:
            return Evidence(fault=self._timed_out())
        try:
            content = await self._sandbox.read_file(report, limit=MAX_REPORT_BYTES + 1)
            return Evidence(await asyncio.to_thread(parse_junit, content, files))
        except PathError:
            return Evidence(fault=f"the test command wrote no report (exit code {result.exit_code})")
        except ReportError as error:
            return Evidence(fault=str(error))

    async def _read_reward(self, result: ExecResult) -> float | ReportError:
        if result.timed_out:
            return ReportError(self._timed_out())
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

    def _refuse(self, weighed: _Weighed, error: Exception) -> Verdict:
        if weighed.pristine:
            raise VerifierError(f"the tests cannot be put into the workspace: {error}") from error
        return _with_facts(refusal(f"the change does not apply: {error}"), weighed, None)

    def _blame_memory(self, weighed: _Weighed, error: SandboxGone) -> Verdict:
        if weighed.pristine or not error.out_of_memory:
            raise error
        return _with_facts(refusal("the tests ran out of memory"), weighed, None)


def _is_real(file: FileChange, old: FileChange | None) -> bool:
    """Whether a path differs from the pristine one in what travels."""
    if file.kind is ChangeKind.DELETE:
        return old is not None
    return old is None or (old.kind, old.content, old.executable) != (file.kind, file.content, file.executable)


def _with_facts(verdict: Verdict, weighed: _Weighed, result: ExecResult | None) -> Verdict:
    facts = {"changed_files": float(weighed.files), "protected_paths_touched": float(len(weighed.dropped))}
    output = b"" if result is None else result.stdout.tail or result.stdout.head
    return replace(
        verdict,
        components={**verdict.components, **facts},
        protected_paths=weighed.dropped,
        patch=weighed.patch,
        output=output.decode(errors="replace"),
        command_s=0.0 if result is None else result.duration_s,
    )
