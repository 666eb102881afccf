"""What an episode has been told so far, on disk: where its process is killed, another goes on from there.

One file per attempt: the policy's replies before their calls are run, what came of each call, the change before it is
judged. It outlives the process, not the machine, and neither does a sandbox; so nothing waits for the disk. An entry is
one write (``entries``), and is told with ``at_s``, seconds on the episode's own clock, which stands still while no
process runs it.

What is left of a process that was killed is looked through first, an entry at a time, and the life that begins is
written down; it is read into memory when its episode goes on. So a journal that takes its reader with it does so
MAX_RESTARTS times at most, and a node holds no more of them than it runs.
"""

import contextlib
import logging
import os
from array import array
from contextlib import AbstractContextManager
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote

from pydantic import TypeAdapter

from farm import __version__
from farm.core.change import Change, ChangeKind, FileChange
from farm.core.rollout import StopReason, WeightSpan
from farm.core.run import EpisodeAssignment
from farm.episode.journal_format import MOST_BYTES, JournalError, bodies, entry, kind_and_time, unpacked
from farm.episode.phase_times import Stopwatch
from farm.policy.base import Reply, Sampled, ToolCall
from sandboxes.interface import Sandbox
from sandboxes.tools.tool import ToolErrorKind, ToolResult
from sandboxes.toolserver.replay import RecordedRead, repeatable

FORMAT = 1
MAX_RESTARTS = 4
"""An episode that takes its process with it is not begun for ever."""

_ORDER = TypeAdapter(EpisodeAssignment)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RecordedTurn:
    """``seen``: of each call of the last turn what it looked at, in order. ``started_at`` is Unix time; the other times
    are ``at_s``."""

    reply: Reply
    started_at: float
    model_s: float
    replied_at_s: float
    ended_at_s: float
    results: dict[int, ToolResult] = field(default_factory=dict)
    seen: dict[int, list[RecordedRead]] = field(default_factory=dict)

    @property
    def tools_s(self) -> float:
        return self.ended_at_s - self.replied_at_s


@dataclass(slots=True)
class JournalState:
    """An episode as its journal tells it. ``seconds``: of the phases before its conversation, which began at
    ``began_at_s``, later by what was spent on coming back; ``spent_s``: until the last record. ``lives``: processes
    that have run it."""

    order: EpisodeAssignment
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
        """Whether nothing more is wanted of its sandbox."""
        return self.change is not None or self.forfeit is not None

    @classmethod
    def read(cls, file: BinaryIO) -> tuple[Self, int]:
        """With the length of what is whole in ``file``. Raises JournalError."""
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
            order=_ORDER.validate_python(record["order"]),
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
            case "reply":
                reply = _reply(record["reply"], self._last_tokens())
                times = record["started_at"], record["model_s"], self.spent_s, self.spent_s
                if self.turns:
                    self.turns[-1].seen.clear()  # its calls are over
                self.turns.append(RecordedTurn(reply, *times))
            case "seen":
                self.turns[-1].seen.setdefault(record["call"], []).append(RecordedRead(*record["seen"]))
            case "result":
                self.turns[-1].results[record["call"]] = _result(record["result"])
                self.turns[-1].ended_at_s = self.spent_s
            case "stop":
                self.stop = StopReason(record["stop"])
                if self.turns and len(self.turns[-1].results) < len(self.turns[-1].reply.tool_calls):
                    self.turns[-1].ended_at_s = self.spent_s
            case "change":
                self.change = Change(tuple(_file(*file) for file in record["files"]))
            case "forfeit":
                self.stop, self.forfeit = StopReason(record["stop"]), str(record["why"])
            case unknown:
                raise JournalError(f"no entry is called {unknown!r}")

    def _last_tokens(self) -> "array[int]":
        return _tokens(self.turns[-1].reply) if self.turns else array("i")


@dataclass(slots=True)
class InterruptedEpisode:
    """What a look through a journal tells of an episode that was cut off, before it is read. ``lives``: with the one
    that begins. ``turn``: at which it is. ``settled``: nothing more is wanted of its sandbox."""

    order: EpisodeAssignment
    sandbox_id: str
    lives: int = 1
    turn: int = -1
    settled: bool = False
    length: int = 0

    @classmethod
    def find(cls, path: Path) -> Self:
        """And write down that one more process goes on with it. Raises JournalError or OSError."""
        left, at_s = None, 0.0
        with path.open("r+b") as file:
            for body, end in bodies(file):
                if left is None:
                    past = JournalState._begun(unpacked(body))
                    left = cls(past.order, past.sandbox_id)
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
    """Where an episode is written down: at ``path``, or nowhere. ``length``: so much is left there by another process;
    ``past`` is that, once it is recalled, and ``sandbox`` its sandbox, where that is needed.

    One that cannot be written any more is given up.
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
        """Read what is left there, if anything is. Blocks. Raises JournalError or OSError."""
        if self._path is None or not self._length:
            return
        with self._path.open("rb") as file:
            self.past, length = JournalState.read(file)
        if length != self._length:
            raise JournalError("it is not as it was found")

    def begin(self, order: EpisodeAssignment, sandbox: Sandbox, created_at: float, watch: Stopwatch) -> None:
        """With its conversation."""
        self._open(watch, os.O_TRUNC)
        self._write(
            "begun",
            format=FORMAT,
            version=__version__,
            order=_ORDER.dump_python(order, mode="json"),
            sandbox=sandbox.id,
            image=sandbox.image_digest,
            created_at=created_at,
            seconds=dict(watch.seconds),
        )

    def resume(self, watch: Stopwatch) -> None:
        """After ``past``."""
        assert self.past is not None
        self._tokens = self.past._last_tokens()
        self._open(watch, 0)

    def mark_resumed(self) -> None:
        """The conversation goes on; what was spent since it was cut off is not the policy's time."""
        self._write("ready")

    def record_reply(self, reply: Reply, started_at: float, model_s: float) -> None:
        """Before any of its calls is run."""
        if self._file is None:
            return
        self._write("reply", reply=_told(reply, self._tokens), started_at=started_at, model_s=model_s)
        self._tokens = _tokens(reply)

    def record_read(self, call: int, seen: RecordedRead) -> None:
        self._write("seen", call=call, seen=astuple(seen))

    def record_result(self, call: int, result: ToolResult) -> None:
        """A call of the last reply."""
        self._write("result", call=call, result=asdict(result))

    def record_stop(self, stop: StopReason) -> None:
        """The conversation is over."""
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

    def _write(self, kind: str, **told: Any) -> None:
        if self._file is None:
            return
        try:
            record = entry(kind, self._watch.total_s, told)
            self._length += len(record)
            if self._length > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            while record:
                record = record[os.write(self._file, record) :]
        except (OSError, ValueError, TypeError, OverflowError) as error:  # also what msgpack cannot hold
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """The episode goes on; cut off it would begin anew."""
        _log.warning("an episode is no longer written down: %s", error)
        self.remove()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class TurnJournal:
    """The calls of one turn in a journal, and what is known of them from before the process came back."""

    def __init__(self, journal: EpisodeJournal, turn: int, past: RecordedTurn | None = None) -> None:
        self._journal = journal
        self._turn = turn
        self._past = past

    def call(self, call: int, *, reads_only: bool) -> AbstractContextManager[None]:
        """Its requests go by its name; one that only reads may look anew, what others looked at is kept."""
        seen = self._past.seen.get(call, ()) if self._past else ()
        keep = None if reads_only else partial(self._journal.record_read, call)
        return repeatable(f"turn {self._turn}, call {call}", seen, keep)

    def ended(self, call: int, result: ToolResult) -> None:
        self._journal.record_result(call, result)


class JournalDirectory:
    """A node's, in a directory of its own. What cannot be used there is removed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of(self, order: EpisodeAssignment) -> EpisodeJournal:
        """Of an attempt that is yet to begin."""
        return EpisodeJournal(self._directory / f"{quote(order.rollout_id, safe='')}.{order.attempt}")

    def find_interrupted(self) -> list[tuple[EpisodeJournal, InterruptedEpisode]]:
        """Those of a process that was killed, each yet to be recalled; one life less is left to each. Blocks."""
        found = []
        for path in sorted(self._directory.glob("*")):
            try:
                left = InterruptedEpisode.find(path)
                found.append((EpisodeJournal(path, left.length), left))
            except Exception as error:  # whatever is written there must not keep an agent from coming up
                _log.warning("the episode of %s begins anew: %s", path, error)
                with contextlib.suppress(OSError):
                    path.unlink()
        return found


def _tokens(reply: Reply) -> "array[int]":
    return reply.sampled.prompt_token_ids + reply.sampled.token_ids if reply.sampled else array("i")


def _told(reply: Reply, before: "array[int]") -> dict[str, Any]:
    """``before``: the tokens up to here, with which a prompt mostly begins: so they are not written again."""
    told = asdict(replace(reply, sampled=None))
    if sampled := reply.sampled:
        kept = len(before) if sampled.prompt_token_ids[: len(before)] == before else 0
        told["sampled"] = {
            "kept": kept,
            "prompt": sampled.prompt_token_ids[kept:].tobytes(),
            "tokens": sampled.token_ids.tobytes(),
            "logprobs": sampled.logprobs.tobytes(),
            "versions": [[span.version, span.start, span.end] for span in sampled.weight_versions],
        }
    return told


def _reply(told: dict[str, Any], before: "array[int]") -> Reply:
    sampled = told["sampled"]
    return Reply(
        **{
            **told,
            "tool_calls": tuple(ToolCall(**call) for call in told["tool_calls"]),
            "stop": StopReason(told["stop"]) if told["stop"] else None,
            "sampled": sampled and _sampled(sampled, before),
        }
    )


def _sampled(told: dict[str, Any], before: "array[int]") -> Sampled:
    return Sampled(
        before[: told["kept"]] + array("i", told["prompt"]),
        array("i", told["tokens"]),
        array("f", told["logprobs"]),
        tuple(WeightSpan(*span) for span in told["versions"]),
    )


def _result(told: dict[str, Any]) -> ToolResult:
    kind = told["error_kind"]
    return ToolResult(**{**told, "error_kind": ToolErrorKind(kind) if kind else None})


def _file(path: str, kind: str, content: bytes, executable: bool) -> FileChange:
    return FileChange(path, ChangeKind(kind), content, executable)
