"""``start``: the time from the request for a sandbox to its first tool result, and the throughput of whole
lifecycles.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import docker

from farm.bench import docker_containers
from farm.bench.interleave import Side, in_turn
from farm.bench.results import BenchError, Figure
from farm.bench.tool_calls import BenchCalls
from sandboxes import SandboxSpec, WarmPool

BASELINE = "docker_api"
CONCURRENCY = 8
_STARTS, _DOCKER_STARTS = 10, 2
_LIVES, _DOCKER_LIVES = 10 * CONCURRENCY, 2 * CONCURRENCY
_POOLED = 4
_POOL_S = 30.0


async def measure_start(
    spec: SandboxSpec, pool: WarmPool, *, docker_host: str | None, rounds: int, on_round: Callable[[int], None]
) -> tuple[Figure, ...]:
    """Alternate for ``rounds`` rounds: single starts and concurrent lifecycles, by the farm and by the Docker SDK.

    Another side starts from the warm pool, which boots a replacement in the meantime. The image must exist and have
    ``sh`` and ``sleep``.
    """
    tool_calls = BenchCalls()
    pooled_spec = replace(spec, env={"FARM_BENCH": "pooled"})  # a different spec, so that all other starts are cold

    async def start_of(kind: SandboxSpec) -> float:
        began = time.perf_counter()
        async with pool.scope(kind) as sandbox:
            await tool_calls.run_true(sandbox)
            return time.perf_counter() - began

    async def start() -> float:
        return await start_of(spec)

    async def start_from_pool() -> float:
        with pool.reserve(pooled_spec, _POOLED):
            await _fill(pool, pooled_spec)
            handed_out = pool.handed_out
            took_s = await start_of(pooled_spec)
        if pool.handed_out == handed_out:
            raise BenchError("the sandbox did not come from the warm pool")
        return took_s

    async with docker_containers.connect(docker_host, CONCURRENCY) as daemon:

        async def start_by_docker() -> float:
            return await daemon.run(_start_and_exec)

        def _start_and_exec(client: docker.DockerClient) -> float:
            began = time.perf_counter()
            with docker_containers.container(client, spec.image, spec.limits) as container:
                docker_containers.exec_true(client, container)
                return time.perf_counter() - began

        cold, cold_docker = Side(start, _STARTS), Side(start_by_docker, _DOCKER_STARTS)
        lives = Side(start, _LIVES, CONCURRENCY)
        docker_lives = Side(start_by_docker, _DOCKER_LIVES, CONCURRENCY)
        pooled = Side(start_from_pool, _STARTS)
        await in_turn((cold, cold_docker, lives, docker_lives, pooled), rounds, on_round)
    return (
        Figure("first_reply_p50_ms", cold.p50_ms, "ms", cold_docker.p50_ms, BASELINE),
        Figure("lifecycles_per_s", lives.per_s, "1/s", docker_lives.per_s, BASELINE),
        Figure("lifecycle_cpu_ms", lives.cpu_ms, "ms", docker_lives.cpu_ms, BASELINE),
        Figure("pooled_first_reply_p50_ms", pooled.p50_ms, "ms", cold_docker.p50_ms, BASELINE),
    )


async def _fill(pool: WarmPool, spec: SandboxSpec) -> None:
    deadline = time.monotonic() + _POOL_S
    while pool.ready(spec) < _POOLED:
        if time.monotonic() > deadline:
            raise BenchError(f"the warm pool was not full after {_POOL_S:g} s; reduce the load on the machine")
        await asyncio.sleep(0.005)
