"""A farm whose sandboxes are pretended, for the tests of scheduling, restarts and joining; all else is real."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from farm.core.run import EpisodeLimits, PolicySpec, RunSpec
from farm.core.run_options.branching import Branching
from farm.core.run_options.groups import DEFAULT_GROUP_OPTIONS, GroupOptions
from farm.node.image_cache import ImageCache
from farm.node.resources import NodeResources
from farm.node.settings import NodeConfig
from farm.policy import EndpointPool, PolicyRoutes, make_policy
from farm.store import Store
from farm.tasks import TaskBundle, pack, task_ref
from sandboxes import FakeRuntime, SandboxError, WarmPool
from sandboxes.testing.shell import FakeProcess
from tests.support.farm.grading_values import WORKSPACE, busybox, change, image, make_bundle, pretend_pytest, write

PRISTINE = {"src/a.py": b"bug\n", "tests/test_a.py": b"# old\n"}
EQUIP = "tests.support.farm.cluster_fakes:pretended"


def task() -> TaskBundle:
    """Solved where ``src/a.py`` says fixed."""
    bundle = make_bundle()
    seconds = replace(bundle.task, agent_timeout_s=60.0, build_timeout_s=60.0, cpus=1.0)
    return replace(bundle, task=seconds, gold=change(write("src/a.py", b"fixed\n")))


async def submit(
    store: Store,
    run_id: str,
    *,
    groups: int = 1,
    group_size: int = 1,
    policy: str = "oracle",
    max_attempts: int = 3,
    tools: tuple[str, ...] = (),
    rewards: str = "",
    policy_name: str = "",
    options: GroupOptions = DEFAULT_GROUP_OPTIONS,
    branching: Branching | None = None,
) -> RunSpec:
    """Put a run and its task into the store, as the gateway does before it tells the scheduler.

    ``policy_name`` names a policy whose versions are announced; ``policy`` plays in its place.
    """
    bundle = task()
    assert make_policy(PolicySpec(policy), bundle, seed=0, routes=PolicyRoutes(EndpointPool()))
    spec = RunSpec(
        run_id,
        (task_ref(bundle),),
        PolicySpec(policy, policy=policy_name),
        group_size,
        groups,
        EpisodeLimits(),
        max_attempts=max_attempts,
        tools=tools,
        rewards=rewards,
        options=options,
        branching=branching,
    )
    await store.put_bundle(bundle.task.digest, pack(bundle))
    await store.put_run(spec)
    return spec


class Gate:
    """While it is shut, every verifier hangs: a file, so that it works across processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def shut(self) -> None:
        self._path.touch()

    def open(self) -> None:
        self._path.unlink(missing_ok=True)

    async def passed(self) -> None:
        while self._path.exists():  # noqa: ASYNC110 - a file, so that it works across processes
            await asyncio.sleep(0.02)


def pretended_runtime(gate: Gate, *, boot_errors: Iterable[SandboxError | None] = ()) -> FakeRuntime:
    def passes(process: FakeProcess, name: str) -> bool:
        return name == "test_old" or process.files.read(f"{WORKSPACE}/src/a.py") == b"fixed\n"

    judge = pretend_pytest(passes)

    async def verify(process: FakeProcess) -> int:
        await gate.passed()
        return await judge(process)

    return FakeRuntime(image(PRISTINE), programs={"busybox": busybox, "pretend": verify}, boot_errors=boot_errors)


@asynccontextmanager
async def pretended(plan: NodeConfig) -> AsyncIterator[NodeResources]:
    """For agents that Ray starts. The gate is the file ``hold`` beside the state directory."""
    gate = Gate(plan.state_dir.parent / "hold")
    pool = WarmPool(pretended_runtime(gate))
    yield NodeResources(pool, ImageCache(_no_image_needed), pool)
    await pool.close()


async def _no_image_needed(bundle: TaskBundle) -> None:
    """The fake has all its images."""
