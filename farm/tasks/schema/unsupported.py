"""List the features of a Harbor task that the farm does not have."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from farm.core.task import MIN_STORAGE_MIB
from farm.core.toml import read_toml
from farm.tasks.errors import TaskError
from farm.tasks.files import MANIFEST, MAX_TEXT_BYTES, read_bounded
from farm.tasks.schema.manifest import EnvironmentTable, Manifest, Metadata, StepTable, TaskTable, parse_manifest

_OTHER_NAMES: Mapping[type[BaseModel], frozenset[str]] = {
    Manifest: frozenset({"version", "source"}),
    EnvironmentTable: frozenset({"memory", "storage"}),
}
"""Older spellings, and keys that only describe the origin of a task."""
_FREE_TABLES = (Metadata, TaskTable)
"""Tables that may have any key."""
_STEP_FILES = frozenset({"instruction.md", "workdir", "tests", "solution"})
_NETWORK = (
    "policies reach the hosts that [metadata.farm] network names, and tests reach nothing; "
    "install what these need in environment/Dockerfile"
)
_COLLECT = (
    "collected files go to a separate verifier, and this verifier shares the policy's sandbox; collect them in "
    'tests/test.sh, or set verifier.environment_mode to "separate"'
)


def unsupported_features(directory: Path) -> tuple[str, ...]:
    """Return one line for each feature that Harbor has and the farm lacks, with its key and the remedy.

    Raises TaskError.
    """
    path = directory / MANIFEST
    try:
        content = read_bounded(path, MAX_TEXT_BYTES, "shorten it")
        manifest = parse_manifest(path, content)
        unknown = _unknown_keys(Manifest, read_toml(content), "")
        findings = [
            *_network_keys(manifest),
            *_keys_without_effect(manifest),
            *((key, "the farm has no such key; remove it") for key in unknown),
            *_files_without_effect(directory, manifest),
        ]
    except OSError as error:
        raise TaskError(path, f"cannot be read ({error.strerror})", "make it readable") from None
    return tuple(f"{ascii(key)[1:-1]} is ignored: {reason}" for key, reason in findings)


def _network_keys(manifest: Manifest) -> Iterator[tuple[str, str]]:
    agent, environment, verifier = manifest.agent, manifest.environment, manifest.verifier
    if manifest.metadata.farm.network is None:
        if agent.network_mode == "public":
            yield "agent.network_mode", _NETWORK
        if environment.network_mode == "public":
            yield "environment.network_mode", _NETWORK
        if environment.network_mode is None and environment.allow_internet:
            yield "environment.allow_internet", _NETWORK
        for key, granting in (("agent", agent), ("environment", environment)):
            if granting.allowed_hosts and granting.network_mode != "allowlist":
                yield f"{key}.allowed_hosts", 'hosts are granted by network_mode = "allowlist" beside them'
    of_steps = ((f"steps.{step.name}.verifier", step.verifier) for step in manifest.steps)
    for key, table in (("verifier", verifier), *of_steps, ("verifier.environment", verifier.environment)):
        if table is not None and table.allowed_hosts:
            yield f"{key}.allowed_hosts", _NETWORK
    own = verifier.environment
    if own is not None and own.network_mode is None and own.allow_internet:
        yield "verifier.environment.allow_internet", _NETWORK


def _keys_without_effect(manifest: Manifest) -> Iterator[tuple[str, str]]:
    own = manifest.verifier.environment
    for name, reason in (
        ("healthcheck", "it is not awaited in a verifier's own sandbox; wait in tests/test.sh"),
        ("build_timeout_sec", "all images of a task have environment.build_timeout_sec; set it there"),
    ):
        if own is not None and name in own.model_fields_set:
            yield f"verifier.environment.{name}", reason
    for prefix, table in (("environment", manifest.environment), ("verifier.environment", own)):
        if table is not None and table.storage_mb < MIN_STORAGE_MIB and not manifest.own:
            yield f"{prefix}.storage_mb", f"sandboxes get the {MIN_STORAGE_MIB} MiB that grading needs"
    if not manifest.separate:
        tables = [("", manifest.artifacts, manifest.verifier.collect)]
        tables += [(f"steps.{step.name}.", step.artifacts, step.verifier.collect) for step in manifest.steps]
        for prefix, artifacts, collect in tables:
            if artifacts:
                yield f"{prefix}artifacts", _COLLECT
            if collect:
                yield f"{prefix}verifier.collect", _COLLECT
    if not manifest.steps and "multi_step_reward_strategy" in manifest.model_fields_set:
        yield "multi_step_reward_strategy", "there are no [[steps]]; remove it"


def _unknown_keys(model: type[BaseModel], table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in table.items():
        field = model.model_fields.get(key)
        if field is None:
            if key not in _OTHER_NAMES.get(model, ()):
                yield f"{prefix}{key}"
            continue
        kinds = (field.annotation, *get_args(field.annotation))
        below = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if below is None or below in _FREE_TABLES:
            continue
        if isinstance(value, dict):
            yield from _unknown_keys(below, value, f"{prefix}{key}.")
        for number, item in enumerate(value) if isinstance(value, list) else ():
            if isinstance(item, dict):
                yield from _unknown_keys(
                    below, item, f"{prefix}{key}.{item['name'] if below is StepTable else number}."
                )


def _files_without_effect(directory: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield files of the whole task in a task of steps, and files of steps in a task without steps."""
    steps = directory / "steps"
    if not manifest.steps:
        if steps.is_dir():
            yield "steps/", "task.toml names no [[steps]]; name them, or remove it"
        return
    for name in ("instruction.md", "solution"):
        if (directory / name).exists():
            yield name, "each step has its own; move it below steps/"
    declared = {step.name for step in manifest.steps}
    for step in sorted(steps.iterdir()):
        if step.name not in declared:
            yield f"steps/{step.name}", "task.toml names no such step; name it there, or remove it"
            continue
        for file in sorted(step.iterdir()):
            if file.name not in _STEP_FILES:
                yield f"steps/{step.name}/{file.name}", "a step has no such file; add it for the whole task"
