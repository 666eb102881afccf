"""The steps of a task: how one is set up where the policy works, and what becomes of their rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farm.core.rollout import StopReason
from farm.core.task import Step, StepReward, Task
from farm.episode.rollout_builder import EpisodeResult
from farm.tasks.bundle import BundleFile, TaskBundle
from farm.tasks.errors import TaskError
from farm.tasks.healthcheck import SHELL, await_health
from sandboxes.errors import PathError
from sandboxes.interface import Sandbox

SETUP = "setup.sh"
SETUP_S = 600.0
SHOWN_CHARS = 200


class StepSetupFailed(Exception):
    """A step cannot begin where the steps before it have left the sandbox."""


async def set_up_step(sandbox: Sandbox, bundle: TaskBundle, step: int) -> None:
    """Put the step's files into the workspace, run its ``setup.sh``, as the policy's user, and wait for its health.

    Raises TaskError where nobody has worked there yet, StepSetupFailed later: then it is the policy's doing.
    """
    try:
        await _set_up(sandbox, bundle.task, bundle.steps[step].workdir)
        await await_health(sandbox, replace(bundle.task, healthcheck=bundle.task.steps[step].healthcheck))
    except (TaskError, PathError) as error:
        if step == 0:
            raise
        raise StepSetupFailed(str(error)) from None


async def _set_up(sandbox: Sandbox, task: Task, files: Mapping[str, BundleFile]) -> None:
    for path, file in files.items():
        await sandbox.write_file(f"{task.workspace}/{path}", file.content, executable=file.executable, parents=True)
    if SETUP not in files:
        return
    result = await sandbox.exec(
        (*SHELL, f"exec bash {SETUP}"), cwd=task.workspace, timeout_s=SETUP_S, merge_stderr=True
    )
    if result.exit_code != 0:
        said = (result.stdout.tail or result.stdout.head).decode(errors="replace")[-SHOWN_CHARS:]
        how = f"took over {SETUP_S:g} s" if result.timed_out else f"ended with {result.exit_code}"
        raise TaskError(task.id, f"{SETUP} of a step {how} ({said.strip()})", "make it run there")


def should_continue(step: Step, reward: float, stop: StopReason | None) -> bool:
    """Decide whether the next step begins.

    It does if the step reached its ``min_reward`` and the policy ended it by itself or ran out of its time.
    """
    return not ended_by_rule(step, reward) and stop in (StopReason.AGENT_DONE, StopReason.AGENT_TIMEOUT)


def ended_by_rule(step: Step, reward: float) -> bool:
    """Decide whether the ``min_reward`` of a step ends the task."""
    return step.min_reward is not None and reward < step.min_reward


def combine_step_rewards(
    found: EpisodeResult, rewards: Sequence[float], task: Task, lies: Mapping[int, str], *, by_rule: bool
) -> None:
    """Set the reward of the whole task in ``found``, which holds the result of the last step that began.

    ``rewards``: one for each step that began. ``lies``: the reason for each step whose results cannot be true, by its
    number from 1. ``by_rule``: a ``min_reward`` ended the task, so that only the steps up to it count, as in Harbor.
    After any other end the steps that did not begin count 0, because a policy could choose to end after the easy ones.
    """
    begun, steps = len(rewards), task.steps
    counted = [*rewards] if by_rule else [*rewards, *[0.0] * (len(steps) - begun)]
    verdict = counted[-1] if task.step_reward is StepReward.FINAL else sum(counted) / len(counted)
    resolved = begun == len(steps) and min(rewards) >= 1.0
    found.reward = verdict
    found.components = {
        **found.components,
        **{f"step_{number}": reward for number, reward in enumerate(counted, start=1)},
        "verdict": verdict,
        "resolved": float(resolved),
        "steps_begun": float(begun),
        **({"tampered": 1.0} if lies else {}),
    }
    given = ", ".join(f"{reward:g}" for reward in rewards)
    detail = next((f"step {number}: {why}" for number, why in lies.items()), f"the last: {found.reason}")
    zeros = f", the other {len(counted) - begun} count 0" if len(counted) > begun else ""
    found.reason = f"{begun} of {len(steps)} steps gave {given}{zeros}; {detail}"
