"""The steps of a task: how one is set up in the policy's sandbox, and how the rewards of all are combined.

A task without steps is one step for the episode.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from farm.core.rollout import StopReason
from farm.core.task import Step, StepReward, Task
from farm.grading import Forfeit, Verdict, Work
from farm.tasks.bundle import BundleFile, TaskBundle
from farm.tasks.errors import TaskError
from farm.tasks.healthcheck import SHELL, await_health
from sandboxes.errors import PathError
from sandboxes.interface import Sandbox

SETUP = "setup.sh"
SETUP_S = 600.0
SHOWN_CHARS = 200


class StepSetupFailed(Exception):
    """A step cannot begin in the state that the steps before it left."""


@dataclass(frozen=True, slots=True)
class EpisodeStep:
    """A step as a task by itself. ``number`` counts from 0; ``rule`` is None if the task has no steps."""

    number: int
    bundle: TaskBundle
    rule: Step | None
    is_last: bool

    @property
    def is_first(self) -> bool:
        return self.number == 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """The work of a step, how its conversation ended, and what the work is worth."""

    work: Work
    stop: StopReason | None
    verdict: Verdict

    @property
    def components(self) -> Mapping[str, float]:
        return {"verdict": self.verdict.reward, **self.verdict.components}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The reward of a whole episode, and the reason for it."""

    reward: float
    components: Mapping[str, float]
    reason: str

    @classmethod
    def of(cls, result: StepResult) -> Self:
        """Return the outcome of one step."""
        return cls(result.verdict.reward, result.components, result.verdict.reason)


def steps_of(bundle: TaskBundle) -> Iterator[EpisodeStep]:
    """Yield the steps of a task in order."""
    rules = bundle.task.steps
    if not rules:
        yield EpisodeStep(0, bundle, None, is_last=True)
    for number, rule in enumerate(rules):
        yield EpisodeStep(number, bundle.for_step(number), rule, is_last=number + 1 == len(rules))


async def set_up_step(sandbox: Sandbox, bundle: TaskBundle, step: int) -> None:
    """Put the step's files into the workspace, run its ``setup.sh`` as the policy's user, and wait for its health.

    A script that times out runs once more, because the machine can be the cause.

    Raises TaskError before anybody has worked there, and StepSetupFailed later, because the policy may be the cause.
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
    script = (*SHELL, f"exec bash {SETUP}")
    run = partial(sandbox.exec, script, cwd=task.workspace, timeout_s=SETUP_S, merge_stderr=True)
    result = await run()
    if result.timed_out:
        result = await run()
    if result.exit_code != 0:
        output = (result.stdout.tail or result.stdout.head).decode(errors="replace")[-SHOWN_CHARS:]
        how = f"took over {SETUP_S:g} s, twice" if result.timed_out else f"ended with {result.exit_code}"
        raise TaskError(task.id, f"{SETUP} of a step {how} ({output.strip()})", "make it run there")


def next_begins(step: EpisodeStep, result: StepResult) -> bool:
    """Decide whether the step after ``step`` begins.

    It does if the step reached its ``min_reward`` and the policy ended it by itself or ran out of its time. It does not
    after work that cannot be graded.
    """
    if step.is_last or isinstance(result.work, Forfeit) or _ended_by_rule(step.rule, result):
        return False
    return result.stop in (StopReason.AGENT_DONE, StopReason.AGENT_TIMEOUT)


def _ended_by_rule(rule: Step | None, result: StepResult) -> bool:
    """Decide whether the ``min_reward`` of a step ends the task. No rule ends a step whose work was lost."""
    if rule is None or rule.min_reward is None or isinstance(result.work, Forfeit):
        return False
    return result.verdict.reward < rule.min_reward


def last_graded(results: Sequence[StepResult]) -> Verdict | None:
    """Return the verdict on the last step whose work a verifier saw. Its patch and its lines describe the episode."""
    return next((one.verdict for one in reversed(results) if not isinstance(one.work, Forfeit)), None)


def combine_steps(results: Sequence[StepResult], task: Task) -> Outcome:
    """Return the outcome of a task from the results of the steps that began.

    If a ``min_reward`` ended the task, only the steps up to it count, as in Harbor. After any other end the steps that
    did not begin count 0, because a policy could choose to end after the easy ones.
    """
    last, rules = results[-1], task.steps
    if not rules:
        return Outcome.of(last)
    rewards = [one.verdict.reward for one in results]
    by_rule = _ended_by_rule(rules[len(results) - 1], last)
    counted = rewards if by_rule else [*rewards, *[0.0] * (len(rules) - len(results))]
    reward = counted[-1] if task.step_reward is StepReward.FINAL else sum(counted) / len(counted)
    resolved = len(results) == len(rules) and min(rewards) >= 1.0
    forged = [
        f"step {number}: {one.verdict.reason}"
        for number, one in enumerate(results, start=1)
        if one.components.get("tampered")
    ]
    components = {
        **last.components,
        **{f"step_{number}": reward for number, reward in enumerate(counted, start=1)},
        "verdict": reward,
        "resolved": float(resolved),
        "steps_begun": float(len(results)),
        **({"tampered": 1.0} if forged else {}),
    }
    listed = ", ".join(f"{reward:g}" for reward in rewards)
    zeros = f", the other {len(counted) - len(results)} count 0" if len(counted) > len(results) else ""
    detail = forged[0] if forged else f"the last: {last.verdict.reason}"
    return Outcome(reward, components, f"{len(results)} of {len(rules)} steps gave {listed}{zeros}; {detail}")
