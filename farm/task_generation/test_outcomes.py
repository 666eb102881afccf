"""Run the tests of a task on a given state of its code, in a fresh sandbox."""

from collections.abc import Mapping, Sequence

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import Verifier
from farm.grading import ReportError, apply_change
from farm.grading.decoys.canary_file import NO_DECOYS
from farm.grading.decoys.verifier_plan import VerifierPlan
from farm.grading.reports.outcome import MAX_REPORT_BYTES, CaseOutcome
from farm.grading.reports.parsers import read_report
from farm.grading.test_files import tests_of
from farm.grading.verifier_run import SHELL, TEST_ENV
from farm.tasks.bundle import TaskBundle
from farm.tasks.errors import TaskError
from farm.tasks.healthcheck import await_health
from farm.tasks.images import sandbox_spec
from sandboxes.errors import PathError
from sandboxes.interface import Runtime, Sandbox

Outcomes = Mapping[str, CaseOutcome]

_REPORT = "/tmp/farm-report/report.xml"


async def observe(bundle: TaskBundle, change: Change, files: Sequence[str], runtime: Runtime) -> Outcomes:
    """Return the outcome of every test of ``files`` with the task's tests in place and ``change`` applied.

    Raises TaskError if the test command writes no report, and the errors of ``sandboxes``.
    """
    merged = {file.path: file for file in change.files}
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "making"})) as sandbox:
        await await_health(sandbox, bundle.task)
        for path, file in (await tests_of(bundle, sandbox)).items():
            merged[path] = FileChange(path, ChangeKind.WRITE, file.content, file.executable)
        await apply_change(sandbox, bundle.task.workspace, Change(tuple(merged[path] for path in sorted(merged))))
        return await run_tests(sandbox, bundle.task.verifier, files, bundle.task.workspace, bundle.task.id)


async def frozen_requirements(bundle: TaskBundle, runtime: Runtime) -> tuple[str, ...]:
    """Return pins of all packages in the task's image, without the repository itself."""
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "making"})) as sandbox:
        result = await sandbox.exec(("python3", "-m", "pip", "freeze", "--exclude-editable"), timeout_s=60)
    if result.exit_code != 0:
        raise TaskError(
            bundle.task.id,
            f"pip freeze failed in its image ({result.last_line or 'no output'})",
            "correct its Dockerfile",
        )
    return tuple(line for line in result.stdout.head.decode().splitlines() if "==" in line)


async def run_tests(sandbox: Sandbox, verifier: Verifier, files: Sequence[str], workspace: str, name: str) -> Outcomes:
    """Run the test command and return the outcome of each test of ``files``. ``name`` is the subject of a TaskError."""
    plan = VerifierPlan(verifier.report, {}, tuple(files), NO_DECOYS, _REPORT)
    for path, program in plan.programs.items():
        await sandbox.write_file(path, program, parents=True)
    command = plan.command(verifier.command)
    env = {**dict(verifier.env), **TEST_ENV}
    result = await sandbox.exec((*SHELL, command), env=env, timeout_s=verifier.timeout_s, merge_stderr=True)
    try:
        report = await sandbox.read_file(_REPORT, limit=MAX_REPORT_BYTES + 1)
        return read_report(report, verifier.report, files, workspace)
    except (PathError, ReportError) as error:
        exit_state = "timed out" if result.timed_out else f"exit code {result.exit_code}"
        raise TaskError(
            name,
            f"the tests wrote no report ({error}; {exit_state}; {result.last_line or 'no output'})",
            "name what they need with --require, or choose another release",
        ) from None
