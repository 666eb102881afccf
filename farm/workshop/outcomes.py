"""What each test does on a given state of the code, in a fresh sandbox."""

from collections.abc import Mapping, Sequence
from shlex import quote

from farm.core.change import Change, ChangeKind, FileChange
from farm.grading import ReportError, apply_change
from farm.grading.junit import MAX_REPORT_BYTES, Outcome, parse_junit
from farm.grading.verify import PYTEST_ENV, SHELL
from farm.tasks.bundle import TaskBundle
from farm.tasks.errors import TaskError
from farm.tasks.images import sandbox_spec
from sandboxes.errors import PathError
from sandboxes.sandbox import ExecResult, Runtime, Sandbox

Outcomes = Mapping[str, Outcome]

_REPORT = "/tmp/farm-report/report.xml"


async def observe(bundle: TaskBundle, change: Change, files: Sequence[str], runtime: Runtime) -> Outcomes:
    """The outcome of every test of ``files`` with the task's tests in place and ``change`` applied.

    Raises TaskError where the test command gives no report, and the errors of ``sandboxes``.
    """
    merged = {file.path: file for file in change.files}
    for path, file in bundle.tests.items():
        merged[path] = FileChange(path, ChangeKind.WRITE, file.content, file.executable)
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "making"})) as sandbox:
        await apply_change(sandbox, bundle.task.workspace, Change(tuple(merged[path] for path in sorted(merged))))
        return await _run(sandbox, bundle, files)


async def frozen_requirements(bundle: TaskBundle, runtime: Runtime) -> tuple[str, ...]:
    """Every package that the image's build installed, pinned; the repository itself is not among them."""
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "making"})) as sandbox:
        result = await sandbox.exec(("python3", "-m", "pip", "freeze", "--exclude-editable"), timeout_s=60)
    if result.exit_code != 0:
        raise TaskError(bundle.task.id, f"pip freeze failed in its image ({_last(result)})", "look at its Dockerfile")
    return tuple(line for line in result.stdout.head.decode().splitlines() if "==" in line)


async def _run(sandbox: Sandbox, bundle: TaskBundle, files: Sequence[str]) -> Outcomes:
    verifier = bundle.task.verifier
    command = verifier.command.replace("{files}", " ".join(map(quote, files))).replace("{report}", quote(_REPORT))
    await sandbox.write_file(f"{_REPORT}.log", b"", parents=True)
    result = await sandbox.exec((*SHELL, command), env=PYTEST_ENV, timeout_s=verifier.timeout_s, merge_stderr=True)
    try:
        return parse_junit(await sandbox.read_file(_REPORT, limit=MAX_REPORT_BYTES + 1), files)
    except (PathError, ReportError) as error:
        how = "timed out" if result.timed_out else f"exit code {result.exit_code}"
        raise TaskError(
            bundle.task.id,
            f"the tests give no report ({error}; {how}; {_last(result)})",
            "name what they need with --require, or choose another release",
        ) from None


def _last(result: ExecResult) -> str:
    lines = (result.stdout.tail or result.stdout.head).decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "no output")
