"""A real redis-server for tests: the farm's own, in a temporary directory, ended by its pid."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from farm.store import EmbeddedRedis, Store
from tests.support.services import require_program


@asynccontextmanager
async def running_redis(state_dir: Path) -> AsyncIterator[EmbeddedRedis]:
    require_program("redis-server")
    async with EmbeddedRedis(state_dir) as server:
        yield server


@asynccontextmanager
async def running_store(state_dir: Path) -> AsyncIterator[Store]:
    async with running_redis(state_dir) as server:
        store = Store(server.url)
        try:
            yield store
        finally:
            await store.close()
