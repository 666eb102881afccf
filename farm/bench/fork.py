"""``fork``: copy a running sandbox, compared with a container commit and a start of the committed image."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count

import docker
from docker.models.containers import Container

from farm.bench import docker_containers
from farm.bench.interleave import Side, in_turn
from farm.bench.results import BenchError, Figure
from farm.bench.tool_calls import BenchCalls
from sandboxes import Runtime, Sandbox, SandboxSpec
from sandboxes.interface import MIB

BASELINE = "docker_commit"
FILES, FILE_BYTES = 100, MIB // 2
IMAGE = "farm-fork-baseline"
_DIRECTORY = "/tmp/held"
_FORKS, _FIRST_FORKS, _DOCKER_FORKS = 5, 2, 1


async def measure_fork(
    spec: SandboxSpec, runtime: Runtime, *, docker_host: str | None, rounds: int, on_round: Callable[[int], None]
) -> tuple[Figure, ...]:
    """Alternate for ``rounds`` rounds: fork a sandbox after writing 50 MiB of new files, until the copy has answered a
    call.

    The sides are further forks of one sandbox, first forks of sandboxes started with ``to_fork``, first forks of
    sandboxes started without it, and commits of a container. Raises BenchError if a copy lacks the files.
    """
    contents = [os.urandom(FILE_BYTES) for _ in range(FILES)]
    tool_calls, numbers = BenchCalls(), count()

    def new_files() -> dict[str, bytes]:
        """Return the files under new names: a rename over an existing file flushes it, and would leave the fork nothing
        to write.
        """
        place = f"{_DIRECTORY}/{next(numbers)}"
        return {f"{place}/{number}": content for number, content in enumerate(contents)}

    async with (
        runtime.scope(replace(spec, to_fork=True)) as sandbox,
        docker_containers.connect(docker_host, 1) as daemon,
        daemon.container(spec.image, spec.limits) as container,
    ):

        async def fork_of(source: Sandbox) -> float:
            written = new_files()
            for path, content in written.items():
                await source.write_file(path, content, parents=True)
            began = time.perf_counter()
            copy = await source.fork()
            try:
                await tool_calls.run_true(copy)
                took_s = time.perf_counter() - began
                if {f"{_DIRECTORY}/{entry.path}" for entry in await copy.walk(_DIRECTORY)} != written.keys():
                    raise BenchError(f"sandbox {copy.id} lacks files of {source.id}, from which it was forked")
            finally:
                await copy.remove()
            return took_s

        async def fork() -> float:
            await sandbox.remove_path(_DIRECTORY)
            return await fork_of(sandbox)

        async def first_fork() -> float:
            async with runtime.scope(replace(spec, to_fork=True)) as fresh:
                return await fork_of(fresh)

        async def unforeseen_fork() -> float:
            async with runtime.scope(spec) as fresh:
                return await fork_of(fresh)

        async def commit() -> float:
            return await daemon.run(partial(_commit_s, container=container, spec=spec, new_files=new_files()))

        forks, commits = Side(fork, _FORKS), Side(commit, _DOCKER_FORKS)
        firsts, unforeseen = Side(first_fork, _FIRST_FORKS), Side(unforeseen_fork, _FIRST_FORKS)
        await in_turn((forks, firsts, unforeseen, commits), rounds, on_round)
    return (
        Figure("fork_50mib_p50_ms", forks.p50_ms, "ms", commits.p50_ms, BASELINE),
        Figure("first_fork_50mib_p50_ms", firsts.p50_ms, "ms", commits.p50_ms, BASELINE),
        Figure("unforeseen_fork_50mib_p50_ms", unforeseen.p50_ms, "ms", commits.p50_ms, BASELINE),
    )


def _commit_s(
    client: docker.DockerClient, container: Container, spec: SandboxSpec, new_files: Mapping[str, bytes]
) -> float:
    container.exec_run(["rm", "-rf", _DIRECTORY])
    container.put_archive("/", docker_containers.archive(new_files))
    began = time.perf_counter()
    container.commit(IMAGE)
    try:
        with docker_containers.container(client, IMAGE, spec.limits) as copy:
            docker_containers.exec_true(client, copy)
            return time.perf_counter() - began
    finally:
        client.images.remove(IMAGE, force=True)
