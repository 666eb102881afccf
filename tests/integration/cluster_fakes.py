"""A farm whose sandboxes are pretended, for the tests of scheduling, restarts and joining; all else is real."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from farm.cluster.equipment import AgentPlan, Equipment
from farm.cluster.shelf import ImageShelf
from farm.core.change import Change
from farm.core.orders import Limits, PolicySpec, RunSpec
from farm.policy import make_policy
from farm.store import Store
from farm.tasks import TaskBundle, pack, task_ref
from sandboxes import FakeRuntime
from sandboxes.runtimes.fake_shell import FakeProcess
from tests.unit.grading_fixtures import WORKSPACE, busybox, change, image, make_bundle, pretend_pytest, write

PRISTINE = {"src/a.py": b"bug\n", "tests/test_a.py": b"# old\n"}
EQUIP = "tests.integration.cluster_fakes:pretended"
__all__ = ["EQUIP", "pretended", "submit", "task"]


def task() -> TaskBundle:
    """Solved where ``src/a.py`` says fixed."""
    bundle = make_bundle()
    return TaskBundle(bundle.task, bundle.environment, bundle.tests, _gold(), bundle.solution)


def _gold() -> Change:
    return change(write("src/a.py", b"fixed\n"))


async def submit(store: Store, run_id: str, *, groups: int = 1, group_size: int = 1, policy: str = "oracle") -> RunSpec:
    """Put a run and its task into the store, as the gateway does before it tells the scheduler."""
    bundle = task()
    assert make_policy(PolicySpec(policy), bundle, seed=0)
    spec = RunSpec(run_id, (task_ref(bundle),), PolicySpec(policy), group_size, groups, Limits())
    await store.put_bundle(bundle.task.digest, pack(bundle))
    await store.put_run(spec)
    return spec


async def _no_image_needed(bundle: TaskBundle) -> None:
    """The fake has all its images."""


@asynccontextmanager
async def pretended(plan: AgentPlan) -> AsyncIterator[Equipment]:
    """The verifier hangs as long as there is a file ``hold`` beside the state directory."""
    hold = plan.state_dir.parent / "hold"

    def passes(process: FakeProcess, name: str) -> bool:
        return name == "test_old" or process.files.read(f"{WORKSPACE}/src/a.py") == b"fixed\n"

    judge = pretend_pytest(passes)

    async def verify(process: FakeProcess) -> int:
        while hold.exists():
            await asyncio.sleep(0.02)
        return await judge(process)

    runtime = FakeRuntime(image(PRISTINE), programs={"busybox": busybox, "pretend": verify})
    yield Equipment(runtime, ImageShelf(_no_image_needed))
