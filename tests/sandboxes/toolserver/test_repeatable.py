"""Calls of several requests that are made again, as by a process that does not know how far the first one came."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandboxes.errors import AnswerLost
from sandboxes.interface import Runtime, Sandbox
from sandboxes.spec import SandboxSpec
from sandboxes.tools import ToolResult, Toolset
from sandboxes.toolserver.replay import RecordedRead, repeatable

pytestmark = pytest.mark.docker

PATCH = """\
*** Begin Patch
*** Update File: old
*** Move to: new
@@
-first
+FIRST
*** Add File: added
+x
*** Delete File: gone
*** End Patch"""


@pytest.fixture
async def box(either_runtime: Runtime, test_image: str) -> AsyncIterator[Sandbox]:
    async with either_runtime.scope(SandboxSpec(test_image, workdir="/repo")) as sandbox:
        yield sandbox


async def twice(box: Sandbox, words: str, name: str, **arguments: Any) -> ToolResult:
    """What it gives, which is the same both times: alone, and after each of the answers that were kept."""
    kept: list[RecordedRead] = []

    async def make(seen: list[RecordedRead]) -> ToolResult:
        with repeatable(json.dumps(arguments), seen, kept.append):
            return await Toolset.of([words]).call(box, name, json.dumps(arguments), timeout_s=30)

    first = await make([])
    known, again = list(kept), await make(list(kept))
    assert kept == known, "it looked at something else"
    assert (again.content, again.error_kind) == (first.content, first.error_kind)
    return again


async def test_repeated_edit_runs_once_with_same_result(box: Sandbox) -> None:
    await box.write_file("file", b"a\nb\n")
    editor = "str_replace_based_edit_tool"
    result = await twice(box, "default", editor, command="str_replace", path="file", old_str="a\n", new_str="aa\na\n")
    assert result.content.startswith("Edited file")
    assert await box.read_file("file") == b"aa\na\nb\n"
    made = await twice(box, "swe-agent", "str_replace_editor", command="create", path="made", file_text="x\n")
    assert made.content == "Created made: 1 line."
    refused = await twice(box, "swe-agent", "str_replace_editor", command="create", path="file", file_text="x\n")
    assert "is there already" in refused.content


async def test_repeated_patch_of_several_files_applies_once(box: Sandbox) -> None:
    await box.write_file("old", b"first\nlast\n")
    await box.write_file("gone", b"")
    result = await twice(box, "codex", "apply_patch", input=PATCH)
    assert result.content.startswith("Success.")
    assert await box.read_file("new") == b"FIRST\nlast\n"
    assert await box.read_file("added") == b"x\n"


async def test_repeated_command_in_fresh_shell_runs_once(box: Sandbox) -> None:
    await twice(box, "default", "bash", command="x=1; echo once >> notes", restart=True)
    assert await box.read_file("notes") == b"once\n"
    assert (await twice(box, "default", "bash", command="echo $x")).content == "1\n[exit code 0]"


async def test_repeated_job_read_returns_same_output(box: Sandbox) -> None:
    started = await twice(box, "default", "bash", command="echo begun; read word; echo got $word", background=True)
    assert "begun" in started.content
    typed = await twice(box, "default", "bash", job=1, input="hello\n", wait_s=20)
    assert "got hello" in typed.content
    assert "[job 1 ended with exit code 0" in typed.content
    after = await twice(box, "default", "bash", job=1)
    assert "got" not in after.content


async def test_changed_or_forgotten_call_is_not_run(box: Sandbox) -> None:
    with repeatable("call"):
        await box.shell("echo one >> notes", timeout_s=30)
    with repeatable("call"), pytest.raises(AnswerLost, match="cannot be replayed"):
        await box.shell("echo two >> notes", timeout_s=30)
    seen: list[RecordedRead] = []
    with repeatable("look", (), seen.append):
        await box.stat("notes")
    with repeatable("look", seen, seen.append), pytest.raises(AnswerLost, match="cannot be replayed"):
        await box.stat("/")
    for number in range(300):
        with repeatable(str(number)):
            await box.write_file("file", b"")
    with repeatable("call"), pytest.raises(AnswerLost, match="no longer kept"):
        await box.shell("echo one >> notes", timeout_s=30)
    assert await box.read_file("notes") == b"one\n"


async def test_replay_after_lost_tool_state_is_refused(box: Sandbox) -> None:
    """What a tool remembers dies with its process: that there is nothing to take back was not so."""
    kept: list[RecordedRead] = []

    async def call(tools: Toolset, **arguments: Any) -> ToolResult:
        return await tools.call(box, "str_replace_editor", json.dumps({"path": "file", **arguments}), timeout_s=30)

    await box.write_file("file", b"a\n")
    first = Toolset.of(["swe-agent"])
    await call(first, command="str_replace", old_str="a", new_str="b")
    with repeatable("undo", (), kept.append):
        assert (await call(first, command="undo_edit")).error_kind is None
    with pytest.raises(AnswerLost, match="cannot be replayed"), repeatable("undo", kept, kept.append):
        await call(Toolset.of(["swe-agent"]), command="undo_edit")
    assert await box.read_file("file") == b"a\n"


async def test_call_ids_end_with_the_block(box: Sandbox) -> None:
    for _ in range(2):
        with repeatable("call"):
            await box.write_file("file", b"")
        await box.shell("echo more >> notes", timeout_s=30)
    assert await box.read_file("notes") == b"more\nmore\n"
