"""Run the tests of a repository in sandboxes: as released, and for each of many changed copies."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from farm.core.task import GradingMode, ReportFormat, Verifier
from farm.core.test_frameworks import FRAMEWORKS
from farm.grading.reports.outcome import CaseOutcome
from farm.grading.verifier_run import SHELL, TEST_ENV
from farm.task_generation.mutation.directory import TOOLS
from farm.task_generation.mutation.repository import Repository
from farm.task_generation.task_directory import WORKSPACE
from farm.task_generation.test_outcomes import run_tests
from farm.tasks.errors import TaskError
from sandboxes.errors import LossCause, PathError, SandboxGone
from sandboxes.interface import Runtime, Sandbox
from sandboxes.spec import SandboxLimits, SandboxSpec

BASELINE_TIMEOUT_S = 300
BASELINE_RUNS = 2
"""Runs by the graders' own command, beside the one with coverage."""
MAX_RESULT_BYTES = 64 * 1024 * 1024
_START_S = 60
_WALL_FACTOR = 4
"""The factor from processor time to wall time, as in ``sandbox_runner``."""
_SUITE = Verifier(
    GradingMode.PATCH, FRAMEWORKS[ReportFormat.PYTEST].command, ReportFormat.PYTEST, (), (), (), BASELINE_TIMEOUT_S
)
_DIRECTORY = "/tmp/farm-making"


class _SandboxResult(BaseModel):
    """A result from a sandbox. Its form is untrusted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FailedTest(_SandboxResult):
    """How a test failed.

    ``line`` is in the test's file, 0 if no frame was there. ``compared``: operator, left and right of the failed
    comparison. ``names``: local variables with a literal value at that line. ``deeper``: raised in code that the test
    called.
    """

    test: str
    line: int
    error: str
    message: str
    deeper: bool
    compared: list[str] | None
    names: dict[str, str]


class TrialResult(_SandboxResult):
    """The result of a trial. ``status``: ``ran``, ``import`` (nothing could be collected), ``crash`` or ``timeout``."""

    key: str
    status: str
    passed: int = 0
    failed: list[str] = []
    failures: list[FailedTest] = []


class _BaselineResult(_SandboxResult):
    outcomes: dict[str, str]
    durations: dict[str, float]
    lines: dict[str, dict[int, list[int]]]
    modules: list[str]
    took_s: float


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """The tests of a repository as released.

    ``passing``: tests that passed in every run. ``lines``: file → line → tests in ``passing`` that execute it, sorted.
    ``seconds`` of each test, and ``took_s`` of the whole suite. ``modules``: imported before the trials.
    """

    passing: tuple[str, ...]
    flaky: tuple[str, ...]
    lines: Mapping[str, Mapping[int, tuple[str, ...]]]
    seconds: Mapping[str, float]
    modules: tuple[str, ...]
    took_s: float

    def tests_of(self, path: str, first: int, last: int) -> tuple[str, ...]:
        """Return the tests that execute any of the lines, sorted."""
        lines = self.lines.get(path, {})
        return tuple(sorted({test for line in range(first, last + 1) for test in lines.get(line, ())}))


@dataclass(frozen=True, slots=True)
class Trial:
    """A run of ``tests`` with ``files`` in place of the released ones. It stops at ``max_failures`` failures."""

    key: str
    files: Mapping[str, bytes]
    tests: tuple[str, ...]
    max_failures: int


def _spec(image: str) -> SandboxSpec:
    return SandboxSpec(
        image=image, workdir=WORKSPACE, limits=SandboxLimits(memory_mib=1024), labels={"purpose": "making"}
    )


async def run_baseline(repository: Repository, image: str, runtime: Runtime) -> BaselineRun:
    """Run all tests on the released code, several times and once with coverage. Raises TaskError if none passes."""
    outcomes_of_runs = []
    for _ in range(BASELINE_RUNS):
        async with runtime.scope(_spec(image)) as sandbox:
            outcomes_of_runs.append(await run_tests(sandbox, _SUITE, repository.modules, WORKSPACE, repository.name))
    job = {"mode": "survey", "files": repository.modules, "roots": repository.roots}
    async with runtime.scope(_spec(image)) as sandbox:
        lines, ending = await _run_job(sandbox, job, BASELINE_TIMEOUT_S)
    try:
        result = _BaselineResult.model_validate_json(lines[0])
    except (IndexError, ValidationError):
        raise TaskError(
            repository.name, f"coverage of its tests cannot be measured ({ending})", "leave it out"
        ) from None
    all_tests = sorted({test for outcomes in outcomes_of_runs for test in outcomes} | result.outcomes.keys())
    passing, flaky = [], []
    for test in all_tests:
        passed = [outcomes.get(test) is CaseOutcome.PASSED for outcomes in outcomes_of_runs]
        passed.append(result.outcomes.get(test) == "passed")
        if all(passed):
            passing.append(test)
        elif any(passed):
            flaky.append(test)
    if not passing:
        raise TaskError(repository.name, "none of its tests passes as released", "name what they need with --require")
    return BaselineRun(
        tuple(passing),
        tuple(flaky),
        _by_test(result, frozenset(passing)),
        result.durations,
        tuple(result.modules),
        result.took_s,
    )


def _by_test(result: _BaselineResult, passing: frozenset[str]) -> Mapping[str, Mapping[int, tuple[str, ...]]]:
    names = list(result.outcomes)
    return {
        path: {
            line: tuple(sorted(names[at] for at in tests if 0 <= at < len(names) and names[at] in passing))
            for line, tests in lines.items()
        }
        for path, lines in result.lines.items()
    }


async def run_trials(trials: Sequence[Trial], baseline: BaselineRun, image: str, runtime: Runtime) -> list[TrialResult]:
    """Run trials one after the other in a fresh sandbox, and return their results in order.

    A trial that ends the sandbox or the program is a ``crash``; the trials after it run in another sandbox.
    """
    if not trials:
        return []
    results: dict[str, TrialResult] = {}
    for line in await _run_batch(trials, baseline, image, runtime):
        try:
            result = TrialResult.model_validate_json(line)
        except ValidationError:
            continue
        results.setdefault(result.key, result)
    next_index = next((index for index, trial in enumerate(trials) if trial.key not in results), len(trials))
    done = [results[trial.key] for trial in trials[:next_index]]
    if next_index == len(trials):
        return done
    if done or len(trials) == 1:
        done.append(TrialResult(key=trials[next_index].key, status="crash"))
        return done + await run_trials(trials[next_index + 1 :], baseline, image, runtime)
    # There is no result at all, not even of trials before the sandbox was lost.
    half = len(trials) // 2
    first = await run_trials(trials[:half], baseline, image, runtime)
    return first + await run_trials(trials[half:], baseline, image, runtime)


async def _run_batch(trials: Sequence[Trial], baseline: BaselineRun, image: str, runtime: Runtime) -> list[bytes]:
    rows = [
        {
            "key": trial.key,
            "files": {path: content.decode("utf-8", "surrogateescape") for path, content in trial.files.items()},
            "tests": trial.tests,
            "timeout_s": _timeout_s(trial, baseline),
            "max_failures": trial.max_failures,
        }
        for trial in trials
    ]
    job = {"mode": "trials", "preload": baseline.modules, "trials": rows}
    async with runtime.scope(_spec(image)) as sandbox:
        try:
            lines, _ = await _run_job(
                sandbox, job, _START_S + sum(_WALL_FACTOR * (_timeout_s(trial, baseline) + 10) for trial in trials)
            )
        except SandboxGone as error:
            if error.by is LossCause.OUTSIDE:
                raise
            return []
    return lines


def _timeout_s(trial: Trial, baseline: BaselineRun) -> float:
    return 4.0 + 4 * sum(baseline.seconds.get(test, 0.0) for test in trial.tests)


async def _run_job(sandbox: Sandbox, job: Mapping[str, Any], timeout_s: float) -> tuple[list[bytes], str]:
    """Run ``sandbox_runner.py`` and return its output lines, and how it ended."""
    program = files("farm.task_generation.mutation").joinpath("sandbox_runner.py").read_bytes()
    await sandbox.write_file(f"{_DIRECTORY}/inside.py", program, parents=True)
    await sandbox.write_file(f"{_DIRECTORY}/job.json", json.dumps(job, ensure_ascii=True).encode())
    command = f"exec python3 {_DIRECTORY}/inside.py {_DIRECTORY}/job.json {_DIRECTORY}/result.jsonl"
    environment = {**TEST_ENV, "PYTHONPATH": TOOLS}
    result = await sandbox.exec((*SHELL, command), env=environment, timeout_s=timeout_s, merge_stderr=True)
    output = (result.stdout.tail or result.stdout.head).decode(errors="replace").strip().splitlines()
    ending = (
        "timed out"
        if result.timed_out
        else f"exit code {result.exit_code}; {output[-1][:200] if output else 'no output'}"
    )
    try:
        content = await sandbox.read_file(f"{_DIRECTORY}/result.jsonl", limit=MAX_RESULT_BYTES)
    except PathError:
        return [], ending
    return content.splitlines(), ending
