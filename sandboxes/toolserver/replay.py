"""Replay calls of several requests after a crash: another process makes a call again with the same effect.

A replayed call does the same work on the same answers, so it makes the same requests in the same order. Requests that
change something carry ids, so that the tool server runs none of them twice. Requests that only read would see the
call's own changes, so the caller records their answers and replays them. The caller also records that a change is about
to be made: otherwise a replay that ends before that change would lose it without notice.
"""

import contextlib
import errno
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from sandboxes.errors import AnswerLost
from sandboxes.toolserver.protocol import Op, ServerReply, request_id_of

READ_OPS = frozenset({Op.PING, Op.READ, Op.STAT, Op.WALK})


@dataclass(frozen=True, slots=True)
class RecordedRead:
    """A recorded request. ``asked``: digest of a read; ``errno`` and ``body``: its answer, as in ServerReply.

    ``changes``: the request is a change instead, of which nothing else is recorded.
    """

    asked: bytes
    errno: int = 0
    body: bytes = b""
    changes: bool = False


KeepRead = Callable[[RecordedRead], None]


class ReplayableCall:
    """A running call that can be replayed. ``seen``: records of an earlier run."""

    def __init__(self, name: str, seen: Sequence[RecordedRead], keep: KeepRead | None) -> None:
        self._name = name
        self._recorded_reads = [one for one in seen if not one.changes]
        self._recorded_changes = [one for one in seen if one.changes]
        self._record = keep
        self._read_count = self._change_count = 0

    async def read(self, op: Op, body: bytes, ask: Callable[[], Awaitable[ServerReply]]) -> ServerReply:
        if self._record is None:
            return await ask()
        asked, number = hashlib.sha256(bytes((op,)) + body).digest()[:16], self._read_count
        self._read_count += 1
        if number < len(self._recorded_reads):
            seen = self._recorded_reads[number]
            if seen.asked != asked:
                raise _diverged(self._name)
            return ServerReply(0, seen.errno, seen.body)
        answer = await ask()
        self._record(RecordedRead(asked, answer.errno, answer.body))
        return answer

    def next_change(self) -> str:
        """Record the next change, and return the id of its request."""
        if self._record is not None and self._change_count >= len(self._recorded_changes):
            self._record(RecordedRead(b"", changes=True))
        self._change_count += 1
        return f"{self._name}, request {self._change_count}"

    async def change(self, ask: Callable[[int], Awaitable[ServerReply]]) -> ServerReply:
        name = self.next_change()
        answer = await ask(request_id_of(name))
        if answer.errno == errno.EBADMSG:
            raise _diverged(self._name)
        if answer.errno == errno.ESTALE:
            raise AnswerLost(f"{name} has run, but its answer is no longer kept")
        return answer

    def check_end(self) -> None:
        """Raise AnswerLost if the call made fewer requests than the recorded run."""
        if self._read_count < len(self._recorded_reads) or self._change_count < len(self._recorded_changes):
            raise _diverged(self._name)


_current: ContextVar[ReplayableCall | None] = ContextVar("replayable call", default=None)


@contextlib.contextmanager
def repeatable(name: str, seen: Sequence[RecordedRead] = (), keep: KeepRead | None = None) -> Iterator[None]:
    """Make all requests to tool servers inside the block, also of its tasks, requests of the replayable call ``name``.

    ``name``: unique for a call in a sandbox. ``seen``: what ``keep`` got before the call was interrupted, in order.
    ``keep``: records a request; None for a call that changes nothing, which can read again (job output is still
    delivered only once). Raises AnswerLost if the call differs from its recorded run, or an answer is no longer kept.
    """
    call = ReplayableCall(name, seen, keep)
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)
    call.check_end()


def current_call() -> ReplayableCall | None:
    return _current.get()


def _diverged(name: str) -> AnswerLost:
    return AnswerLost(f"{name} cannot be replayed: its requests differ from those before the interruption")
