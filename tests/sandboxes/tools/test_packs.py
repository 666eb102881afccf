"""Packs: what is chosen of them, and that every schema is one that engines take."""

import json
from typing import Any

import jsonschema
import pytest

from sandboxes.errors import SpecError
from sandboxes.spec import SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.tools import Toolset
from sandboxes.tools.packs import PACKS, choose
from sandboxes.tools.packs.cursor import closest
from sandboxes.tools.schemas import described
from sandboxes.tools.toolset import PreparedCall

KINDS = [(pack.name, kind) for pack in PACKS.values() for kind in pack.makers]


@pytest.mark.parametrize(("pack", "kind"), KINDS, ids=[f"{pack} {kind.name}" for pack, kind in KINDS])
def test_schema_is_valid_and_widely_supported(pack: str, kind: Any) -> None:
    told = described(kind, "openai")
    assert told["type"] == "function"
    assert 0 < len(told["function"]["description"]) < 700
    schema = told["function"]["parameters"]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert described(kind, "anthropic")["input_schema"] == schema
    jsonschema.Draft202012Validator.check_schema(described(kind, "json-schema"))
    check(schema)


def check(schema: dict[str, Any]) -> None:
    """Nothing by reference, nothing of several types, each property described, no other taken."""
    assert not {"anyOf", "$ref", "$defs", "title"} & set(schema), schema
    assert isinstance(schema["type"], str)
    if schema["type"] == "object":
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) <= set(schema["properties"])
        for value in schema["properties"].values():
            assert value["description"]
            check(value)
    if schema["type"] == "array":
        check(schema["items"])


async def test_undo_requires_file_unchanged_since_edit() -> None:
    editor, tools = "str_replace_editor", Toolset.of(["swe-agent"])

    async def call(**arguments: Any) -> str:
        return (await tools.call(sandbox, editor, json.dumps(arguments), timeout_s=5)).content

    async with FakeRuntime({"image": {"/repo/n.py": b"x = 1\n"}}).scope(
        SandboxSpec("image", workdir="/repo")
    ) as sandbox:
        await call(command="str_replace", path="n.py", old_str="1", new_str="2")
        await sandbox.write_file("/repo/n.py", b"x = 2\nchanged = 1\n")
        assert "has been changed since its last edit" in await call(command="undo_edit", path="n.py")
        assert await sandbox.read_file("/repo/n.py") == b"x = 2\nchanged = 1\n"
        await sandbox.write_file("/repo/n.py", b"x = 2\n")
        assert "Edited" in await call(command="undo_edit", path="/repo/n.py")
        assert await sandbox.read_file("/repo/n.py") == b"x = 1\n"


ARGUMENTS = {
    "claude-code": {
        "Bash": "command timeout? description? run_in_background? dangerouslyDisableSandbox?",
        "BashOutput": "bash_id filter?",
        "KillShell": "shell_id",
        "Read": "file_path offset? limit?",
        "Write": "file_path content",
        "Edit": "file_path old_string new_string replace_all?",
        "MultiEdit": "file_path edits",
        "Grep": "pattern path? glob? output_mode? -i? -n? -A? -B? -C? head_limit? type? context? offset? multiline?",
        "Glob": "pattern path?",
        "LS": "path ignore?",
        "TodoWrite": "todos",
    },
    "codex": {
        "shell": "command workdir? timeout_ms? sandbox_permissions? with_escalated_permissions? justification?",
        "apply_patch": "input",
        "update_plan": "plan explanation?",
    },
    "cursor": {
        "codebase_search": "query target_directories? explanation?",
        "read_file": (
            "target_file should_read_entire_file start_line_one_indexed end_line_one_indexed_inclusive explanation?"
        ),
        "run_terminal_cmd": "command is_background? require_user_approval? explanation?",
        "list_dir": "relative_workspace_path explanation?",
        "grep_search": "query case_sensitive? include_pattern? exclude_pattern? explanation?",
        "file_search": "query explanation?",
        "search_replace": "file_path old_string new_string replace_all?",
        "write": "file_path contents",
        "delete_file": "target_file explanation?",
    },
    "swe-agent": {
        "bash": "command",
        "str_replace_editor": "command path file_text? old_str? new_str? insert_line? view_range?",
        "submit": "",
    },
}


PRIOR_USES = [
    ("codex", "shell", {"command": ["ls"], "sandbox_permissions": "require_escalated", "justification": "why"}),
    ("codex", "shell", {"command": ["ls"], "with_escalated_permissions": True}),
    ("claude-code", "Bash", {"command": "ls", "dangerouslyDisableSandbox": True}),
    ("claude-code", "BashOutput", {"bash_id": "1", "filter": "error"}),
    ("claude-code", "Grep", {"pattern": "x", "output_mode": "content", "head_limit": 0, "context": 2}),
    ("claude-code", "TodoWrite", {"todos": [{"id": "1", "content": "x", "status": "pending", "priority": "high"}]}),
    ("cursor", "run_terminal_cmd", {"command": "ls", "require_user_approval": False}),
    ("cursor", "search_replace", {"file_path": "a", "old_string": "x", "new_string": "y", "replace_all": True}),
    ("cursor", "file_search", {"query": "x"}),
]


@pytest.mark.parametrize(("pack", "name", "arguments"), PRIOR_USES)
def test_documented_product_calls_are_well_formed(pack: str, name: str, arguments: dict[str, Any]) -> None:
    assert isinstance(Toolset.of([pack]).prepare(name, json.dumps(arguments)), PreparedCall)


@pytest.mark.parametrize("pack", ARGUMENTS)
def test_tool_and_argument_names_match_products(pack: str) -> None:
    found = {}
    for kind in PACKS[pack].makers:
        schema = described(kind, "json-schema")
        names = [name if name in schema["required"] else f"{name}?" for name in schema["properties"]]
        found[kind.name] = set(names)
    assert found == {name: set(words.split()) for name, words in ARGUMENTS[pack].items()}


@pytest.mark.parametrize("form", ["openai", "json-schema", "anthropic"])
def test_schemas_are_serialized_identically_each_time(form: Any) -> None:
    assert [json.dumps(described(kind, form)) for _, kind in KINDS] == [
        json.dumps(described(kind, form)) for _, kind in KINDS
    ]


@pytest.mark.parametrize(
    ("words", "pack", "tools"),
    [
        ([], "default", PACKS["default"].tools),
        (["codex"], "codex", ("shell", "apply_patch", "update_plan")),
        (["submit", "bash"], "default", ("bash", "submit")),
        (["-grep", "-glob"], "default", ("bash", "str_replace_based_edit_tool", "codebase_search", "submit")),
        (["codex", "-update_plan"], "codex", ("shell", "apply_patch")),
        (["Read", "claude-code", "Bash"], "claude-code", ("Bash", "Read")),
    ],
)
def test_tool_selection_gives_pack_and_tools(words: list[str], pack: str, tools: tuple[str, ...]) -> None:
    chosen = choose(words)
    assert (chosen.pack.name, chosen.tools) == (pack, tools)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gerp"], "no tool named 'gerp' (did you mean grep?); the tools are bash, "),
        (["claude_code"], "(did you mean claude-code?)"),
        (
            ["codex", "-shel"],
            "no tool named 'shel' (did you mean shell?); the tools are shell, apply_patch, update_plan",
        ),
        (["Edit"], "'Edit' is not a tool of pack default, but of claude-code; name that pack too"),
        (["codex", "cursor"], "'codex' and 'cursor' are both packs; name one pack"),
        (["bash", "-grep"], "'bash' includes and '-grep' excludes a tool; name tools of one kind only"),
        (["codex", "-shell", "-apply_patch", "-update_plan"], "all tools of pack codex are excluded"),
        ([""], "no tool named ''"),
        (["-"], "no tool named ''"),
    ],
)
def test_invalid_tool_selection_is_refused_with_hint(words: list[str], told: str) -> None:
    with pytest.raises(SpecError) as error:
        choose(words)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_codebase_search_needs_an_index_store() -> None:
    assert "codebase_search" not in Toolset.of().names
    assert "codebase_search" not in Toolset.of(["cursor"]).names


READERS = {
    "default": {"str_replace_based_edit_tool", "grep", "glob", "codebase_search"},
    "claude-code": {"Read", "Grep", "Glob", "LS"},
    "codex": set(),
    "cursor": {"codebase_search", "read_file", "list_dir", "grep_search", "file_search"},
    "swe-agent": {"str_replace_editor"},
}
CALLS = {
    "str_replace_based_edit_tool": {"command": "view", "path": "a"},
    "str_replace_editor": {"command": "view", "path": "a"},
    "bash": {"command": "ls"},
    "Bash": {"command": "ls"},
    "BashOutput": {"bash_id": "1"},
    "KillShell": {"shell_id": "1"},
    "Edit": {"file_path": "a", "old_string": "b", "new_string": "c"},
    "MultiEdit": {"file_path": "a", "edits": [{"old_string": "b", "new_string": "c"}]},
    "Write": {"file_path": "a", "content": ""},
    "TodoWrite": {"todos": []},
    "shell": {"command": ["ls"]},
    "apply_patch": {"input": "x"},
    "update_plan": {"plan": []},
    "run_terminal_cmd": {"command": "ls", "is_background": False},
    "search_replace": {"file_path": "a", "old_string": "b", "new_string": "c"},
    "write": {"file_path": "a", "contents": ""},
    "delete_file": {"target_file": "a"},
    "submit": {},
}


@pytest.mark.parametrize("pack", PACKS)
def test_only_reading_calls_run_concurrently(pack: str) -> None:
    toolset = Toolset.of([pack])
    written = {name for name in toolset.names if name in CALLS}
    beside = {name for name in written if toolset.prepare(name, json.dumps(CALLS[name])).reads_only}
    assert beside == READERS[pack] & written
    assert set(toolset.names) - written <= READERS[pack]


def test_files_are_ranked_by_similarity_of_name() -> None:
    paths = ["a/tool.py", "tool/b.py", "t/o/o/l.py", "c/mytool.py", "tool", "x.py"]
    assert closest(paths, "Tool") == ["tool", "a/tool.py", "c/mytool.py", "tool/b.py", "t/o/o/l.py"]
    assert closest([f"{i}/tool" for i in range(20)], "tool") == [f"{i}/tool" for i in range(10)]
    assert closest(paths, "zzz") == []
