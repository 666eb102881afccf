"""Measure how much a sandbox slows another by evicting from the page cache what both read of their image.

Run ``python -m tests.support.attacks.measure_eviction [--pairs N] [--runtime docker|oci]`` from the root of the
repository, as root. It needs Docker and ``farm-base:1``.

A page belongs to the memory group of the sandbox that read it first, and goes if that group is short of memory. The
attacker makes its own group short. A pair is two new pairs of sandboxes, one with the attack and one without, in
changing order. Before each, the image's files are dropped from the cache; then one of the two reads them first,
or neither does.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
from pathlib import Path

import docker

from sandboxes import Sandbox, SandboxLimits, SandboxSpec
from sandboxes.runtimes.docker.runtime import DockerRuntime
from sandboxes.runtimes.oci.runtime import OciRuntime
from sandboxes.toolserver.toolbox import ensure_toolbox
from tests.support.outside import EitherRuntime

IMAGE = "farm-base:1"
FILES = "/usr/lib"
MEMORY_MIB = 512
LONG_S = 300.0

READ = f"""
import os, time
began = time.perf_counter()
for place, _, names in os.walk({FILES!r}):
    for name in names:
        path = os.path.join(place, name)
        if os.path.isfile(path) and not os.path.islink(path):
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass
print(time.perf_counter() - began)
"""
EVICT = f"""
import os, sys
if os.fork():
    sys.exit(os.wait()[1] == 0)  # the kernel ends the child, at the limit
kept = [b"x" * (1 << 20) for _ in range({MEMORY_MIB})]
"""
EVICTION = ("python3", "-c", EVICT)
"""Memory of its own, up to the limit, takes the place of every page that the group has."""


async def seconds(sandbox: Sandbox) -> float:
    """Return how long ``sandbox`` takes to read the files."""
    result = await sandbox.exec(["python3", "-c", READ], timeout_s=LONG_S)
    return float(result.stdout.head)


def drop(layers: list[Path]) -> None:
    """Drop the clean pages of the image's files from the machine's cache."""
    os.sync()
    for layer in layers:
        for path in (layer / FILES.lstrip("/")).rglob("*"):
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def slowed(runtime: EitherRuntime, layers: list[Path], *, attack: bool, first: str) -> float:
    """Return how long the neighbour takes to read; ``first``: the sandbox that read the files before it."""
    spec = SandboxSpec(IMAGE, limits=SandboxLimits(memory_mib=MEMORY_MIB))
    async with runtime.scope(spec) as attacker, runtime.scope(spec) as neighbour:
        await asyncio.to_thread(drop, layers)
        if first != "nobody":
            await seconds({"attacker": attacker, "neighbour": neighbour}[first])
        if attack:
            await attacker.exec(EVICTION, timeout_s=LONG_S)
        return await seconds(neighbour)


def layers_of(image: str) -> list[Path]:
    """Return the directories of the layers of ``image``."""
    data = docker.from_env().images.get(image).attrs["GraphDriver"]["Data"]
    return [Path(path) for path in [data["UpperDir"], *filter(None, data.get("LowerDir", "").split(":"))]]


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--runtime", choices=["docker", "oci"], default="docker")
    arguments = parser.parse_args()
    kind = DockerRuntime if arguments.runtime == "docker" else OciRuntime
    layers = layers_of(IMAGE)
    with tempfile.TemporaryDirectory(prefix="eviction-") as place:
        runtime: EitherRuntime = await kind.open(state_dir=Path(place), toolbox=ensure_toolbox(Path(place) / "toolbox"))
        try:
            for first in ("neighbour", "attacker", "nobody"):
                found: dict[bool, list[float]] = {False: [], True: []}
                for number in range(arguments.pairs):
                    for attack in (False, True) if number % 2 else (True, False):
                        found[attack].append(await slowed(runtime, layers, attack=attack, first=first))
                report(first, found)
        finally:
            await runtime.close()


def report(first: str, found: dict[bool, list[float]]) -> None:
    """Print the medians, and the quartiles of the ratios of pairs."""
    ratios = [with_it / without for with_it, without in zip(found[True], found[False], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    print(
        f"first read by {first}: {statistics.median(found[False]):.3f} s without, "
        f"{statistics.median(found[True]):.3f} s with the attack; ratio {middle:.2f} ({low:.2f} to {high:.2f})",
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main())
