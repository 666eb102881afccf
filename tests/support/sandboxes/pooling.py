"""What tests of warm pools have in common."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from sandboxes import Runtime, SandboxSpec, WarmPool

WAIT_S = 60.0


async def until_ready(pool: WarmPool, spec: SandboxSpec, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while pool.ready(spec) != count:  # noqa: ASYNC110 - it tells nobody: only tests wait for it
            await asyncio.sleep(0.002)


@asynccontextmanager
async def pooled(runtime: Runtime, *specs: SandboxSpec, count: int = 2) -> AsyncIterator[WarmPool]:
    """So many of each are always ready, or on their way."""
    pool = WarmPool(runtime)
    try:
        with ExitStack() as wants:
            for spec in specs:
                wants.enter_context(pool.reserve(spec, count))
            for spec in specs:
                await until_ready(pool, spec, count)
            yield pool
    finally:
        await pool.close()
