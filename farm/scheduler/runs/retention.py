"""Retention: delete what was settled long ago, after the archive has it if there is one."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from farm.archive import ArchiveSettings, shown_url
from farm.archive.mover import MovedFile, MovedPart, MoveFailed, MoveOrder
from farm.scheduler.status import ArchiveStatus
from farm.store import RetentionStore

_LONGEST_WAIT_S = 600.0
_SHORTEST_WAIT_S = 5.0
_FIRST_RETRY_S = 10.0
_LONGEST_MESSAGE = 64 << 20
_MOST_OUTPUT = 2000
_MESSAGE: TypeAdapter[MovedFile | MoveFailed] = TypeAdapter(MovedFile | MoveFailed)

_log = logging.getLogger(__name__)


class RunsInStore(Protocol):
    async def expire(self, retention_s: float, *, archived: bool = False) -> None: ...

    async def stored_ids(self) -> list[str]: ...

    @property
    def redis_url(self) -> str: ...

    @property
    def retention(self) -> RetentionStore: ...


class MoveFailure(Exception):
    """The archive did not take what is due; the message says why."""


class Retention:
    """Deletes what was settled more than ``retention_s`` ago; 0: nothing is deleted.

    With an archive, a process of its own copies rollouts (``farm/archive/mover.py``), and only what is in the archive
    is deleted. After a failure nothing is deleted, and the next try is after ``retry_s``, then after twice the time.
    """

    def __init__(
        self,
        store: RunsInStore,
        retention_s: float,
        archive: ArchiveSettings | None = None,
        *,
        retry_s: float = _FIRST_RETRY_S,
    ) -> None:
        self._store = store
        self._retention_s = retention_s
        self._archive = archive
        self._first_retry_s = retry_s
        self._retry_s = 0.0
        self.status = ArchiveStatus(shown_url(archive.url)) if archive and retention_s else None

    async def follow(self) -> None:
        """Delete what is due, now and then, without end."""
        while True:
            wait_s = await self.once()
            await asyncio.sleep(wait_s)

    async def once(self) -> float:
        """Archive and delete what is due. Return the seconds until the next time."""
        try:
            if self._archive is not None and self._retention_s:
                await self._move(self._archive)
            await self._store.expire(self._retention_s, archived=self._archive is not None)
        except MoveFailure as error:
            return self._failed(str(error))
        except Exception as error:  # a boundary: the next round deletes the rest
            wait_s = self._interval_s
            _log.warning("delivered rollouts were not deleted: %s; the next try is in %g s", error, wait_s)
            return wait_s
        return self._interval_s

    @property
    def _interval_s(self) -> float:
        """With an archive, Redis holds little more than what is settled in ``retention_s``."""
        if self._archive is None:
            return _LONGEST_WAIT_S
        return min(_LONGEST_WAIT_S, max(_SHORTEST_WAIT_S, self._retention_s / 4))

    def _failed(self, why: str) -> float:
        assert self.status is not None
        self._retry_s = min(_LONGEST_WAIT_S, 2 * self._retry_s or self._first_retry_s)
        self.status = self.status.failed(why)
        _log.error("rollouts were not archived: %s; none is deleted; the next try is in %g s", why, self._retry_s)
        return self._retry_s

    async def _move(self, archive: ArchiveSettings) -> None:
        """Archive what is due, and delete it. Raises MoveFailure, StoreUnavailable."""
        assert self.status is not None
        for run_id in await self._store.stored_ids():
            if await self._store.retention.is_due(run_id, self._retention_s):
                break
        else:
            return
        order = MoveOrder(redis_url=self._store.redis_url, retention_s=self._retention_s, archive=archive)
        async with _mover(order) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            while line := await process.stdout.readline():
                try:
                    message = _MESSAGE.validate_json(line)
                except ValidationError:
                    raise MoveFailure("the process that copies rollouts sent no message; this is a bug") from None
                if isinstance(message, MoveFailed):
                    raise MoveFailure(message.reason)
                await self._delete(message)
                with contextlib.suppress(ConnectionError):  # its end is noticed below
                    process.stdin.write(b"deleted\n")
                    await process.stdin.drain()
            code = await process.wait()
        if code:
            raise MoveFailure(f"the process that copies rollouts ended with {code}")
        self._retry_s = 0.0
        self.status = self.status.done()

    async def _delete(self, file: MovedFile) -> None:
        assert self.status is not None
        for part in file.parts:
            await self._delete_part(part)
        if file.name:
            _log.info("%d rollouts are in the archive and deleted from Redis: %s", file.rollouts, file.name)
        for name in file.unreadable:
            _log.error("the record of %s cannot be read; it is in the folder unreadable of the archive as it was", name)
        self.status = self.status.added(file.rollouts, file.bytes, len(file.unreadable))

    async def _delete_part(self, part: MovedPart) -> None:
        await self._store.retention.forget_archived(part.run_id, part.entries, part.rollout_ids)


@asynccontextmanager
async def _mover(order: MoveOrder) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yield the process that copies rollouts. It is ended at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "farm.archive.mover"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LONGEST_MESSAGE,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    errors = asyncio.create_task(_last_output(process.stderr))
    try:
        process.stdin.write(order.model_dump_json().encode() + b"\n")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(asyncio.gather(process.wait(), errors))
        if text := errors.result():
            _log.warning("the process that copies rollouts printed: %s", text)


async def _last_output(stream: asyncio.StreamReader) -> str:
    kept = b""
    while part := await stream.read(65536):
        kept = (kept + part)[-_MOST_OUTPUT:]
    return kept.decode(errors="replace").strip()
