"""Harbor's tasks of several steps: each has a directory below ``steps/``, and what it does not say is the task's."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from farm.core.task import Artifact, Collect, GradingMode, ReportFormat, Step, Verifier
from farm.tasks.bundle import BundleFile, StepFiles, TaskBundle
from farm.tasks.errors import TaskError
from farm.tasks.files import MANIFEST, below, read_instruction
from farm.tasks.schema.harbor_environment import healthcheck_of
from farm.tasks.schema.manifest import Manifest, StepTable, services

_REWARD = "reward"


def in_steps(path: Path, manifest: Manifest, files: Mapping[str, BundleFile], bundle: TaskBundle) -> TaskBundle:
    """``bundle`` is made of all that is not below ``steps/``. Raises TaskError for what no episode could run."""
    _refuse_what_is_not_of_steps(path, manifest, bundle)
    of_all = below(files, "tests/")
    steps: list[Step] = []
    parts: list[StepFiles] = []
    for number, table in enumerate(manifest.steps):
        key, home = f"steps.{number}", f"steps/{table.name}"
        if any(table.name == step.name for step in steps):
            raise TaskError(path / MANIFEST, f"there are two of {table.name}", "rename one", key=f"{key}.name")
        _refuse_step(path, key, manifest, table)
        least = _least(path, key, table)
        parts.append(
            StepFiles(
                workdir=below(files, f"{home}/workdir/"),
                tests={**of_all, **below(files, f"{home}/tests/")},
                solution=below(files, f"{home}/solution/"),
            )
        )
        separate = bundle.task.verifier.separate
        if "test.sh" not in parts[-1].tests and not (separate and separate.brings_tests):
            raise TaskError(path / home / "tests/test.sh", "missing", "add it, or tests/test.sh for all steps")
        steps.append(
            Step(
                name=table.name,
                instruction=read_instruction(path, files, f"{home}/instruction.md"),
                verifier=_verifier(bundle.task.verifier, table),
                agent_timeout_s=table.agent.timeout_sec or bundle.task.agent_timeout_s,
                min_reward=least,
                healthcheck=healthcheck_of(table.healthcheck),
            )
        )
    task = replace(
        bundle.task,
        instruction=steps[0].instruction,
        verifier=steps[0].verifier,
        agent_timeout_s=steps[0].agent_timeout_s,
        steps=tuple(steps),
        step_reward=manifest.multi_step_reward_strategy,
    )
    return replace(bundle, task=task, tests=parts[0].tests, solution=parts[0].solution, steps=tuple(parts))


def _verifier(of_task: Verifier, table: StepTable) -> Verifier:
    separate = of_task.separate
    if separate is not None:
        separate = replace(
            separate,
            artifacts=separate.artifacts + tuple(Artifact(item.source, item.exclude) for item in table.artifacts),
            collect=separate.collect
            + tuple(Collect(item.command, item.timeout_sec) for item in table.verifier.collect),
        )
    return replace(
        of_task,
        timeout_s=table.verifier.timeout_sec or of_task.timeout_s,
        env=tuple(sorted(table.verifier.env.items())) or of_task.env,
        separate=separate,
    )


def _least(path: Path, key: str, table: StepTable) -> float | None:
    if not isinstance(table.min_reward, dict):
        return table.min_reward
    if set(table.min_reward) != {_REWARD}:
        raise TaskError(
            path / MANIFEST, "a step has one reward", f"name {_REWARD} there and nothing else", key=f"{key}.min_reward"
        )
    return table.min_reward[_REWARD]


def _refuse_what_is_not_of_steps(path: Path, manifest: Manifest, bundle: TaskBundle) -> None:
    farm = manifest.metadata.farm
    for wrong, key, what, remedy in (
        (farm.retrieval is not None, "retrieval", "an answer ends the work", "make one task of each step"),
        (
            bundle.task.verifier.report is not ReportFormat.REWARD_FILE or bool(farm.test_command),
            "report",
            "a step is judged by its test.sh",
            "remove what names tests or a command, or make one task of each step",
        ),
        (
            farm.grading is GradingMode.SHARED,
            "grading",
            "tests that run where the policy goes on to work could be seen there",
            "choose patch, snapshot or separate",
        ),
    ):
        if wrong:
            raise TaskError(path / MANIFEST, what, remedy, key=f"metadata.farm.{key}")


def _refuse_step(path: Path, key: str, manifest: Manifest, table: StepTable) -> None:
    """What is one for the whole sandbox cannot change with a step."""
    for wrong, name in (
        (table.agent.user not in (None, manifest.agent.user), "agent.user"),
        (table.verifier.user not in (None, manifest.verifier.user), "verifier.user"),
        (table.agent.network_mode is not None or bool(table.agent.allowed_hosts), "agent.network_mode"),
        (table.verifier.network_mode in ("public", "allowlist"), "verifier.network_mode"),
        (table.verifier.environment is not None, "verifier.environment"),
        (
            table.verifier.environment_mode not in (None, "separate" if manifest.separate else "shared"),
            "verifier.environment_mode",
        ),
        (not services(table.artifacts, table.verifier.collect) <= {None, "main"}, "artifacts"),
    ):
        if wrong:
            raise TaskError(
                path / MANIFEST, "differs from the task's", "say it once, for the whole task", key=f"{key}.{name}"
            )
