"""One more machine of a farm, pretended as a process: ``python -m tests.integration.cluster_process DIR ADDRESS``.

Without an address it is a head of its own. Writes a line once it is up, and ends on SIGTERM.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import SecretStr

from farm.cluster import join_farm, start_farm
from farm.cluster.port import RayScheduler
from farm.config import Config
from farm.store import Store
from tests.integration.cluster_fakes import EQUIP

JOIN_TOKEN = SecretStr("a-token-for-the-tests-of-clusters")


def cluster_config(state_dir: Path, *, slots: int = 2) -> Config:
    return Config(state_dir=state_dir, slots=slots, join_token=JOIN_TOKEN)


@asynccontextmanager
async def no_gateway(store: Store, scheduler: RayScheduler) -> AsyncIterator[str]:
    yield "http://127.0.0.1:1"


async def main(state_dir: Path, address: str | None) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    config = cluster_config(state_dir)
    farm = join_farm(config, address, equip=EQUIP) if address else start_farm(config, serve=no_gateway, equip=EQUIP)
    async with farm as running:
        print(running.info.node_id, await running.agent.pid(), flush=True)
        await over.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
