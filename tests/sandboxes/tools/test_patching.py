"""A patch on a sandbox's files: what it names is written, and where one file cannot be, none is."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes.errors import PathError
from sandboxes.interface import FileKind, Sandbox
from sandboxes.spec import SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.tools import ToolErrorKind, ToolResult, Toolset

TREE = {"a.txt": b"one\ntwo\n", "b.txt": b"\xff\r\nb\r\n", "d/c.txt": b"c", "blocked": b"no directory\n"}
SECTIONS = {
    "a": "*** Update File: a.txt\n@@\n-two\n+2",
    "b": "*** Update File: ./b.txt\n*** Move to: moved/b.txt\n@@\n-b\n+B",
    "c": "*** Delete File: /repo/d/c.txt",
    "d": "*** Add File: new/dir/e.txt\n+e",
    "e": "*** Add File: d/../f.txt\n+f",
}
BECOMES: dict[str, dict[str, bytes | None]] = {
    "a": {"a.txt": b"one\n2\n"},
    "b": {"b.txt": None, "moved/b.txt": b"\xff\r\nB\r\n"},
    "c": {"d/c.txt": None},
    "d": {"new/dir/e.txt": b"e\n"},
    "e": {"f.txt": b"f\n"},
}
FAULTS = ["*** Add File: blocked/x\n+x", "*** Update File: none.txt\n@@\n-x", "*** Update File: a.txt\n@@\n-three"]


async def patched(sandbox: Sandbox, *sections: str) -> ToolResult:
    text = "\n".join(["*** Begin Patch", *sections, "*** End Patch"])
    return await Toolset.of(["codex"]).call(sandbox, "apply_patch", json.dumps({"input": text}), timeout_s=5)


async def files(sandbox: Sandbox) -> dict[str, bytes]:
    found = [entry for entry in await sandbox.walk("/repo") if entry.kind is FileKind.FILE]
    return {entry.path: await sandbox.read_file(f"/repo/{entry.path}") for entry in found}


def fake() -> FakeRuntime:
    return FakeRuntime({"image": {f"/repo/{path}": content for path, content in TREE.items()}})


async def after(sections: list[str]) -> tuple[ToolResult, dict[str, bytes]]:
    async with fake().scope(SandboxSpec("image", workdir="/repo")) as sandbox:
        return await patched(sandbox, *sections), await files(sandbox)


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(SECTIONS)), min_size=1, unique=True))
def test_patch_changes_only_named_files(names: list[str]) -> None:
    result, left = asyncio.run(after([SECTIONS[name] for name in names]))
    assert result.error_kind is None
    expected: dict[str, bytes | None] = dict(TREE)
    for name in names:
        expected |= BECOMES[name]
    assert left == {path: content for path, content in expected.items() if content is not None}


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(SECTIONS)), unique=True), st.sampled_from(FAULTS), st.integers(0, 5))
def test_failed_write_leaves_all_files_unchanged(names: list[str], fault: str, at: int) -> None:
    sections = [SECTIONS[name] for name in names]
    result, left = asyncio.run(after([*sections[:at], fault, *sections[at:]]))
    assert result.error_kind is ToolErrorKind.REFUSED
    assert "nothing was changed" in result.content
    assert left == TREE


async def test_move_keeps_mode_and_delete_spares_link_target() -> None:
    async with fake().scope(SandboxSpec("image", workdir="/repo")) as sandbox:
        await sandbox.write_file("run.sh", b"x\n", executable=True)
        await sandbox.write_link("link", "a.txt")
        result = await patched(
            sandbox, "*** Update File: run.sh\n*** Move to: go.sh\n@@\n-x\n+y", "*** Delete File: link"
        )
        assert result.content == "Success. Updated the following files:\nM go.sh\nD link"
        assert (await sandbox.stat("go.sh")).mode & 0o100
        assert await sandbox.read_file("a.txt") == TREE["a.txt"]
        with pytest.raises(PathError):
            await sandbox.stat("link")


async def test_cancelled_patch_is_applied_completely_or_not() -> None:
    for turns in range(12):
        async with fake().scope(SandboxSpec("image", workdir="/repo")) as sandbox:
            running = asyncio.create_task(patched(sandbox, *SECTIONS.values()))
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait({running})
            left = await files(sandbox)
            assert left == TREE or ("f.txt" in left and "d/c.txt" not in left and "b.txt" not in left)


async def test_too_large_files_are_refused() -> None:
    async with fake().scope(SandboxSpec("image", workdir="/repo")) as sandbox:
        await sandbox.write_file("large", b"x\n" * (5 << 20))
        result = await patched(sandbox, "*** Delete File: large")
        assert result.content == "error: large: has more than 8 MiB; use the shell; nothing was changed"
        for number in range(5):
            await sandbox.write_file(f"{number}", b"x\n" * (4 << 20))
        result = await patched(sandbox, *(f"*** Delete File: {number}" for number in range(5)))
        assert "the files that it names have more than 32 MiB: patch fewer at once" in result.content
