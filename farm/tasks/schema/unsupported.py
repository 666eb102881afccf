"""What a task of Harbor's asks for and does not get, wherever in it that stands."""

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
"""Older spellings, and what only says where a task is from."""
_ABOUT = (Metadata, TaskTable)
"""Tables in which anybody may say anything about a task."""
_OF_STEPS = frozenset({"instruction.md", "workdir", "tests", "solution"})
_NETWORK = (
    "policies reach the hosts that [metadata.farm] network names, and tests reach nothing; "
    "install what these need in environment/Dockerfile"
)
_GATHERED = (
    "what is gathered goes to a verifier of its own, and this one works where the policy did; let tests/test.sh do "
    'it, or set verifier.environment_mode to "separate"'
)


def unsupported_features(directory: Path) -> tuple[str, ...]:
    """What Harbor would make of the task there and the farm does not, each in one line with its place and the remedy.

    Raises TaskError.
    """
    path = directory / MANIFEST
    try:
        content = read_bounded(path, MAX_TEXT_BYTES, "shorten it")
        manifest = parse_manifest(path, content)
        unknown = _unknown(Manifest, read_toml(content), "")
        places = [
            *_networks(manifest),
            *_without_effect(manifest),
            *((key, "the farm knows no such key; remove it") for key in unknown),
            *_files(directory, manifest),
        ]
    except OSError as error:
        raise TaskError(path, f"cannot be read ({error.strerror})", "make it readable") from None
    return tuple(f"{ascii(place)[1:-1]} is not heeded: {why}" for place, why in places)


def _networks(manifest: Manifest) -> Iterator[tuple[str, str]]:
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


def _without_effect(manifest: Manifest) -> Iterator[tuple[str, str]]:
    own = manifest.verifier.environment
    for name, why in (
        ("healthcheck", "a verifier's own sandbox is not waited for; let tests/test.sh wait there"),
        ("build_timeout_sec", "all images of a task have environment.build_timeout_sec; say it there"),
    ):
        if own is not None and name in own.model_fields_set:
            yield f"verifier.environment.{name}", why
    for place, table in (("environment", manifest.environment), ("verifier.environment", own)):
        if table is not None and table.storage_mb < MIN_STORAGE_MIB and not manifest.own:
            yield f"{place}.storage_mb", f"sandboxes get the {MIN_STORAGE_MIB} MiB that grading needs"
    if not manifest.separate:
        tables = [("", manifest.artifacts, manifest.verifier.collect)]
        tables += [(f"steps.{step.name}.", step.artifacts, step.verifier.collect) for step in manifest.steps]
        for place, artifacts, collect in tables:
            if artifacts:
                yield f"{place}artifacts", _GATHERED
            if collect:
                yield f"{place}verifier.collect", _GATHERED
    if not manifest.steps and "multi_step_reward_strategy" in manifest.model_fields_set:
        yield "multi_step_reward_strategy", "there are no [[steps]]; remove it"


def _unknown(model: type[BaseModel], table: Mapping[str, Any], place: str) -> Iterator[str]:
    for key, value in table.items():
        field = model.model_fields.get(key)
        if field is None:
            if key not in _OTHER_NAMES.get(model, ()):
                yield f"{place}{key}"
            continue
        kinds = (field.annotation, *get_args(field.annotation))
        below = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if below is None or below in _ABOUT:
            continue
        if isinstance(value, dict):
            yield from _unknown(below, value, f"{place}{key}.")
        for number, item in enumerate(value) if isinstance(value, list) else ():
            if isinstance(item, dict):
                yield from _unknown(below, item, f"{place}{key}.{item['name'] if below is StepTable else number}.")


def _files(directory: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Of a task of steps what is the whole task's, and of one without what is a step's."""
    steps = directory / "steps"
    if not manifest.steps:
        if steps.is_dir():
            yield "steps/", "task.toml names no [[steps]]; name them, or remove it"
        return
    for name in ("instruction.md", "solution"):
        if (directory / name).exists():
            yield name, "each step has its own; move it below steps/"
    named = {step.name for step in manifest.steps}
    for step in sorted(steps.iterdir()):
        if step.name not in named:
            yield f"steps/{step.name}", "task.toml names no such step; name it there, or remove it"
            continue
        for file in sorted(step.iterdir()):
            if file.name not in _OF_STEPS:
                yield f"steps/{step.name}/{file.name}", "a step has no such file; say it for the whole task"
