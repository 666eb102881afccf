"""The write-ahead log of an episode, from which another process goes on if the episode's process is killed.

There is one file for each attempt. It holds the policy's replies before their calls run, the result of each call, and
the change before it is judged. It has to survive the process but not the machine, because no sandbox survives its
machine; so nothing waits for the disk. An entry is one write (``journal_format``). Its ``at_s`` is in seconds on the
episode's own clock, which stands still while no process runs the episode.

A new process first scans the journals of the old one, an entry at a time, and counts itself in each. It reads a journal
into memory when the episode goes on. So a journal that crashes its reader does so at most MAX_RESTARTS times, and a
node holds no more journals in memory than it runs episodes.
"""

import contextlib
import logging
import os
from array import array
from contextlib import AbstractContextManager
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote

from pydantic import TypeAdapter

from farm import __version__
from farm.core.change import Change
from farm.core.rollout import StopReason
from farm.core.run import EpisodeAssignment
from farm.episode.journal_format import (
    MOST_BYTES,
    JournalError,
    bodies,
    decode_file,
    decode_reply,
    decode_result,
    encode_reply,
    entry,
    kind_and_time,
    reply_tokens,
    unpacked,
)
from farm.episode.phase_times import Stopwatch
from farm.policy.base import Reply
from sandboxes.interface import Sandbox
from sandboxes.tools.tool import ToolResult
from sandboxes.toolserver.replay import RecordedRead, repeatable

FORMAT = 1
MAX_RESTARTS = 4
"""Limit of the processes that run one attempt, because an episode may crash its process."""

_ASSIGNMENT = TypeAdapter(EpisodeAssignment)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RecordedTurn:
    """A turn or a summary of the journal.

    ``reads``: for each call of the last turn, what it read, in order. ``started_at`` is Unix time; the other times are
    ``at_s``. ``results_left_out``: the summary was requested without the results of the turn before it.
    """

    reply: Reply
    started_at: float
    model_s: float
    replied_at_s: float
    ended_at_s: float
    results: dict[int, ToolResult] = field(default_factory=dict)
    reads: dict[int, list[RecordedRead]] = field(default_factory=dict)
    is_summary: bool = False
    results_left_out: bool = False

    @property
    def tools_s(self) -> float:
        return self.ended_at_s - self.replied_at_s

    @property
    def has_open_calls(self) -> bool:
        return not self.is_summary and len(self.results) < len(self.reply.tool_calls)


@dataclass(slots=True)
class JournalState:
    """An episode by its journal. ``seconds``: of the phases before its conversation, which began at ``began_at_s``; the
    time that resumes took is added to that. ``spent_s``: until the last entry. ``lives``: processes that have run
    it."""

    assignment: EpisodeAssignment
    sandbox_id: str
    image_digest: str
    created_at: float
    seconds: dict[str, float]
    began_at_s: float
    spent_s: float
    lives: int = 1
    turns: list[RecordedTurn] = field(default_factory=list)
    stop: StopReason | None = None
    change: Change | None = None
    forfeit: str | None = None

    @property
    def settled(self) -> bool:
        """True if the episode does not need its sandbox any more."""
        return self.change is not None or self.forfeit is not None

    @classmethod
    def read(cls, file: BinaryIO) -> tuple[Self, int]:
        """Return the state, and the length of all whole entries of ``file``. Raises JournalError."""
        past, length = None, 0
        try:
            for body, length in bodies(file):  # noqa: B007 - the last one counts
                if past is None:
                    past = cls._begun(unpacked(body))
                else:
                    past._take(unpacked(body))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise JournalError(f"an entry cannot be read: {error!r}") from None
        if past is None:
            raise JournalError("it has no whole entry")
        return past, length

    @classmethod
    def _begun(cls, record: dict[str, Any]) -> Self:
        if (record["is"], record["format"], record["version"]) != ("begun", FORMAT, __version__):
            raise JournalError("another version of the farm has written it")
        return cls(
            assignment=_ASSIGNMENT.validate_python(record["order"]),
            sandbox_id=record["sandbox"],
            image_digest=record["image"],
            created_at=record["created_at"],
            seconds=record["seconds"],
            began_at_s=record["at_s"],
            spent_s=record["at_s"],
        )

    def _take(self, record: dict[str, Any]) -> None:
        before_s, self.spent_s = self.spent_s, record["at_s"]
        match record["is"]:
            case "life":
                self.lives += 1
                self.began_at_s += self.spent_s - before_s
            case "ready":
                self.began_at_s += self.spent_s - before_s
            case "reply" | "summary" as kind:
                reply = decode_reply(record["reply"], self._last_tokens())
                times = record["started_at"], record["model_s"], self.spent_s, self.spent_s
                if self.turns:
                    self.turns[-1].reads.clear()  # its calls are over
                turn = RecordedTurn(reply, *times, is_summary=kind == "summary")
                turn.results_left_out = bool(record.get("results_left_out"))
                self.turns.append(turn)
            case "seen":
                self.turns[-1].reads.setdefault(record["call"], []).append(RecordedRead(*record["seen"]))
            case "result":
                self.turns[-1].results[record["call"]] = decode_result(record["result"])
                self.turns[-1].ended_at_s = self.spent_s
            case "stop":
                self.stop = StopReason(record["stop"])
                if self.turns and self.turns[-1].has_open_calls:
                    self.turns[-1].ended_at_s = self.spent_s
            case "change":
                self.change = Change(tuple(decode_file(*file) for file in record["files"]))
            case "forfeit":
                self.stop, self.forfeit = StopReason(record["stop"]), str(record["why"])
            case unknown:
                raise JournalError(f"no entry is called {unknown!r}")

    def _last_tokens(self) -> "array[int]":
        return reply_tokens(self.turns[-1].reply) if self.turns else array("i")


@dataclass(slots=True)
class InterruptedEpisode:
    """An interrupted episode by a scan of its journal. ``lives`` counts the process that begins. ``turn``: the number
    of its last turn. ``settled``: it does not need its sandbox any more."""

    assignment: EpisodeAssignment
    sandbox_id: str
    lives: int = 1
    turn: int = -1
    settled: bool = False
    length: int = 0

    @classmethod
    def find(cls, path: Path) -> Self:
        """Scan a journal, and write down that one more process goes on with it. Raises JournalError or OSError."""
        left, at_s = None, 0.0
        with path.open("r+b") as file:
            for body, end in bodies(file):
                if left is None:
                    past = JournalState._begun(unpacked(body))
                    left = cls(past.assignment, past.sandbox_id)
                kind, at_s = kind_and_time(body)
                left.lives += kind == "life"
                left.turn += kind == "reply"
                left.settled |= kind in ("change", "forfeit")
                left.length = end
            if left is None:
                raise JournalError("it has no whole entry")
            if left.lives >= MAX_RESTARTS:
                raise JournalError(f"{left.lives} processes have ended while they ran it")
            file.seek(left.length)
            file.truncate()
            left.lives, left.length = left.lives + 1, left.length + file.write(entry("life", at_s, {}))
        return left


class EpisodeJournal:
    """The journal of one episode at ``path``; without a path nothing is written.

    ``length``: bytes that an earlier process left there. After ``recall``, ``past`` is their state. ``sandbox``: the
    sandbox of the interrupted episode, if it is still needed. A journal that cannot be written is removed.
    """

    def __init__(self, path: Path | None = None, length: int = 0) -> None:
        self.past: JournalState | None = None
        self.sandbox: Sandbox | None = None
        self._path = path
        self._length = length
        self._file: int | None = None
        self._watch = Stopwatch()
        self._tokens: array[int] = array("i")

    def recall(self) -> None:
        """Read what an earlier process left, if anything. Blocks. Raises JournalError or OSError."""
        if self._path is None or not self._length:
            return
        with self._path.open("rb") as file:
            self.past, length = JournalState.read(file)
        if length != self._length:
            raise JournalError("it changed after it was scanned")

    def begin(self, assignment: EpisodeAssignment, sandbox: Sandbox, created_at: float, watch: Stopwatch) -> None:
        """Write the first entry, when the conversation begins."""
        self._open(watch, os.O_TRUNC)
        self._write(
            "begun",
            format=FORMAT,
            version=__version__,
            order=_ASSIGNMENT.dump_python(assignment, mode="json"),
            sandbox=sandbox.id,
            image=sandbox.image_digest,
            created_at=created_at,
            seconds=dict(watch.seconds),
        )

    def resume(self, watch: Stopwatch) -> None:
        """Write after the entries of ``past``."""
        assert self.past is not None
        self._tokens = self.past._last_tokens()
        self._open(watch, 0)

    def mark_resumed(self) -> None:
        """Write that the conversation goes on; the time of the resume is not the policy's."""
        self._write("ready")

    def record_reply(self, reply: Reply, started_at: float, model_s: float) -> None:
        """Write a reply, before any of its calls runs."""
        self._record("reply", reply, started_at=started_at, model_s=model_s)

    def record_summary(self, reply: Reply, started_at: float, model_s: float, *, results_left_out: bool) -> None:
        """Write a summary, before a context begins with it."""
        self._record("summary", reply, started_at=started_at, model_s=model_s, results_left_out=results_left_out)

    def _record(self, kind: str, reply: Reply, **fields: Any) -> None:
        if self._file is None:
            return
        self._write(kind, reply=encode_reply(reply, self._tokens), **fields)
        self._tokens = reply_tokens(reply)

    def record_read(self, call: int, read: RecordedRead) -> None:
        self._write("seen", call=call, seen=astuple(read))

    def record_result(self, call: int, result: ToolResult) -> None:
        """Write the result of a call of the last reply."""
        self._write("result", call=call, result=asdict(result))

    def record_stop(self, stop: StopReason) -> None:
        """Write that the conversation is over."""
        self._write("stop", stop=str(stop))

    def record_change(self, change: Change) -> None:
        files = [[file.path, str(file.kind), file.content, file.executable] for file in change.files]
        self._write("change", files=files)

    def record_forfeit(self, stop: StopReason | None, why: str) -> None:
        self._write("forfeit", stop=str(stop), why=why)

    def remove(self) -> None:
        self._close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _open(self, watch: Stopwatch, flags: int) -> None:
        self._watch = watch
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            flags |= os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self._path, flags, 0o600)
            os.truncate(self._file, self._length)
        except OSError as error:
            self._give_up(error)

    def _write(self, kind: str, **fields: Any) -> None:
        if self._file is None:
            return
        try:
            record = entry(kind, self._watch.total_s, fields)
            self._length += len(record)
            if self._length > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            while record:
                record = record[os.write(self._file, record) :]
        except (OSError, ValueError, TypeError, OverflowError) as error:  # also what msgpack cannot hold
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Remove the journal. The episode goes on; after an interruption it would start over."""
        _log.warning("the journal of an episode cannot be written and was removed: %s", error)
        self.remove()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class TurnJournal:
    """The calls of one turn in a journal, with what an earlier process recorded of them."""

    def __init__(self, journal: EpisodeJournal, turn: int, past: RecordedTurn | None = None) -> None:
        self._journal = journal
        self._turn = turn
        self._past = past

    def call(self, call: int, *, reads_only: bool) -> AbstractContextManager[None]:
        """Name the requests of a call, and record what it reads, unless it only reads and can simply run again."""
        reads = self._past.reads.get(call, ()) if self._past else ()
        keep = None if reads_only else partial(self._journal.record_read, call)
        return repeatable(f"turn {self._turn}, call {call}", reads, keep)

    def ended(self, call: int, result: ToolResult) -> None:
        self._journal.record_result(call, result)


class JournalDirectory:
    """The journals of a node, in a directory of their own. Files there that cannot be used are removed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of(self, assignment: EpisodeAssignment) -> EpisodeJournal:
        """Return the journal of a new attempt."""
        return EpisodeJournal(self._directory / f"{quote(assignment.rollout_id, safe='')}.{assignment.attempt}")

    def find_interrupted(self) -> list[tuple[EpisodeJournal, InterruptedEpisode]]:
        """Scan the journals that a killed process left, and count one more process in each. Blocks."""
        interrupted = []
        for path in sorted(self._directory.glob("*")):
            try:
                left = InterruptedEpisode.find(path)
                interrupted.append((EpisodeJournal(path, left.length), left))
            except Exception as error:  # no content of a file may keep an agent from coming up
                _log.warning("the episode of %s starts over: %s", path, error)
                with contextlib.suppress(OSError):
                    path.unlink()
        return interrupted
