"""One more machine of a farm, pretended as a process: ``python -m`` this, with ``DIR [ADDRESS [TOKEN]]``.

Without an address it is a head of its own. Writes a line once it is up, and ends on SIGTERM.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import SecretStr

from farm.cluster import ClusterError
from farm.cluster.launch import GatewayConfig, join_farm, start_farm
from farm.config import Config
from tests.support.farm.cluster_fakes import EQUIP

JOIN_TOKEN = "a-token-for-the-tests-of-clusters"


def cluster_config(state_dir: Path, *, token: str = JOIN_TOKEN) -> Config:
    return Config(state_dir=state_dir, slots=2, join_token=SecretStr(token))


@asynccontextmanager
async def no_gateway(plan: GatewayConfig) -> AsyncIterator[str]:
    yield "http://127.0.0.1:1"


async def main(state_dir: Path, address: str | None = None, token: str = JOIN_TOKEN) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    config = cluster_config(state_dir, token=token)
    farm = join_farm(config, address, equip=EQUIP) if address else start_farm(config, serve=no_gateway, equip=EQUIP)
    try:
        async with farm as running:
            print(running.info.node_id, await running.agent.pid(), flush=True)
            await over.wait()
    except ClusterError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
