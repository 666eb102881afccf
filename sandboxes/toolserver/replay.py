"""Calls of several requests that another process may make again, to the same effect and to no other.

Who makes a call again does the same work on the same answers, so it makes the same requests in the same order. Those
that change something carry ids, by which the tool server runs none of them twice. Those that only look would see what
the call itself has changed since: so their answers are kept by the caller, and told again. That something is about to
be changed is kept as well: or a call that knows less than it did, as one that takes an edit back, would end without
what it has done, and nobody would notice.
"""

import contextlib
import errno
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from sandboxes.errors import AnswerLost
from sandboxes.toolserver.protocol import Op, ServerReply, chosen_id

LOOKS = frozenset({Op.PING, Op.READ, Op.STAT, Op.WALK})


@dataclass(frozen=True, slots=True)
class RecordedRead:
    """What a request that only looks was answered. ``asked`` is a digest of it; ``errno`` and ``body`` as in Answer.

    Of one that ``changes`` something: that it was made.
    """

    asked: bytes
    errno: int = 0
    body: bytes = b""
    changes: bool = False


KeepRead = Callable[[RecordedRead], None]


class ReplayableCall:
    """A call under way."""

    def __init__(self, name: str, seen: Sequence[RecordedRead], keep: KeepRead | None) -> None:
        self._name = name
        self._looked = [one for one in seen if not one.changes]
        self._changed = [one for one in seen if one.changes]
        self._keep = keep
        self._looks = self._changes = 0

    async def look(self, op: Op, body: bytes, ask: Callable[[], Awaitable[ServerReply]]) -> ServerReply:
        if self._keep is None:
            return await ask()
        asked, number = hashlib.sha256(bytes((op,)) + body).digest()[:16], self._looks
        self._looks += 1
        if number < len(self._looked):
            seen = self._looked[number]
            if seen.asked != asked:
                raise _went_otherwise(self._name)
            return ServerReply(0, seen.errno, seen.body)
        answer = await ask()
        self._keep(RecordedRead(asked, answer.errno, answer.body))
        return answer

    def next_change(self) -> str:
        """The name of its next request that changes something, which is about to be made."""
        if self._keep is not None and self._changes >= len(self._changed):
            self._keep(RecordedRead(b"", changes=True))
        self._changes += 1
        return f"{self._name}, request {self._changes}"

    async def change(self, ask: Callable[[int], Awaitable[ServerReply]]) -> ServerReply:
        name = self.next_change()
        answer = await ask(chosen_id(name))
        if answer.errno == errno.EBADMSG:
            raise _went_otherwise(self._name)
        if answer.errno == errno.ESTALE:
            raise AnswerLost(f"{name} has run, and what it answered is no longer known")
        return answer

    def check_end(self) -> None:
        """Raises AnswerLost where it made fewer requests than before."""
        if self._looks < len(self._looked) or self._changes < len(self._changed):
            raise _went_otherwise(self._name)


_current: ContextVar[ReplayableCall | None] = ContextVar("the call that may be made again", default=None)


@contextlib.contextmanager
def repeatable(name: str, seen: Sequence[RecordedRead] = (), keep: KeepRead | None = None) -> Iterator[None]:
    """Within it all requests to a tool server, also of tasks begun there, are those of the call ``name``.

    A name stands for one call in a sandbox. ``seen``: what ``keep`` was given before the call was cut off, in order.
    ``keep`` None: the call changes nothing, so that it may look anew; what a job has said is told once all the same.
    AnswerLost is raised where the call does not go as it went before, also by the end of the block where it has made
    fewer requests, or an answer is forgotten.
    """
    call = ReplayableCall(name, seen, keep)
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)
    call.check_end()


def call_under_way() -> ReplayableCall | None:
    return _current.get()


def _went_otherwise(name: str) -> AnswerLost:
    return AnswerLost(f"{name} does not go on as it began before it was cut off")
