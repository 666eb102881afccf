"""The task bundles of a node: fetched once from the store, cached on disk and, unpacked, in memory."""

import asyncio
import os
from pathlib import Path
from typing import Protocol

from farm.async_lru import AsyncLru
from farm.core.run import TaskRef
from farm.tasks import BadBundle, TaskBundle, TaskError, unpack

KEPT = 64


class BundleSource(Protocol):
    async def get_bundle(self, digest: str) -> bytes | None: ...


class TaskCache:
    """Task bundles by digest. ``directory`` may be deleted at any time, also while the cache is in use."""

    def __init__(self, source: BundleSource, directory: Path) -> None:
        self._source = source
        self._directory = directory
        self._kept = AsyncLru[str, TaskBundle](KEPT)

    async def get(self, task: TaskRef) -> TaskBundle:
        """Return the bundle of a task. Raises TaskError if the store does not hold it, and what the source raises."""

        async def load() -> TaskBundle:
            return await self._on_disk(task) or await self._fetch(task)

        return await self._kept.get(task.digest, load)

    async def _on_disk(self, task: TaskRef) -> TaskBundle | None:
        path = self._path(task)

        def read() -> TaskBundle | None:
            try:
                return unpack(path.read_bytes())
            except FileNotFoundError:
                return None
            except BadBundle:
                path.unlink(missing_ok=True)
                return None

        return await asyncio.to_thread(read)

    async def _fetch(self, task: TaskRef) -> TaskBundle:
        data = await self._source.get_bundle(task.digest)
        if data is None:
            raise TaskError(task.id, f"its bundle {task.digest[:12]} is not in the store", "submit the run again")
        try:
            bundle = await asyncio.to_thread(unpack, data)
        except BadBundle as error:
            raise TaskError(task.id, f"its bundle cannot be read: {error}", "submit the run again") from None
        await asyncio.to_thread(self._keep, self._path(task), data)
        return bundle

    def _keep(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_bytes(data)
        fresh.replace(path)

    def _path(self, task: TaskRef) -> Path:
        return self._directory / task.digest.removeprefix("sha256:")
