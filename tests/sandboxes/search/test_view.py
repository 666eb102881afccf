"""What a search of one sandbox sees, and what it reads for that."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from sandboxes.interface import FileEntry, FileKind, Sandbox
from sandboxes.search.embeddings.load import NONE
from sandboxes.search.index.source_tree import LARGEST_FILE, MOST_FILES, select_files
from sandboxes.search.index_store import IndexStore
from sandboxes.search.sandbox_index import SandboxIndex
from sandboxes.search.workers.fair_queue import MOST_S
from sandboxes.spec import SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.testing.files import FakeNode
from tests.support.sandboxes.serving import eventually

OLD_NS = 10**18
FILES = {
    "/repo/a.py": b"def remove_cookie():\n    pass\n",
    "/repo/lib/b.py": b"def join_url():\n    pass\n",
    "/repo/notes.txt": b"cookies are kept in a jar\n",
}


@pytest.fixture
async def library() -> AsyncIterator[IndexStore]:
    async with IndexStore(None, embedder=NONE) as library:
        yield library


class Box:
    """A sandbox of the fake runtime whose files are old, and a view of it."""

    def __init__(self, sandbox: Any, library: IndexStore) -> None:
        self.sandbox = sandbox
        self.library = library
        self.view = SandboxIndex(library, sandbox, "/repo")
        self.age()

    def age(self) -> None:
        """As if everything had been written long ago, each file at its own time."""
        for number, node in enumerate(self.sandbox.files._nodes.values()):
            node.mtime_ns = OLD_NS + number

    async def write(self, path: str, content: bytes) -> None:
        await self.sandbox.write_file(f"/repo/{path}", content, parents=True)

    async def find(self, question: str, within: str = "") -> list[tuple[str, str]]:
        seen = await self.view.refresh()
        hits = await self.library.search(question, seen.parts, within=within, limit=10)
        return [(hit.path, hit.name) for hit in hits]


@pytest.fixture
async def box(library: IndexStore) -> AsyncIterator[Box]:
    runtime = FakeRuntime({"image": FILES})
    async with runtime.scope(SandboxSpec("image", workdir="/repo")) as sandbox:
        yield Box(sandbox, library)


async def test_search_follows_edits_additions_and_removals(box: Box) -> None:
    assert await box.find("cookie") == [("a.py", "remove_cookie"), ("notes.txt", "")]
    await box.write("a.py", b"def eat_cookie():\n    pass\n")
    await box.write("new/c.py", b"def bake_cookie():\n    pass\n")
    await box.sandbox.remove_path("/repo/notes.txt")
    assert await box.find("cookie") == [("a.py", "eat_cookie"), ("new/c.py", "bake_cookie")]
    await box.sandbox.remove_path("/repo/new")
    await box.write("a.py", FILES["/repo/a.py"])
    assert await box.find("cookie") == [("a.py", "remove_cookie")]


async def test_edit_with_same_time_and_size_is_noticed(box: Box) -> None:
    await box.write("a.py", b"def one():\n    pass\n")
    node = box.sandbox.files.node("/repo/a.py")
    assert await box.find("one two") == [("a.py", "one")]
    await box.write("a.py", b"def two():\n    pass\n")
    box.sandbox.files.node("/repo/a.py").mtime_ns = node.mtime_ns
    assert await box.find("one two") == [("a.py", "two")]


async def test_search_finds_latest_of_many_edits(box: Box) -> None:
    for number in range(40):
        await box.write(f"m{number % 20}.py", f"def cookie{number}(): pass\n".encode())
        found = await box.find(f"cookie{number}")
        assert found[0] == (f"m{number % 20}.py", f"cookie{number}")
    assert len(await box.find("pass")) == 10
    assert {name for _, name in await box.find("def cookie pass", within="m3.py")} == {"cookie23"}


async def test_replaced_tree_gets_its_own_index(box: Box) -> None:
    await box.find("cookie")
    for number in range(80):
        await box.write(f"n{number}.py", f"def jar{number}(): return {number}\n".encode())
    assert (await box.find("jar77"))[0] == ("n77.py", "jar77")
    assert ("a.py", "remove_cookie") in await box.find("cookie")


async def test_cancelled_refresh_does_no_harm(box: Box) -> None:
    for delay in (0, 1, 3, 10, 30):
        look = asyncio.create_task(box.view.refresh())
        for _ in range(delay):
            await asyncio.sleep(0)
        look.cancel()
        with pytest.raises(asyncio.CancelledError):
            await look
    assert await box.find("cookie") == [("a.py", "remove_cookie"), ("notes.txt", "")]


async def test_sandboxes_share_index_but_not_edits(library: IndexStore) -> None:
    runtime = FakeRuntime({"image": FILES})
    spec = SandboxSpec("image", workdir="/repo")
    async with runtime.scope(spec) as one, runtime.scope(spec) as other:
        first, second = Box(one, library), Box(other, library)
        await first.write("a.py", b"def eat_cookie():\n    pass\n")
        assert await first.find("cookie") == [("a.py", "eat_cookie"), ("notes.txt", "")]
        assert await second.find("cookie") == [("a.py", "remove_cookie"), ("notes.txt", "")]
        assert await first.find("remove") == []
        (index,) = library.noted_indexes(f"{one.image_digest} /repo")
        assert all(part.segment in index.segments for part in (await first.view.refresh()).parts[: len(index.segments)])


async def test_forged_times_affect_only_the_forger(library: IndexStore) -> None:
    """A changed file that looks like the pristine one, in the very first sandbox that is searched."""
    runtime = FakeRuntime({"image": FILES})
    spec = SandboxSpec("image", workdir="/repo")
    async with runtime.scope(spec) as one, runtime.scope(spec) as other:
        forger, honest = Box(one, library), Box(other, library)
        await forger.write("a.py", b"def forged_cookie(): pass    \n"[: len(FILES["/repo/a.py"])])
        forger.age()
        await forger.find("cookie")
        assert await honest.find("forged") == []
        assert await honest.find("cookie") == [("a.py", "remove_cookie"), ("notes.txt", "")]


async def test_generated_binary_and_large_files_are_skipped(box: Box) -> None:
    line = b"cookie\n"
    for path in (".git/config", "node_modules/x/a.js", "a/__pycache__/x.py", "x.min.js", "x.png", "package-lock.json"):
        await box.write(path, line)
    await box.write("binary.py", b"cookie\0" + line)
    await box.write("squeezed.js", b"cookie;" * 2000)
    await box.write("large.py", line * (LARGEST_FILE // len(line) + 1))
    await box.write("empty.py", b"")
    box.sandbox.files.put("/repo/link.py", FakeNode(FileKind.SYMLINK, b"a.py", 0o777))
    box.sandbox.files.put("/repo/pipe.py", FakeNode(FileKind.OTHER))
    assert await box.find("cookie") == [("a.py", "remove_cookie"), ("notes.txt", "")]


async def test_undecodable_names_and_content_are_searched(box: Box) -> None:
    name = os.fsdecode(b"caf\xe9\n.py")
    await box.write(name, b"# caf\xe9\r\ndef gr\xc3\xbc\xc3\x9fe_jar(): pass\r\n")
    assert (await box.find("grüße"))[0] == (name, "grüße_jar")


async def test_empty_tree_has_no_results(library: IndexStore) -> None:
    async with FakeRuntime({"image": {"/repo/": b""}}).scope(SandboxSpec("image", workdir="/repo")) as sandbox:
        assert await Box(sandbox, library).find("cookie") == []


async def test_only_changed_files_are_read_again(box: Box) -> None:
    read = await _reads(box)
    assert sorted(read) == ["/repo/a.py", "/repo/lib/b.py", "/repo/notes.txt"]
    assert await _reads(box) == []
    await box.write("lib/b.py", b"def cookie_url(): pass\n")
    assert await _reads(box) == ["/repo/lib/b.py"]


async def _reads(box: Box) -> Sequence[str]:
    """What one look reads of the sandbox."""
    watched = Watched(box.sandbox)
    box.view._sandbox = watched
    await box.view.refresh()
    return watched.read


class Watched:
    """A sandbox whose reads are recorded."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.read: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 0) -> bytes:
        self.read.append(path)
        return await self._sandbox.read_file(path, offset=offset, limit=limit)


def test_sources_come_first_among_too_many_files() -> None:
    from sandboxes.interface import FileEntry

    entries = [FileEntry(f"t{n}.txt", FileKind.FILE, 0o644, 10, 0) for n in range(MOST_FILES)]
    tree = select_files([*entries, FileEntry("z.py", FileKind.FILE, 0o644, 10, 0)])
    assert "z.py" in tree.files
    assert len(tree.files) == MOST_FILES
    assert tree.left_out == 1


ENDLESS = b"a<b,\n" * 20_000
"""Over which the grammar of TypeScript takes minutes: at each of these it might be an argument of types."""


async def test_hostile_tree_does_not_delay_others() -> None:
    spec = SandboxSpec("image", workdir="/repo")
    hostile = {**FILES, "/repo/evil.ts": ENDLESS}
    async with (
        IndexStore(None, embedder=NONE, processes=1) as library,
        FakeRuntime({"image": hostile}).scope(spec) as one,
        FakeRuntime({"image": FILES}).scope(spec) as two,
    ):
        evil, good = Box(one, library), Box(two, library)
        answered = list[str]()

        async def ask(name: str, box: Box, question: str) -> list[tuple[str, str]]:
            found = await box.find(question)
            answered.append(name)
            return found

        async with asyncio.TaskGroup() as group:
            slow = group.create_task(ask("evil", evil, "a"))
            assert await eventually(lambda: bool(library._builds))
            quick = group.create_task(ask("good", good, "cookie"))
        assert answered == ["good", "evil"]
        assert slow.result()[0][0] == "evil.ts"  # its text is found, in windows
        assert quick.result() == [("a.py", "remove_cookie"), ("notes.txt", "")]
        assert evil.view._budget.taken_s > good.view._budget.taken_s


async def test_spent_budget_still_searches_by_words(box: Box) -> None:
    await box.find("cookie")
    box.view._budget.take(2 * MOST_S)
    await box.write("a.py", b"def eat_cookie():\n    pass\n")
    assert await box.find("cookie") == [("a.py", ""), ("notes.txt", "")]
    for number in range(80):
        await box.write(f"n{number}.py", f"def jar{number}(): return {number}\n".encode())
    assert (await box.find("jar77"))[0] == ("n77.py", "")
    assert len(box.library.noted_indexes(f"{box.sandbox.image_digest} /repo")) == 1  # what it has now is nobody else's


async def test_refresh_waits_for_earlier_build(box: Box) -> None:
    look = asyncio.create_task(box.view.refresh())
    assert await eventually(lambda: bool(box.library._builds))
    look.cancel()
    (begun,) = box.library._builds.values()
    await box.write("a.py", b"def eat_cookie(): pass\n")
    assert await box.find("eat") == [("a.py", "eat_cookie")]
    assert begun.task.done()
    (index,) = box.library.noted_indexes(f"{box.sandbox.image_digest} /repo")
    assert index is not begun.task.result()


async def test_tree_comparison_does_not_block_event_loop(box: Box) -> None:
    """Of two hundred thousand files the comparison alone would take the loop's time for long."""
    await box.view.refresh()
    threads = set[int]()

    class Entry(FileEntry):
        def __getattribute__(self, name: str) -> Any:
            threads.add(threading.get_ident())
            return super().__getattribute__(name)

    async def walk(root: str, *, prune: Sequence[str] = ()) -> list[FileEntry]:
        return [Entry(entry.path, entry.kind, entry.mode, entry.size, entry.mtime_ns) for entry in found]

    found = await box.sandbox.walk("/repo")
    box.sandbox.walk = walk
    assert (await box.view.refresh()).paths
    assert threads
    assert threading.get_ident() not in threads
