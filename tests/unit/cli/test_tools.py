"""``farm tools``: which packs there are, and their schemas as engines take them."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from farm.cli.main import command_line


def said(*arguments: str) -> str:
    done = CliRunner().invoke(command_line(["tools"]), ["tools", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_packs_are_listed_with_their_tools() -> None:
    packs = {pack["pack"]: pack["tools"] for pack in json.loads(said("list", "--json"))}
    assert list(packs) == ["default", "claude-code", "codex", "cursor", "swe-agent"]
    assert packs["codex"] == ["shell", "apply_patch", "update_plan"]
    assert "shell, apply_patch, update_plan" in said("list")


def test_pack_is_shown_with_its_arguments() -> None:
    assert "command [workdir] [timeout_ms]" in said("show", "codex")


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ("openai", lambda tool: tool["function"]["parameters"]),
        ("anthropic", lambda tool: tool["input_schema"]),
        ("json-schema", lambda tool: tool),
    ],
)
def test_schemas_are_written_in_requested_format(form: str, where: Any) -> None:
    tools = json.loads(said("show", "codex,-update_plan", "--format", form, "--json"))
    assert [list(where(tool)["properties"]) for tool in tools] == [
        ["command", "workdir", "timeout_ms", "sandbox_permissions", "with_escalated_permissions", "justification"],
        ["input"],
    ]
    assert said("show", "codex,-update_plan", "--format", form, "--json") == json.dumps(tools, indent=2) + "\n"


def test_unknown_pack_error_suggests_similar_pack() -> None:
    done = CliRunner().invoke(command_line(["tools"]), ["tools", "show", "codx"])
    assert done.exit_code == 2
    assert "(did you mean codex?)" in " ".join(done.output.replace("│", " ").split())
