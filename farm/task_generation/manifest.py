"""Render the ``task.toml`` of generated and imported tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomlkit

from farm.task_generation.task_directory import FAIL_TO_PASS, PASS_TO_PASS


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Time-outs of a task in seconds, and what its sandbox is granted."""

    verify_timeout_s: int
    agent_timeout_s: int = 1800
    build_timeout_s: int = 600
    cpus: int = 1
    memory_mib: int = 1024
    storage_mib: int = 2048


def farm_table(
    workspace: str, report: str, *, test_command: str = "", further: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return ``[metadata.farm]`` of a task that is graded by its change and by the ids of ``id_lists``."""
    command = {"test_command": test_command} if test_command else {}
    return {
        "workspace": workspace,
        "grading": "patch",
        "report": report,
        **command,
        "fail_to_pass": f"tests/{FAIL_TO_PASS}",
        "pass_to_pass": f"tests/{PASS_TO_PASS}",
        **(further or {}),
    }


def render_manifest(metadata: Mapping[str, Any], limits: TaskLimits, *, name: str = "") -> str:
    """Return the text of ``task.toml``. Without ``name`` the task is named after its directory."""
    document = tomlkit.document()
    document["version"] = "1.0"
    if name:
        document["task"] = {"name": name}
    document["metadata"] = dict(metadata)
    document["verifier"] = {"timeout_sec": limits.verify_timeout_s}
    document["agent"] = {"timeout_sec": limits.agent_timeout_s}
    document["environment"] = {
        "build_timeout_sec": limits.build_timeout_s,
        "cpus": limits.cpus,
        "memory_mb": limits.memory_mib,
        "storage_mb": limits.storage_mib,
    }
    return tomlkit.dumps(document)
