"""What an episode's journal holds is read back as it was told, or it is of no use; nothing in between."""

import asyncio
import contextlib
import io
import os
import stat
import time
import tracemalloc
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

import farm.episode.journal.state
import farm.episode.journal.writer
from farm import __version__
from farm.core.change import Change, ChangeKind, FileChange
from farm.core.rollout import StopReason, WeightSpan
from farm.core.run import EpisodeAssignment, PolicySpec
from farm.episode.journal import MAX_RESTARTS, EpisodeJournal, JournalDirectory, JournalState
from farm.episode.journal.entries import JournalError, encode_reply, entry
from farm.episode.phase_times import Stopwatch
from farm.policy.base import Reply, Sampled
from sandboxes.interface import MIB
from sandboxes.spec import SandboxSpec
from sandboxes.tools.tool import ToolErrorKind, ToolResult
from sandboxes.toolserver.replay import RecordedRead
from tests.support.farm.episode_values import call, fake, order, sampled, say

FIRST = say(call("bash", {"command": "\udcff ls"}, "a"), call("submit", "", "b"), sampled=sampled([1, 2], [3, 4]))
SECOND = say(
    content="done \ud800",
    reasoning="why",
    stop=StopReason.PARSE_ERROR,
    sampled=Sampled(array("i", [1, 2, 3, 4, 9]), array("i", [5]), array("f", [-0.25]), (WeightSpan(4, 0, 1),)),
)
UNLIKE = say(distrust="no", sampled=sampled([7], [8]), prompt_tokens=2**40)
RESULT = ToolResult("out \udc80", ToolErrorKind.TIMEOUT, None, True, True, 1.5)
CHANGE = Change(
    (FileChange("a", ChangeKind.WRITE, b"\0\xff", True), FileChange("b\udcff", ChangeKind.DELETE)),
)
ORDER = order(attempt=2, policy=PolicySpec("openai", "http://h/v1", "m", {"seed": 1, "stop": "x", "top_p": 0.5}))


def only(directory: Path) -> Path:
    """Return the only path in the directory."""
    [path] = directory.iterdir()
    return path


def nothing(directory: Path) -> bool:
    return not any(directory.iterdir())


def opened(path: Path) -> int:
    """Return the number of open descriptors of the path in this process, also if the file was removed."""
    leads = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed just now
            leads.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return leads.count(str(path)) + leads.count(f"{path} (deleted)")


async def written(directory: Path) -> Path:
    """Write the journal of an episode that was resumed once, and return its path."""
    sandbox = await fake().create(SandboxSpec("task:1"))
    journal = JournalDirectory(directory).of(ORDER)
    watch = Stopwatch(5.0)
    watch.add("boot_s", 0.25)
    journal.begin(ORDER, sandbox, 1000.5, watch)
    journal.record_reply(FIRST, 1001.0, 0.5)
    journal.record_read(0, RecordedRead(b"d", 2, b""))
    journal.record_read(0, RecordedRead(b"e", 0, b"text"))
    journal.record_read(0, RecordedRead(b"", changes=True))
    journal.record_result(1, RESULT)
    [(again, left)] = JournalDirectory(directory).find_interrupted()
    assert (left.assignment, left.sandbox_id, left.turn, left.settled, left.lives) == (ORDER, sandbox.id, 0, False, 2)
    again.recall()
    assert again.past
    assert again.past.turns[0].reads == {
        0: [RecordedRead(b"d", 2, b""), RecordedRead(b"e", 0, b"text"), RecordedRead(b"", changes=True)],
    }
    again.resume(Stopwatch(again.past.spent_s))
    again.mark_resumed()
    again.record_reply(UNLIKE, 1002.0, 0.5)
    again.record_reply(SECOND, 1003.0, 0.5)
    again.record_stop(StopReason.PARSE_ERROR)
    again.record_change(CHANGE)
    return only(directory)


async def test_journal_returns_all_recorded_entries(tmp_path: Path) -> None:
    began_s = time.monotonic()
    path = await written(tmp_path / "episodes")
    most_s = 5.0 + time.monotonic() - began_s
    assert path.name == "run-g000000-001.2"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    past, length = JournalState.read(io.BytesIO(path.read_bytes()))
    assert length == path.stat().st_size
    assert (past.assignment, past.created_at, past.seconds, past.lives) == (ORDER, 1000.5, {"boot_s": 0.25}, 2)
    assert [turn.reply for turn in past.turns] == [FIRST, UNLIKE, SECOND]
    first, second, _ = past.turns
    assert (first.results, first.started_at, first.model_s) == ({1: RESULT}, 1001.0, 0.5)
    assert first.reads == {}  # of interest to a call that has not ended
    assert 5.0 < first.replied_at_s < first.ended_at_s < second.replied_at_s < past.spent_s < most_s
    assert 5.0 < past.began_at_s < past.spent_s  # not of necessity before the first reply: it is later by the return
    assert (past.stop, past.change, past.settled) == (StopReason.PARSE_ERROR, CHANGE, True)


async def test_journal_returns_summaries_in_their_place(tmp_path: Path) -> None:
    """A summary is no turn of the episode, and its calls are never open."""
    sandbox = await fake().create(SandboxSpec("task:1"))
    journal = JournalDirectory(tmp_path).of(ORDER)
    journal.begin(ORDER, sandbox, 0.0, Stopwatch())
    summary = say(call("bash"), content="short", sampled=sampled([1, 2, 3, 4, 5], [6]))
    journal.record_reply(FIRST, 1001.0, 0.5)
    journal.record_result(0, RESULT)
    journal.record_summary(summary, 1002.0, 0.25, results_left_out=True)
    journal.record_stop(StopReason.CONTEXT_LENGTH)
    past, _ = JournalState.read(io.BytesIO(only(tmp_path).read_bytes()))
    assert [turn.reply for turn in past.turns] == [FIRST, summary]
    assert [(turn.is_summary, turn.results_left_out) for turn in past.turns] == [(False, False), (True, True)]
    assert past.turns[1].tools_s == 0.0
    [(_, left)] = JournalDirectory(tmp_path).find_interrupted()
    assert left.turn == 0


def test_journal_entry_without_new_fields_is_read() -> None:
    """An order of an earlier version names no harness, and its replies say nothing about summaries."""
    asked = TypeAdapter(EpisodeAssignment).dump_python(ORDER, mode="json")
    del asked["harness"]
    begun = entry(
        "begun",
        1.0,
        {
            "format": 1,
            "version": __version__,
            "order": asked,
            "sandbox": "s",
            "image": "i",
            "created_at": 1.0,
            "seconds": {},
        },
    )
    reply = entry("reply", 2.0, {"reply": encode_reply(FIRST, array("i")), "started_at": 1.0, "model_s": 1.0})
    past, _ = JournalState.read(io.BytesIO(begun + reply))
    assert past.assignment == ORDER
    assert [(turn.reply, turn.is_summary, turn.results_left_out) for turn in past.turns] == [(FIRST, False, False)]


async def test_journal_stores_growing_prompt_once(tmp_path: Path) -> None:
    sandbox = await fake().create(SandboxSpec("task:1"))
    journal = JournalDirectory(tmp_path).of(ORDER)
    journal.begin(ORDER, sandbox, 0.0, Stopwatch())
    context: list[int] = []
    for turn in range(50):
        reply = say(sampled=sampled([*context, turn], [turn] * 200))
        assert reply.sampled
        journal.record_reply(reply, 0.0, 0.0)
        context = [*reply.sampled.prompt_token_ids, *reply.sampled.token_ids]
    path = only(tmp_path)
    assert path.stat().st_size < 4 * 2 * len(context) + 50 * 500


async def test_torn_entry_is_ignored_and_overwritten(tmp_path: Path) -> None:
    path = await written(tmp_path / "episodes")
    whole = path.read_bytes()
    ends = []
    for length in range(len(whole)):
        try:
            ends.append(JournalState.read(io.BytesIO(whole[:length]))[1])
        except JournalError as error:
            assert "no whole entry" in str(error)  # noqa: PT017 - of the shortest only
    assert len(set(ends)) == 11
    path.write_bytes(whole[:-1])
    [(journal, left)] = JournalDirectory(path.parent).find_interrupted()
    assert (left.turn, left.settled) == (2, False)
    journal.recall()
    assert journal.past
    assert (journal.past.stop, journal.past.change) == (StopReason.PARSE_ERROR, None)
    journal.resume(Stopwatch(journal.past.spent_s))
    journal.record_forfeit(StopReason.SANDBOX_LOST, "lost")
    past, length = JournalState.read(io.BytesIO(path.read_bytes()))
    assert (past.lives, past.stop, past.forfeit) == (3, StopReason.SANDBOX_LOST, "lost")
    assert length == path.stat().st_size
    journal.remove()
    journal.remove()
    assert nothing(path.parent)


@pytest.fixture(scope="module")
def bytes_of_one(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return asyncio.run(written(tmp_path_factory.mktemp("state") / "episodes")).read_bytes()


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 10_000), value=st.integers(1, 255))
def test_modified_journal_is_refused(bytes_of_one: bytes, at: int, value: int) -> None:
    at %= len(bytes_of_one)
    changed = bytearray(bytes_of_one)
    changed[at] ^= value
    with pytest.raises(JournalError):
        JournalState.read(io.BytesIO(changed))


async def test_unusable_journals_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = await written(tmp_path / "episodes")
    (path.parent / "garbage").write_bytes(b"\x93" * 100)
    (path.parent / "empty").touch()
    [(_, left)] = JournalDirectory(path.parent).find_interrupted()
    assert (left.assignment, left.settled) == (ORDER, True)
    assert only(path.parent) == path
    monkeypatch.setattr(farm.episode.journal.state, "__version__", "0.0.other")
    assert JournalDirectory(path.parent).find_interrupted() == []
    assert not path.exists()


async def test_episode_that_kills_process_has_limited_restarts(tmp_path: Path) -> None:
    """A restart also counts if the process ends while the journal is read."""
    path = await written(tmp_path / "episodes")
    lives = 2
    while found := JournalDirectory(path.parent).find_interrupted():
        [(_, left)] = found
        lives += 1
        assert left.lives == lives
        assert JournalState.read(io.BytesIO(path.read_bytes()))[0].lives == lives
    assert lives == MAX_RESTARTS
    assert not path.exists()


async def test_listing_interrupted_episodes_uses_little_memory(tmp_path: Path) -> None:
    sandbox = await fake().create(SandboxSpec("task:1"))
    for number in range(4):
        asked = order(rollout_id=f"run-{number}")
        journal = JournalDirectory(tmp_path).of(asked)
        journal.begin(asked, sandbox, 0.0, Stopwatch())
        for _ in range(4):
            journal.record_reply(say(content="x" * MIB), 0.0, 0.0)
    tracemalloc.start()
    try:
        found = JournalDirectory(tmp_path).find_interrupted()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [left.turn for _, left in found] == [3] * 4
    assert most < 6 * MIB


@pytest.mark.parametrize("tokens", [2**70, 0])
async def test_journal_that_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    """A number is too large to encode, or the journal reaches its size limit."""
    sandbox = await fake().create(SandboxSpec("task:1"))
    journal = JournalDirectory(tmp_path).of(ORDER)
    journal.begin(ORDER, sandbox, 0.0, Stopwatch())
    path = only(tmp_path)
    assert opened(path) == 1
    monkeypatch.setattr(farm.episode.journal.writer, "MOST_BYTES", 2000)
    journal.record_reply(Reply("x" * 2000 * (not tokens), (), "stop", prompt_tokens=tokens), 0.0, 0.0)
    assert nothing(tmp_path)
    assert opened(path) == 0
    journal.record_stop(StopReason.AGENT_DONE)
    journal.remove()


async def test_journal_in_missing_directory_is_skipped(tmp_path: Path) -> None:
    sandbox = await fake().create(SandboxSpec("task:1"))
    journal = EpisodeJournal(tmp_path / "missing" / "too" / "journal")
    journal.begin(ORDER, sandbox, 0.0, Stopwatch())
    journal.record_reply(FIRST, 0.0, 0.0)
    journal.remove()
