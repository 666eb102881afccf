"""Indexes that are shared: made once, kept, found again, and made by processes that hostile text brings down."""

import asyncio
import hashlib
import mmap
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.errors import RuntimeUnavailable
from sandboxes.search.embeddings.load import NONE
from sandboxes.search.errors import IndexingFailed
from sandboxes.search.index.index import Index
from sandboxes.search.index.segment import SourceFile
from sandboxes.search.index_store import IndexStore
from sandboxes.search.sandbox_index import cover
from sandboxes.search.workers.fair_queue import MOST_S, PER_S, CpuBudget, FairQueue, least_taken
from sandboxes.search.workers.pool import Workers
from sandboxes.search.workers.worker import with_progress
from tests.support.services import needs_root


def sources(**texts: str) -> list[SourceFile]:
    files = {f"{name}.py": text.encode() for name, text in texts.items()}
    return [SourceFile(path, hashlib.sha256(content).digest(), content) for path, content in files.items()]


A, B = "def remove_cookie():\n    pass\n", "def join_url():\n    pass\n"


@pytest.fixture
async def library(tmp_path: Path) -> AsyncIterator[IndexStore]:
    async with IndexStore(tmp_path / "search", embedder=NONE) as library:
        yield library


async def names(library: IndexStore, index: Index, question: str) -> list[str]:
    texts = {
        path: digest for segment in index.segments for path, digest in zip(segment.paths, segment.digests, strict=True)
    }
    hits = await library.search(question, cover(texts, index.segments).parts, within="", limit=5)
    return [hit.name for hit in hits]


async def test_concurrent_requests_share_one_build(library: IndexStore) -> None:
    files = sources(a=A, b=B)
    first, second = await asyncio.gather(library.index(files), library.index(list(reversed(files))))
    assert first is second
    assert await names(library, first, "remove cookies") == ["remove_cookie"]


async def test_cancelled_request_does_not_stop_shared_build(library: IndexStore) -> None:
    impatient = asyncio.create_task(library.index(sources(a=A)))
    patient = asyncio.create_task(library.index(sources(a=A)))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await names(library, await patient, "remove cookies") == ["remove_cookie"]
    with pytest.raises(asyncio.CancelledError):
        await impatient


async def test_index_outlives_its_process(library: IndexStore, tmp_path: Path) -> None:
    made = await library.index(sources(a=A))
    (path,) = (tmp_path / "search").iterdir()
    before = path.stat().st_ino
    async with IndexStore(tmp_path / "search", embedder=NONE) as another:
        found = await another.index(sources(a=A))
        assert found.digest == made.digest
        assert await names(another, found, "remove cookies") == ["remove_cookie"]
    assert path.stat().st_ino == before


async def test_different_content_or_embedder_gives_different_index(tmp_path: Path) -> None:
    digests = set()
    for embedder in (NONE, "tests.support.sandboxes.searching:toy"):
        async with IndexStore(tmp_path / "search", embedder=embedder) as library:
            digests |= {(await library.index(sources(a=text))).digest for text in (A, B)}
            digests.add((await library.index(sources(b=A))).digest)
    assert len(digests) == 6


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\xff" * 1000])
async def test_damaged_index_is_rebuilt(library: IndexStore, tmp_path: Path, damage: bytes) -> None:
    await library.index(sources(a=A))
    (path,) = (tmp_path / "search").iterdir()
    path.write_bytes(damage)
    async with IndexStore(tmp_path / "search", embedder=NONE) as another:
        assert await names(another, await another.index(sources(a=A)), "remove cookies") == ["remove_cookie"]


async def test_least_recently_used_indexes_are_evicted(tmp_path: Path) -> None:
    async with IndexStore(tmp_path / "search", embedder=NONE) as library:
        made = [await library.index(sources(a=text)) for text in (A, B)]
        first, second = (tmp_path / "search" / f"{index.digest}.index" for index in made)
        room = first.stat().st_size * 5 // 2
        os.utime(first, (2, 2))
        os.utime(second, (1, 1))
    async with IndexStore(tmp_path / "search", embedder=NONE, most_bytes=room) as library:
        await library.index(sources(c=A))
    assert first.exists()
    assert not second.exists()


async def test_index_works_without_writable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with IndexStore(tmp_path / "file" / "search", embedder=NONE) as library:
        assert await names(library, await library.index(sources(a=A)), "remove cookies") == ["remove_cookie"]


async def test_text_crashing_the_parser_is_searched_unparsed() -> None:
    """The embedder ``searching:fatal`` crashes at any definition of that name, as a faulty parser would."""
    async with IndexStore(None, embedder="tests.support.sandboxes.searching:fatal") as library:
        index = await library.index(sources(a=A, b="def poison():\n    pass\n"))
        assert await names(library, index, "remove cookies") == [""]
        assert await names(library, await library.index(sources(a=A)), "remove cookies") == ["remove_cookie"]


async def test_slow_file_leaves_other_names_indexed(library: IndexStore) -> None:
    """TypeScript's grammar takes minutes over such text."""
    content = b"a<b," * 25_000
    slow = SourceFile("slow.ts", hashlib.sha256(content).digest(), content)
    index = await library.index([*sources(a=A), slow, *sources(b=B)])
    assert await names(library, index, "remove cookies") == ["remove_cookie"]
    assert await names(library, index, "join url") == ["join_url"]


async def test_killed_process_is_replaced() -> None:
    async with Workers(NONE, 1) as workers:
        built = await workers.build(sources(a=A), [])
        (process,) = workers._idle
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        assert await workers.build(sources(a=A), []) == built


@needs_root
async def test_indexing_process_is_unprivileged_and_isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_JOIN_TOKEN", "secret")
    async with Workers(NONE, 1) as workers:
        await workers.build(sources(a=A), [])
        place = Path("/proc", str(workers._idle[0].pid))
        status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())
        assert set(status["Uid"].split() + status["Gid"].split()) == {"65534"}
        assert status["Groups"].strip() == ""
        assert int(status["CapPrm"], 16) == int(status["CapEff"], 16) == int(status["CapAmb"], 16) == 0
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert b"FARM_" not in (place / "environ").read_bytes()
        assert os.readlink(place / "ns/net") != os.readlink("/proc/self/ns/net")


async def test_index_without_definitions_is_not_stored(tmp_path: Path) -> None:
    async with IndexStore(tmp_path / "search", embedder="tests.support.sandboxes.searching:endless") as library:
        poor = await library.index(sources(a="def endless():\n    pass\n"))
        assert (poor.digest, await names(library, poor, "endless")) == ("", [""])
    async with IndexStore(tmp_path / "search", embedder="tests.support.sandboxes.searching:endless") as library:
        assert not list((tmp_path / "search").glob("*.index"))
        assert (await library.index(sources(a=A))).digest


def test_each_file_has_its_own_cpu_limit() -> None:
    files = [SourceFile("a", b"", b"x" * size) for size in (10, 1 << 20, 10)]
    with mmap.mmap(-1, mmap.PAGESIZE) as progress:
        left = [signal.getitimer(signal.ITIMER_PROF)[0] for _ in with_progress(files, progress)]
    assert 0 < left[0] <= 1.01 < 2.5 < left[1]
    assert 0 < left[2] <= 1.01
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


async def test_unindexable_files_raise_an_error() -> None:
    async with IndexStore(None, embedder="tests.support.sandboxes.searching:stubborn") as library:
        with pytest.raises(IndexingFailed, match="the indexing process fails on these files"):
            await library.index(sources(a=A))
        with pytest.raises(IndexingFailed):
            await library.segments(sources(a=A), CpuBudget())


async def test_missing_embedder_is_reported() -> None:
    with pytest.raises(RuntimeUnavailable, match="there is no embedder 'nowhere:nothing'"):
        async with IndexStore(None, embedder="nowhere:nothing"):
            pass


async def test_waiter_with_least_used_cpu_is_next() -> None:
    turns, order = FairQueue(1), list[str]()
    greedy, modest = CpuBudget(), CpuBudget()
    greedy.take(10)

    async def take(name: str, *askers: CpuBudget) -> None:
        async with turns.turn(lambda: least_taken(askers)):
            order.append(name)

    async with asyncio.TaskGroup() as group, turns.turn(lambda: 0):
        for name, askers in {"greedy": [greedy], "joined": [greedy, modest], "gone": [modest]}.items():
            waiting = group.create_task(take(name, *askers))
            await asyncio.sleep(0)
        waiting.cancel()
    assert order == ["joined", "greedy"]
    async with turns.turn(lambda: 0):  # nobody's turn was lost
        pass


async def test_turn_of_cancelled_waiter_is_passed_on() -> None:
    turns = FairQueue(1)

    async def take() -> None:
        async with turns.turn(lambda: 0):
            pass

    async with turns.turn(lambda: 0):
        going, staying = asyncio.create_task(take()), asyncio.create_task(take())
        await asyncio.sleep(0)
    going.cancel()
    await staying
    assert going.cancelled()


def test_cpu_budget_recovers_with_time() -> None:
    now = [0.0]
    allowance = CpuBudget(lambda: now[0])
    allowance.take(MOST_S)
    assert allowance.is_used_up
    now[0] = 1 / PER_S
    assert allowance.taken_s == MOST_S - 1
    allowance.take(1)
    assert allowance.is_used_up
    now[0] = 1e9
    assert allowance.taken_s == 0


async def test_spent_budget_gets_private_unparsed_indexes(library: IndexStore) -> None:
    spent = CpuBudget()
    spent.take(2 * MOST_S)
    own = await library.build_shared(sources(a=A), spent)
    assert own.digest == ""
    assert await names(library, own, "remove cookies") == [""]  # a window, found by its words
    (segment,) = await library.segments(sources(a=A), spent)
    assert (segment.names, segment.vectors.shape[1]) == ([""], 0)
    others = await library.index(sources(a=A))
    assert await names(library, others, "remove cookies") == ["remove_cookie"]
    assert await library.build_shared(sources(a=A), spent) is others


async def test_slow_files_are_searched_unparsed_after_others() -> None:
    """The embedder ``searching:endless`` never ends at a definition called ``endless``, as some parsers would."""
    hostile = CpuBudget()
    async with IndexStore(None, embedder="tests.support.sandboxes.searching:endless", processes=1) as library:
        made = list[str]()
        slow = library.build_shared(sources(a="def endless():\n    pass\n"), hostile)
        slow.add_done_callback(lambda _: made.append("slow"))
        other = library.build_shared(sources(b=B), CpuBudget())
        other.add_done_callback(lambda _: made.append("other"))
        assert await names(library, await other, "join urls") == ["join_url"]
        assert await names(library, await slow, "endless") == [""]
    assert made == ["other", "slow"]
    assert hostile.taken_s > 1
