"""Tests of reading and applying a change, with the in-memory sandbox."""

import errno
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.core.change import Change, ChangeKind
from farm.grading import ChangeRefused, ChangeTooLarge, WorkspaceBaseline, apply_change, take_baseline, take_change
from farm.grading.changes import capture
from sandboxes.errors import PathError
from sandboxes.interface import FileKind
from sandboxes.spec import SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.testing.fake_sandbox import FakeSandbox
from sandboxes.testing.files import FakeNode
from tests.support.farm.grading_values import IMAGE, WORKSPACE, busybox, change, delete, image, link, write

PRISTINE = {"src/a.py": b"a\n", "src/b.py": b"b\n", "run.sh": b"#!/bin/sh\n", "docs/one/two.md": b"2\n"}


async def boot(files: dict[str, bytes] = PRISTINE) -> FakeSandbox:
    runtime = FakeRuntime(image(files), programs={"busybox": busybox})
    sandbox = await runtime.create(SandboxSpec(IMAGE, workdir=WORKSPACE))
    assert isinstance(sandbox, FakeSandbox)
    return sandbox


def tree(sandbox: FakeSandbox) -> dict[str, tuple[FileKind, bytes, bool]]:
    found = {}
    for entry in sandbox.files.walk(WORKSPACE, ()):
        node = sandbox.files.node(f"{WORKSPACE}/{entry.path}", follow_last=False)
        executable = bool(node.mode & 0o100) and node.kind is FileKind.FILE
        found[entry.path] = (node.kind, node.content, executable)
    return found


@pytest.fixture
async def agent() -> AsyncIterator[tuple[FakeSandbox, WorkspaceBaseline]]:
    sandbox = await boot()
    yield sandbox, await take_baseline(sandbox, WORKSPACE)
    await sandbox.remove()


async def test_untouched_workspace_gives_empty_change(agent: tuple[FakeSandbox, WorkspaceBaseline]) -> None:
    sandbox, baseline = agent
    assert (await take_change(sandbox, WORKSPACE, baseline)).empty


async def test_agent_edits_are_captured(agent: tuple[FakeSandbox, WorkspaceBaseline]) -> None:
    sandbox, baseline = agent
    await sandbox.write_file("src/a.py", b"A\n")
    await sandbox.write_file("src/new.py", b"n\n", parents=True)
    await sandbox.write_file("run.sh", b"#!/bin/sh\n", executable=False)
    await sandbox.remove_path("src/b.py")
    await sandbox.write_link("docs/latest", "one/two.md")
    taken = await take_change(sandbox, WORKSPACE, baseline)
    assert taken == change(
        link("docs/latest", b"one/two.md"),
        write("run.sh", b"#!/bin/sh\n"),
        write("src/a.py", b"A\n"),
        delete("src/b.py"),
        write("src/new.py", b"n\n"),
    )


async def test_processes_are_killed_before_capture(agent: tuple[FakeSandbox, WorkspaceBaseline]) -> None:
    sandbox, baseline = agent
    await sandbox.shell("(sleep 0.05 && echo late > src/late.py) &", timeout_s=5)
    taken = await take_change(sandbox, WORKSPACE, baseline)
    await sandbox.exec(["sleep", "0.2"], timeout_s=5)
    assert taken.empty
    assert (await take_change(sandbox, WORKSPACE, baseline)).empty


async def test_residue_is_excluded_from_change(agent: tuple[FakeSandbox, WorkspaceBaseline]) -> None:
    sandbox, baseline = agent
    for path in (".git/HEAD", "src/__pycache__/a.pyc", "src/a.pyc", ".pytest_cache/v", ".a.py.swp", "sub/.git/x"):
        await sandbox.write_file(path, b"x", parents=True)
    sandbox.files.put(f"{WORKSPACE}/fifo", FakeNode(FileKind.OTHER))
    assert (await take_change(sandbox, WORKSPACE, baseline)).empty


async def test_file_replaced_by_fifo_is_deleted(agent: tuple[FakeSandbox, WorkspaceBaseline]) -> None:
    sandbox, baseline = agent
    sandbox.files.put(f"{WORKSPACE}/src/a.py", FakeNode(FileKind.OTHER))
    assert await take_change(sandbox, WORKSPACE, baseline) == change(delete("src/a.py"))


async def test_non_utf8_names_are_preserved(agent: tuple[FakeSandbox, WorkspaceBaseline]) -> None:
    sandbox, baseline = agent
    names = ["new\nline", "tab\t", "\udcff\udc80", " ", "-rf", "ünï"]
    for name in names:
        await sandbox.write_file(f"{WORKSPACE}/src/{name}", b"x")
    taken = await take_change(sandbox, WORKSPACE, baseline)
    assert {file.path for file in taken.files} == {f"src/{name}" for name in names}


@pytest.mark.parametrize("replacement", [None, b"a file"])
async def test_missing_workspace_deletes_everything(
    agent: tuple[FakeSandbox, WorkspaceBaseline], replacement: bytes | None
) -> None:
    sandbox, baseline = agent
    await sandbox.remove_path(WORKSPACE)
    if replacement is not None:
        await sandbox.write_file(WORKSPACE, replacement)
    taken = await take_change(sandbox, WORKSPACE, baseline)
    assert [file.path for file in taken.files] == sorted(PRISTINE)
    assert {file.kind for file in taken.files} == {ChangeKind.DELETE}


async def test_too_many_files_raise(agent: tuple[FakeSandbox, WorkspaceBaseline]) -> None:
    sandbox, baseline = agent
    for number in range(capture.MAX_FILES + 1):
        sandbox.files.write(f"{WORKSPACE}/src/{number}", b"")
    with pytest.raises(ChangeTooLarge, match="5001 files"):
        await take_change(sandbox, WORKSPACE, baseline)


async def test_too_many_bytes_raise_before_reading(agent: tuple[FakeSandbox, WorkspaceBaseline]) -> None:
    sandbox, baseline = agent
    await sandbox.write_file("src/big", bytes(capture.MAX_BYTES + 1))
    with pytest.raises(ChangeTooLarge, match="64 MiB"):
        await take_change(sandbox, WORKSPACE, baseline)


async def test_baseline_of_missing_workspace_raises() -> None:
    sandbox = await boot()
    with pytest.raises(PathError) as caught:
        await take_baseline(sandbox, "/nowhere")
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize(
    "hostile",
    [
        change(write("/etc/passwd")),
        change(write("../up")),
        change(write("src/../../up")),
        change(write("src//a.py")),
        change(write("./a")),
        change(write("")),
        change(write("a\0b")),
        change(write("x" * 256)),
        change(write("\ud800")),
        change(link("out", b"")),
        change(link("out", b"a\0b")),
        Change((write("a"), delete("a"))),
        change(link("lib", b"/etc"), write("lib/passwd")),
        change(write("lib"), write("lib/passwd")),
        change(write("src/a.py/below")),
        change(write("src")),
    ],
    ids=lambda hostile: repr([file.path[:12] for file in hostile.files]),
)
async def test_impossible_change_is_refused_before_writing(hostile: Change) -> None:
    sandbox = await boot()
    before = tree(sandbox)
    with pytest.raises(ChangeRefused):
        await apply_change(sandbox, WORKSPACE, hostile)
    assert tree(sandbox) == before


async def test_pristine_symlink_is_replaced_and_not_followed() -> None:
    sandbox = await boot()
    await sandbox.write_link("out", "/etc")
    with pytest.raises(ChangeRefused):
        await apply_change(sandbox, WORKSPACE, change(write("out/passwd")))
    await apply_change(sandbox, WORKSPACE, change(delete("out"), write("out/passwd")))
    assert tree(sandbox)["out/passwd"] == (FileKind.FILE, b"new\n", False)
    await sandbox.write_file("/target", b"kept", parents=True)
    await sandbox.write_link("direct", "/target")
    await apply_change(sandbox, WORKSPACE, change(write("direct")))
    assert await sandbox.read_file("/target") == b"kept"
    assert tree(sandbox)["direct"] == (FileKind.FILE, b"new\n", False)


async def test_directory_without_files_is_removed() -> None:
    sandbox = await boot()
    await apply_change(sandbox, WORKSPACE, change(delete("docs/one/two.md"), delete("src/a.py")))
    with pytest.raises(PathError):
        await sandbox.stat("docs")
    assert (await sandbox.stat("src")).kind is FileKind.DIRECTORY


NAMES = st.sampled_from(["a", "b", "src", "run.sh", "docs", "one", "c d", "ü", "\udcff", "e\nf"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
STEPS = st.one_of(
    st.tuples(st.just("write"), PATHS, st.binary(max_size=8), st.booleans()),
    st.tuples(st.just("link"), PATHS, PATHS, st.just(False)),
    st.tuples(st.just("remove"), PATHS, st.just(b""), st.just(False)),
)


@settings(max_examples=150, deadline=None)
@given(
    pristine=st.dictionaries(st.sampled_from([*PRISTINE, "a", "b/c d/e"]), st.binary(max_size=8)),
    steps=st.lists(STEPS, max_size=12),
)
async def test_captured_change_applied_gives_same_tree(
    pristine: dict[str, bytes], steps: list[tuple[str, str, bytes | str, bool]]
) -> None:
    agent, fresh = [await boot({"kept": b"", **pristine}) for _ in range(2)]
    baseline = await take_baseline(agent, WORKSPACE)
    for word, path, content, executable in steps:
        full = f"{WORKSPACE}/{path}"
        try:
            if isinstance(content, str):
                await agent.write_link(full, content)
            elif word == "write":
                await agent.write_file(full, content, executable=executable, parents=True)
            else:
                await agent.remove_path(full)
        except PathError:
            continue
    await apply_change(fresh, WORKSPACE, await take_change(agent, WORKSPACE, baseline))
    assert tree(fresh) == tree(agent)
