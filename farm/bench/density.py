"""``density``: the cost of each of many running sandboxes, and whether it raises the cost of further
starts and calls.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from farm.bench import docker_containers
from farm.bench.host_memory import settled_mib
from farm.bench.results import BenchError, Figure
from farm.bench.tool_calls import BenchCalls
from sandboxes import Runtime, Sandbox, SandboxSpec

BASELINE = "docker_container"
CONTAINERS = 20
_AT_ONCE = 8

Progress = Callable[[str, int, int], None]
"""Called with a description, the number done and the total."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The number of further starts and of calls that one cost is the median of."""

    starts: int = 100
    calls: int = 1000


DEFAULT_SAMPLES = Samples()


class _RunningSandboxes:
    """The running sandboxes."""

    def __init__(self, spec: SandboxSpec, runtime: Runtime, samples: "Samples", on_progress: Progress) -> None:
        self._spec = spec
        self._runtime = runtime
        self._samples = samples
        self._on_progress = on_progress
        self._tool_calls = BenchCalls()
        self.sandboxes: list[Sandbox] = []

    async def warm_up(self) -> None:
        """Start one sandbox, because the first start of an image creates what all others share."""
        async with self._runtime.scope(self._spec) as sandbox:
            await self._tool_calls.run_true(sandbox)

    async def grow(self, count: int) -> None:
        """Start sandboxes until ``count`` are running and have answered a call."""
        missing = iter(range(count - len(self.sandboxes)))

        async def lane() -> None:
            for _ in missing:
                sandbox = await self._runtime.create(self._spec)
                self.sandboxes.append(sandbox)
                await self._tool_calls.run_true(sandbox)
                self._on_progress("sandboxes up", len(self.sandboxes), count)

        async with asyncio.TaskGroup() as lanes:
            for _ in range(_AT_ONCE):
                lanes.create_task(lane())

    async def shrink(self, count: int) -> float:
        """Remove sandboxes until ``count`` are running; return the seconds."""
        going = self.sandboxes[count:]
        began = time.monotonic()
        await asyncio.gather(*(sandbox.remove() for sandbox in going))
        took_s = time.monotonic() - began
        del self.sandboxes[count:]
        self._on_progress("sandboxes down", len(going), len(going))
        return took_s

    async def answer(self) -> int:
        """Call each sandbox, one after the other; return the number that answered."""
        for sandbox in self.sandboxes:
            await self._tool_calls.run_true(sandbox)
        return len(self.sandboxes)

    async def cost(self) -> "_Cost":
        """Measure further starts, each removed at once, and calls in one sandbox after the other."""
        starts_s = []
        for number in range(self._samples.starts):
            began = time.perf_counter()
            async with self._runtime.scope(self._spec) as sandbox:
                await self._tool_calls.run_true(sandbox)
                starts_s.append(time.perf_counter() - began)
            self._on_progress(f"starts beside {len(self.sandboxes)}", number + 1, self._samples.starts)
        boxes = self.sandboxes
        calls = range(self._samples.calls)
        calls_s = [await self._tool_calls.run_true(boxes[number % len(boxes)]) for number in calls]
        return _Cost(1000 * statistics.median(starts_s), 1000 * statistics.median(calls_s))


@dataclass(frozen=True, slots=True)
class _Cost:
    """Median costs."""

    start_ms: float
    call_ms: float


async def measure_density(
    spec: SandboxSpec,
    runtime: Runtime,
    *,
    docker_host: str | None,
    sandboxes: int,
    samples: Samples = DEFAULT_SAMPLES,
    on_progress: Progress,
) -> tuple[Figure, ...]:
    """Measure ``sandboxes`` running sandboxes, and the cost of further starts and calls beside them.

    The comparison is the cost beside a tenth of them, measured before and after. Memory is the mean of the rise and of
    the fall; the baseline's containers are measured first and last. Raises BenchError if sandboxes are left.
    """
    running, few, count = (
        _RunningSandboxes(spec, runtime, samples, on_progress),
        max(1, sandboxes // 10),
        min(CONTAINERS, sandboxes // 5),
    )
    await running.warm_up()
    resting_mib = [await settled_mib()]
    containers_mib = [await _containers_mib(spec, count, docker_host, on_progress)]
    resting_mib.append(await settled_mib())
    await running.grow(few)
    beside_few = [await running.cost()]
    await running.grow(sandboxes)
    answered = await running.answer()
    among_mib = await settled_mib()
    beside_many = await running.cost()
    teardown_s = await running.shrink(few)
    beside_few.append(await running.cost())
    teardown_s += await running.shrink(0)
    if left := [name async for name in runtime.living()]:
        raise BenchError(f"{len(left)} sandboxes were not removed: {', '.join(left[:3])}")
    resting_mib.append(await settled_mib())
    containers_mib.append(await _containers_mib(spec, count, docker_host, on_progress))
    resting_mib.append(await settled_mib())

    mib = (among_mib - statistics.mean(resting_mib[1:3])) / sandboxes
    container_mib = (statistics.mean(containers_mib) - statistics.mean(resting_mib)) / count
    return (
        Figure("live_sandboxes", answered, "sandboxes"),
        Figure("memory_mib_per_sandbox", mib, "MiB", container_mib, BASELINE),
        Figure("teardown_s", teardown_s, "s"),
        *_growth(beside_many, beside_few, f"{few}_live"),
    )


def _growth(many: _Cost, few: Sequence[_Cost], beside: str) -> tuple[Figure, ...]:
    start_ms, call_ms = (statistics.mean(cost.start_ms for cost in few), statistics.mean(cost.call_ms for cost in few))
    return (
        Figure("first_reply_p50_ms", many.start_ms, "ms", start_ms, beside),
        Figure("call_p50_ms", many.call_ms, "ms", call_ms, beside),
        Figure("first_reply_growth", many.start_ms / start_ms, "times"),
        Figure("call_growth", many.call_ms / call_ms, "times"),
    )


async def _containers_mib(spec: SandboxSpec, count: int, docker_host: str | None, on_progress: Progress) -> float:
    """Return the memory in use with ``count`` containers, including their shims and the daemon's share."""
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(docker_containers.connect(docker_host, 1))
        for number in range(count):
            container = await stack.enter_async_context(daemon.container(spec.image, spec.limits))
            await daemon.run(partial(docker_containers.exec_true, target=container))
            on_progress("containers up", number + 1, count)
        return await settled_mib()
