"""What the tests say of a repository as released, and of many changed copies of it, in sandboxes of the farm's own."""

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
from farm.task_generation.release_pair_directory import WORKSPACE
from farm.task_generation.test_outcomes import run_tests
from farm.tasks.errors import TaskError
from sandboxes.errors import LossCause, PathError, SandboxGone
from sandboxes.interface import Runtime, Sandbox
from sandboxes.spec import SandboxLimits, SandboxSpec

SURVEY_TIMEOUT_S = 300
SURVEYS = 2
"""Runs by the graders' own command, beside the one that is measured."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_SPARE_S = 60
_CLOCK = 4
"""As ``sandbox_runner`` has it: a trial may take so much longer by the clock."""
_SUITE = Verifier(
    GradingMode.PATCH, FRAMEWORKS[ReportFormat.PYTEST].command, ReportFormat.PYTEST, (), (), (), SURVEY_TIMEOUT_S
)
_PLACE = "/tmp/farm-making"


class _Answer(BaseModel):
    """From a sandbox, so not to be trusted in form."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FailedTest(_Answer):
    """How a test failed. ``line`` is in the test's file, 0 where it never was there; ``compared``: operator, left and
    right of the failed comparison; ``names``: literal values at that line; ``deeper``: raised below the test."""

    test: str
    line: int
    error: str
    message: str
    deeper: bool
    compared: list[str] | None
    names: dict[str, str]


class TrialResult(_Answer):
    """``status``: ``ran``, ``import`` (nothing could be collected), ``crash`` or ``timeout``."""

    key: str
    status: str
    passed: int = 0
    failed: list[str] = []
    failures: list[FailedTest] = []


class _Survey(_Answer):
    outcomes: dict[str, str]
    durations: dict[str, float]
    lines: dict[str, dict[int, list[int]]]
    modules: list[str]
    took_s: float


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """A repository as released. ``passing`` tests do so every time; ``lines``: file → line → those of them that execute
    it, sorted; ``seconds`` of each, and ``took_s`` the whole suite; ``modules`` to import ahead."""

    passing: tuple[str, ...]
    flaky: tuple[str, ...]
    lines: Mapping[str, Mapping[int, tuple[str, ...]]]
    seconds: Mapping[str, float]
    modules: tuple[str, ...]
    took_s: float

    def tests_of(self, path: str, first: int, last: int) -> tuple[str, ...]:
        """Tests that execute any of the lines, sorted."""
        lines = self.lines.get(path, {})
        return tuple(sorted({test for line in range(first, last + 1) for test in lines.get(line, ())}))


@dataclass(frozen=True, slots=True)
class Trial:
    """``files`` are put in place of the released ones, then ``tests`` run; stopped at ``most`` failures."""

    key: str
    files: Mapping[str, bytes]
    tests: tuple[str, ...]
    most: int


def spec_of(image: str) -> SandboxSpec:
    return SandboxSpec(
        image=image, workdir=WORKSPACE, limits=SandboxLimits(memory_mib=1024), labels={"purpose": "making"}
    )


async def run_baseline(repository: Repository, image: str, runtime: Runtime) -> BaselineRun:
    """Raises TaskError where no test passes."""
    seen = []
    for _ in range(SURVEYS):
        async with runtime.scope(spec_of(image)) as sandbox:
            seen.append(await run_tests(sandbox, _SUITE, repository.modules, WORKSPACE, repository.name))
    job = {"mode": "survey", "files": repository.modules, "roots": repository.roots}
    async with runtime.scope(spec_of(image)) as sandbox:
        lines, what = await _ask(sandbox, job, SURVEY_TIMEOUT_S)
    try:
        found = _Survey.model_validate_json(lines[0])
    except (IndexError, ValidationError):
        raise TaskError(repository.name, f"its tests cannot be measured ({what})", "leave it out") from None
    every = sorted({test for outcomes in seen for test in outcomes} | found.outcomes.keys())
    passing, flaky = [], []
    for test in every:
        passed = [outcomes.get(test) is CaseOutcome.PASSED for outcomes in seen]
        passed.append(found.outcomes.get(test) == "passed")
        if all(passed):
            passing.append(test)
        elif any(passed):
            flaky.append(test)
    if not passing:
        raise TaskError(repository.name, "none of its tests passes as released", "name what they need with --require")
    return BaselineRun(
        tuple(passing),
        tuple(flaky),
        _by_test(found, frozenset(passing)),
        found.durations,
        tuple(found.modules),
        found.took_s,
    )


def _by_test(found: _Survey, passing: frozenset[str]) -> Mapping[str, Mapping[int, tuple[str, ...]]]:
    names = list(found.outcomes)
    return {
        path: {
            line: tuple(sorted(names[at] for at in tests if 0 <= at < len(names) and names[at] in passing))
            for line, tests in lines.items()
        }
        for path, lines in found.lines.items()
    }


async def run_trials(trials: Sequence[Trial], survey: BaselineRun, image: str, runtime: Runtime) -> list[TrialResult]:
    """One after the other in one fresh sandbox. One that took the sandbox or the program with it is a ``crash``; those
    behind it are held in another.
    """
    if not trials:
        return []
    answers: dict[str, TrialResult] = {}
    for line in await _try(trials, survey, image, runtime):
        try:
            answer = TrialResult.model_validate_json(line)
        except ValidationError:
            continue
        answers.setdefault(answer.key, answer)
    at = next((index for index, trial in enumerate(trials) if trial.key not in answers), len(trials))
    found = [answers[trial.key] for trial in trials[:at]]
    if at == len(trials):
        return found
    if found or len(trials) == 1:
        found.append(TrialResult(key=trials[at].key, status="crash"))
        return found + await run_trials(trials[at + 1 :], survey, image, runtime)
    # Nothing came back, not even what was done before the sandbox went.
    half = len(trials) // 2
    first = await run_trials(trials[:half], survey, image, runtime)
    return first + await run_trials(trials[half:], survey, image, runtime)


async def _try(trials: Sequence[Trial], survey: BaselineRun, image: str, runtime: Runtime) -> list[bytes]:
    rows = [
        {
            "key": trial.key,
            "files": {path: content.decode("utf-8", "surrogateescape") for path, content in trial.files.items()},
            "tests": trial.tests,
            "timeout_s": _timeout_s(trial, survey),
            "most": trial.most,
        }
        for trial in trials
    ]
    job = {"mode": "trials", "preload": survey.modules, "trials": rows}
    async with runtime.scope(spec_of(image)) as sandbox:
        try:
            lines, _ = await _ask(
                sandbox, job, _SPARE_S + sum(_CLOCK * (_timeout_s(trial, survey) + 10) for trial in trials)
            )
        except SandboxGone as error:
            if error.by is LossCause.OUTSIDE:
                raise
            return []
    return lines


def _timeout_s(trial: Trial, survey: BaselineRun) -> float:
    return 4.0 + 4 * sum(survey.seconds.get(test, 0.0) for test in trial.tests)


async def _ask(sandbox: Sandbox, job: Mapping[str, Any], timeout_s: float) -> tuple[list[bytes], str]:
    """The lines that came, and how it ended."""
    program = files("farm.task_generation.mutation").joinpath("sandbox_runner.py").read_bytes()
    await sandbox.write_file(f"{_PLACE}/inside.py", program, parents=True)
    await sandbox.write_file(f"{_PLACE}/job.json", json.dumps(job, ensure_ascii=True).encode())
    command = f"exec python3 {_PLACE}/inside.py {_PLACE}/job.json {_PLACE}/result.jsonl"
    environment = {**TEST_ENV, "PYTHONPATH": TOOLS}
    result = await sandbox.exec((*SHELL, command), env=environment, timeout_s=timeout_s, merge_stderr=True)
    said = (result.stdout.tail or result.stdout.head).decode(errors="replace").strip().splitlines()
    what = (
        "timed out" if result.timed_out else f"exit code {result.exit_code}; {said[-1][:200] if said else 'no output'}"
    )
    try:
        content = await sandbox.read_file(f"{_PLACE}/result.jsonl", limit=MAX_ANSWER_BYTES)
    except PathError:
        return [], what
    return content.splitlines(), what
