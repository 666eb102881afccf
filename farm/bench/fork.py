"""``fork``: another sandbox on a copy of what one holds, beside a committed container and a start of what that gave."""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

import docker
from docker.models.containers import Container

from farm.bench import containers
from farm.bench.calls import Hands
from farm.bench.figures import BenchError, Figure
from farm.bench.rounds import Side, in_turn
from sandboxes import Runtime, SandboxSpec
from sandboxes.sandbox import MIB

BASELINE = "docker_commit"
FILES, FILE_BYTES = 100, MIB // 2
IMAGE = "farm-bench-fork"
_PLACE = "/tmp/held"
_FORKS, _DOCKER_FORKS = 5, 1


async def measure_fork(
    spec: SandboxSpec, runtime: Runtime, *, docker_host: str | None, rounds: int, on_round: Callable[[int], None]
) -> tuple[Figure, ...]:
    """``rounds`` times, in turn: forks of a sandbox in which 50 MiB have just been written as new files, until the copy
    has answered a call; the same of a container. Raises BenchError where a copy lacks what was written."""
    contents = [os.urandom(FILE_BYTES) for _ in range(FILES)]
    hands, numbers = Hands(), count()

    def held() -> dict[str, bytes]:
        """Under names that were never used: what replaces a file is written down at once, and a fork then finds none
        of it left to write."""
        place = f"{_PLACE}/{next(numbers)}"
        return {f"{place}/{number}": content for number, content in enumerate(contents)}

    async with (
        runtime.scope(spec) as sandbox,
        containers.connect(docker_host, 1) as daemon,
        daemon.container(spec.image, spec.limits) as made,
    ):

        async def fork() -> float:
            await sandbox.remove_path(_PLACE)
            written = held()
            for path, content in written.items():
                await sandbox.write_file(path, content, parents=True)
            began = time.perf_counter()
            copy = await sandbox.fork()
            try:
                await hands.run_true(copy)
                took_s = time.perf_counter() - began
                if {f"{_PLACE}/{entry.path}" for entry in await copy.walk(_PLACE)} != written.keys():
                    raise BenchError(f"sandbox {copy.id} is no copy of {sandbox.id}")
            finally:
                await copy.remove()
            return took_s

        async def commit() -> float:
            return await daemon.run(partial(_commit_s, made=made, spec=spec, held=held()))

        forks, commits = Side(fork, _FORKS), Side(commit, _DOCKER_FORKS)
        await in_turn((forks, commits), rounds, on_round)
    return (Figure("fork_50mib_p50_ms", forks.p50_ms, "ms", commits.p50_ms, BASELINE),)


def _commit_s(client: docker.DockerClient, made: Container, spec: SandboxSpec, held: Mapping[str, bytes]) -> float:
    made.exec_run(["rm", "-rf", _PLACE])
    made.put_archive("/", containers.archive(held))
    began = time.perf_counter()
    made.commit(IMAGE)
    try:
        with containers.container(client, IMAGE, spec.limits) as copy:
            containers.exec_true(client, copy)
            return time.perf_counter() - began
    finally:
        client.images.remove(IMAGE, force=True)
