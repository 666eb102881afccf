"""``episodes``: oracle episodes of one task by the farm, and the same work by a bare loop over the Docker SDK."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import docker

from farm.bench.docker_loop import solve_once
from farm.bench.figures import BenchError, Figure
from farm.core.orders import EpisodeOrder, Limits, PolicySpec, group_id, rollout_id
from farm.core.rollout import Split
from farm.policy import make_policy
from farm.rollout import Baselines, run_episode
from farm.tasks import TaskBundle, task_ref
from sandboxes.sandbox import Runtime

BASELINE = "docker_sdk_loop"
_ORACLE = PolicySpec("oracle")
_API_TIMEOUT_S = 600

Episode = Callable[[int], Awaitable[float]]
"""Run the n-th episode; the seconds that its test command took."""


@dataclass(slots=True)
class _Side:
    """One of the two ways, and what was seen of it, in seconds."""

    episode: Episode
    rounds_s: list[float] = field(default_factory=list)
    overheads_s: list[float] = field(default_factory=list)

    async def round(self, first: int, concurrency: int, *, counts: bool) -> None:
        began = time.monotonic()
        overheads_s = await asyncio.gather(*(self._timed(first + place) for place in range(concurrency)))
        if counts:
            self.rounds_s.append(time.monotonic() - began)
            self.overheads_s += overheads_s

    async def _timed(self, number: int) -> float:
        began = time.monotonic()
        command_s = await self.episode(number)
        return time.monotonic() - began - command_s

    def per_minute(self, concurrency: int) -> float:
        return 60 * concurrency / statistics.median(self.rounds_s)

    def overhead_p50_ms(self) -> float:
        return 1000 * statistics.median(self.overheads_s)


async def measure_episodes(
    bundle: TaskBundle,
    runtime: Runtime,
    *,
    docker_host: str | None,
    rounds: int,
    concurrency: int,
    on_round: Callable[[int], None],
) -> tuple[Figure, ...]:
    """``rounds`` times, in turn: ``concurrency`` episodes at once by the farm, then by the loop. The image is here.

    One round before them warms both. Raises BenchError where an episode does not solve the task.
    """
    clients = [_client(docker_host) for _ in range(concurrency)]
    baselines = Baselines()

    async def by_farm(number: int) -> float:
        return await _farm_episode(bundle, runtime, baselines, number)

    async def by_loop(number: int) -> float:
        return await asyncio.to_thread(solve_once, clients[number % concurrency], bundle)

    farm, loop = _Side(by_farm), _Side(by_loop)
    try:
        for number in range(rounds + 1):
            for side in (farm, loop):
                await side.round(number * concurrency, concurrency, counts=number > 0)
            on_round(number)
    finally:
        for client in clients:
            client.close()
    return (
        Figure("episodes_per_min", farm.per_minute(concurrency), "1/min", loop.per_minute(concurrency), BASELINE),
        Figure("overhead_p50_ms", farm.overhead_p50_ms(), "ms", loop.overhead_p50_ms(), BASELINE),
    )


async def _farm_episode(bundle: TaskBundle, runtime: Runtime, baselines: Baselines, number: int) -> float:
    group = group_id("bench", number)
    order = EpisodeOrder(
        rollout_id=rollout_id(group, 0),
        attempt=0,
        final=True,
        run_id="bench",
        group_id=group,
        group_index=0,
        group_size=1,
        task=task_ref(bundle),
        split=Split.EVAL,
        policy=_ORACLE,
        limits=Limits(),
        seed=number,
    )
    policy = make_policy(_ORACLE, bundle, seed=number)
    rollout = await run_episode(order, bundle, runtime, policy, node="bench", baselines=baselines)
    if rollout.reward != 1.0:
        why = rollout.error.message if rollout.error else rollout.reason
        raise BenchError(f"an oracle episode of {bundle.task.id} ended with reward {rollout.reward}: {why}")
    return rollout.metrics["verify_command_s"]


def _client(docker_host: str | None) -> docker.DockerClient:
    return docker.DockerClient(base_url=docker_host, timeout=_API_TIMEOUT_S)
