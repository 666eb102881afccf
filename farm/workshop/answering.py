"""Whether a retrieval task is fit: what is expected is there, doing nothing is worth 0, and the known answer 1."""

from farm.core.orders import EpisodeOrder, Limits, PolicySpec, group_id, rollout_id
from farm.core.retrieval import Retrieval
from farm.core.rollout import Rollout, Split
from farm.policy import make_policy
from farm.rollout import run_episode
from farm.tasks import TaskBundle, sandbox_spec, task_ref
from sandboxes.errors import PathError
from sandboxes.sandbox import Runtime

_RUN = "validate"


async def misplaced(bundle: TaskBundle, retrieval: Retrieval, runtime: Runtime) -> list[str]:
    """What is expected and is not in the repository, a line each."""
    problems: list[str] = []
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "validating"})) as sandbox:
        for file in retrieval.expected:
            try:
                content = await sandbox.read_file(f"{bundle.task.workspace}/{file.path}")
            except PathError as fault:
                problems.append(f"{file.path} is expected, and cannot be read: {fault}")
                continue
            there = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
            last = max((last for _, last in file.lines), default=0)
            if last > there:
                problems.append(f"line {last} of {file.path} is expected, which has {there}")
    return problems


async def play(kind: str, bundle: TaskBundle, runtime: Runtime) -> Rollout:
    """An episode with the policy ``kind``, through the tools that any policy has."""
    group = group_id(_RUN, 0)
    spec = PolicySpec(kind)
    order = EpisodeOrder(
        rollout_id=rollout_id(group, 0),
        attempt=0,
        final=True,
        run_id=_RUN,
        group_id=group,
        group_index=0,
        group_size=1,
        task=task_ref(bundle),
        split=Split.EVAL,
        policy=spec,
        limits=Limits(),
        seed=0,
    )
    policy = make_policy(spec, bundle, seed=0)
    try:
        return await run_episode(order, bundle, runtime, policy, node=_RUN)
    finally:
        await policy.close()
