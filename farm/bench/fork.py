"""``fork``: another sandbox on a copy of what one holds, beside a committed container and a start of what that gave."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count

import docker
from docker.models.containers import Container

from farm.bench import docker_baseline
from farm.bench.interleave import Side, in_turn
from farm.bench.results import BenchError, Figure
from farm.bench.tool_calls import BenchCalls
from sandboxes import Runtime, Sandbox, SandboxSpec
from sandboxes.interface import MIB

BASELINE = "docker_commit"
FILES, FILE_BYTES = 100, MIB // 2
IMAGE = "farm-fork-baseline"
_PLACE = "/tmp/held"
_FORKS, _FIRST_FORKS, _DOCKER_FORKS = 5, 2, 1


async def measure_fork(
    spec: SandboxSpec, runtime: Runtime, *, docker_host: str | None, rounds: int, on_round: Callable[[int], None]
) -> tuple[Figure, ...]:
    """``rounds`` times, in turn: forks of a sandbox in which 50 MiB have just been written as new files, until the copy
    has answered a call; the first forks of others, and of those of which nobody said that they will be forked; the same
    of a container. Raises BenchError where a copy lacks what was written."""
    contents = [os.urandom(FILE_BYTES) for _ in range(FILES)]
    hands, numbers = BenchCalls(), count()

    def held() -> dict[str, bytes]:
        """Under names that were never used: what is renamed over a file is written down at once, and a fork then finds
        none of it left to write."""
        place = f"{_PLACE}/{next(numbers)}"
        return {f"{place}/{number}": content for number, content in enumerate(contents)}

    async with (
        runtime.scope(replace(spec, to_fork=True)) as sandbox,
        docker_baseline.connect(docker_host, 1) as daemon,
        daemon.container(spec.image, spec.limits) as made,
    ):

        async def fork_of(source: Sandbox) -> float:
            written = held()
            for path, content in written.items():
                await source.write_file(path, content, parents=True)
            began = time.perf_counter()
            copy = await source.fork()
            try:
                await hands.run_true(copy)
                took_s = time.perf_counter() - began
                if {f"{_PLACE}/{entry.path}" for entry in await copy.walk(_PLACE)} != written.keys():
                    raise BenchError(f"sandbox {copy.id} is no copy of {source.id}")
            finally:
                await copy.remove()
            return took_s

        async def fork() -> float:
            await sandbox.remove_path(_PLACE)
            return await fork_of(sandbox)

        async def first_fork() -> float:
            async with runtime.scope(replace(spec, to_fork=True)) as fresh:
                return await fork_of(fresh)

        async def unforeseen_fork() -> float:
            async with runtime.scope(spec) as fresh:
                return await fork_of(fresh)

        async def commit() -> float:
            return await daemon.run(partial(_commit_s, made=made, spec=spec, held=held()))

        forks, commits = Side(fork, _FORKS), Side(commit, _DOCKER_FORKS)
        firsts, unforeseen = Side(first_fork, _FIRST_FORKS), Side(unforeseen_fork, _FIRST_FORKS)
        await in_turn((forks, firsts, unforeseen, commits), rounds, on_round)
    return (
        Figure("fork_50mib_p50_ms", forks.p50_ms, "ms", commits.p50_ms, BASELINE),
        Figure("first_fork_50mib_p50_ms", firsts.p50_ms, "ms", commits.p50_ms, BASELINE),
        Figure("unforeseen_fork_50mib_p50_ms", unforeseen.p50_ms, "ms", commits.p50_ms, BASELINE),
    )


def _commit_s(client: docker.DockerClient, made: Container, spec: SandboxSpec, held: Mapping[str, bytes]) -> float:
    made.exec_run(["rm", "-rf", _PLACE])
    made.put_archive("/", docker_baseline.archive(held))
    began = time.perf_counter()
    made.commit(IMAGE)
    try:
        with docker_baseline.container(client, IMAGE, spec.limits) as copy:
            docker_baseline.exec_true(client, copy)
            return time.perf_counter() - began
    finally:
        client.images.remove(IMAGE, force=True)
