"""Harbor's tasks of several steps, each with a directory below ``steps/``. Missing values are those of the task."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from farm.core.task import Artifact, Collect, GradingMode, ReportFormat, Step, Verifier
from farm.tasks.bundle import BundleFile, StepFiles, TaskBundle
from farm.tasks.errors import TaskError
from farm.tasks.files import MANIFEST, below, read_instruction
from farm.tasks.schema.harbor_environment import healthcheck_of
from farm.tasks.schema.manifest import Manifest, StepTable, services_of

_REWARD = "reward"


def in_steps(path: Path, manifest: Manifest, files: Mapping[str, BundleFile], bundle: TaskBundle) -> TaskBundle:
    """Return the bundle with its steps. ``bundle`` was made of all files outside ``steps/``.

    Raises TaskError for what no episode could run.
    """
    _refuse_single_step_keys(path, manifest, bundle)
    shared_tests = below(files, "tests/")
    steps: list[Step] = []
    files_of_steps: list[StepFiles] = []
    for number, table in enumerate(manifest.steps):
        key, directory = f"steps.{number}", f"steps/{table.name}"
        if any(table.name == step.name for step in steps):
            raise TaskError(path / MANIFEST, f"two steps are named {table.name}", "rename one", key=f"{key}.name")
        _refuse_step(path, key, manifest, table)
        min_reward = _min_reward(path, key, table)
        files_of_steps.append(
            StepFiles(
                workdir=below(files, f"{directory}/workdir/"),
                tests={**shared_tests, **below(files, f"{directory}/tests/")},
                solution=below(files, f"{directory}/solution/"),
            )
        )
        separate = bundle.task.verifier.separate
        if "test.sh" not in files_of_steps[-1].tests and not (separate and separate.brings_tests):
            raise TaskError(path / directory / "tests/test.sh", "missing", "add it, or tests/test.sh for all steps")
        steps.append(
            Step(
                name=table.name,
                instruction=read_instruction(path, files, f"{directory}/instruction.md"),
                verifier=_step_verifier(bundle.task.verifier, table),
                agent_timeout_s=table.agent.timeout_sec or bundle.task.agent_timeout_s,
                min_reward=min_reward,
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
    return replace(
        bundle,
        task=task,
        tests=files_of_steps[0].tests,
        solution=files_of_steps[0].solution,
        steps=tuple(files_of_steps),
    )


def _step_verifier(of_task: Verifier, table: StepTable) -> Verifier:
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


def _min_reward(path: Path, key: str, table: StepTable) -> float | None:
    if not isinstance(table.min_reward, dict):
        return table.min_reward
    if set(table.min_reward) != {_REWARD}:
        raise TaskError(
            path / MANIFEST, "a step has one reward", f"name {_REWARD} there and nothing else", key=f"{key}.min_reward"
        )
    return table.min_reward[_REWARD]


def _refuse_single_step_keys(path: Path, manifest: Manifest, bundle: TaskBundle) -> None:
    farm = manifest.metadata.farm
    for wrong, key, fault, remedy in (
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
            "the policy could read the tests in the later steps",
            "choose patch, snapshot or separate",
        ),
    ):
        if wrong:
            raise TaskError(path / MANIFEST, fault, remedy, key=f"metadata.farm.{key}")


def _refuse_step(path: Path, key: str, manifest: Manifest, table: StepTable) -> None:
    """Refuse a step that changes what holds for the whole sandbox."""
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
        (not services_of(table.artifacts, table.verifier.collect) <= {None, "main"}, "artifacts"),
    ):
        if wrong:
            raise TaskError(
                path / MANIFEST, "differs from the task's", "set it once, for the whole task", key=f"{key}.{name}"
            )
