"""Tasks of several steps: what the policy is told when, what is judged, and what becomes of the rewards."""

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from farm.core.agent import Agent
from farm.core.change import Change
from farm.core.rollout import Origin, Rollout, Status, StopReason, check
from farm.core.run import EpisodeLimits
from farm.core.task import Healthcheck, ReportFormat, Step, StepReward
from farm.episode import NodeServices, run_episode
from farm.grading import GradingRequest, VerifierError, grade
from farm.rewards.components import is_component
from farm.tasks.bundle import BundleFile, StepFiles, TaskBundle
from sandboxes.errors import LossCause, SandboxGone
from sandboxes.testing.shell import FakeProcess
from tests.support.farm.episode_values import DONE, Scripted, call, create, fake, order, sampled, say, task
from tests.support.farm.grading_values import WORKSPACE, case, junit, make_verifier


async def score(process: FakeProcess) -> int:
    """Write the reward from the file that the step's tests name."""
    named = process.files.read("/tests/named").decode()
    process.files.write("/logs/verifier/reward.txt", process.files.read(f"{WORKSPACE}/{named}"))
    return 0


async def ready(process: FakeProcess) -> int:
    return int(process.files.read(f"{WORKSPACE}/src/a.py") == b"spoilt\n")


def in_steps(*least: float | None, **changes: Any) -> TaskBundle:
    """Return a task of steps; the reward of each step is the number in ``NUMBER.txt``."""
    verifier = make_verifier(report=ReportFormat.REWARD_FILE, command="score", fail_to_pass=(), pass_to_pass=())
    steps, parts = [], []
    for number, gate in enumerate(least):
        check = Healthcheck("ready", 0.01, 5.0, 0.0, 1)
        steps.append(Step(f"s{number}", f"Write {number}.txt.", verifier, 60.0, gate, check))
        tests = {"test.sh": BundleFile(b"true\n"), "named": BundleFile(f"{number}.txt".encode())}
        parts.append(StepFiles({f"{number}.txt": BundleFile(b"0.25\n")}, tests, {}))
    bundle = task(steps=tuple(steps), instruction=steps[0].instruction, verifier=verifier, **changes)
    return replace(bundle, gold=None, tests=parts[0].tests, steps=tuple(parts))


def write(number: int, reward: float) -> Any:
    return say(create(f"{reward}\n", f"{number}.txt"))


async def play(bundle: TaskBundle, *steps: Any, limits: EpisodeLimits | None = None) -> tuple[Rollout, Scripted]:
    policy, runtime = Scripted(*steps), fake(programs={"score": score, "ready": ready})
    rollout = await run_episode(order(limits), bundle, policy, NodeServices("n1", runtime))
    check(rollout)
    assert not runtime.sandboxes
    return rollout, policy


async def test_agent_is_started_for_each_step() -> None:
    started: list[str] = []

    async def program(process: FakeProcess) -> int:
        started.append(process.argv[1])
        process.files.write(f"{WORKSPACE}/{len(started) - 1}.txt", b"1\n")
        return 0

    runtime = fake(programs={"score": score, "ready": ready, "agent": program})
    assignment = order(agent=Agent("each", ("agent", "{instruction}")))
    rollout = await run_episode(assignment, in_steps(None, None), Scripted(), NodeServices("n1", runtime))
    check(rollout)
    assert started == ["Write 0.txt.", "Write 1.txt."]
    assert (rollout.reward, rollout.reward_components["step_2"]) == (1.0, 1.0)


def steps_of(rollout: Rollout) -> Sequence[float]:
    named = sorted(name for name in rollout.reward_components if name.startswith("step_"))
    return [rollout.reward_components[name] for name in named]


@pytest.mark.parametrize(("how", "reward"), [(StepReward.MEAN, 0.625), (StepReward.FINAL, 0.5)])
async def test_steps_have_own_context_and_tests(how: StepReward, reward: float) -> None:
    bundle = in_steps(None, None, None, step_reward=how)
    script = (write(0, 0.75), DONE, write(1, 0.625), DONE, write(2, 0.5), say())
    rollout, policy = await play(bundle, *script)
    assert steps_of(rollout) == [0.75, 0.625, 0.5]
    assert (rollout.reward, rollout.reward_components["verdict"]) == (reward, reward)
    assert (rollout.reward_components["resolved"], rollout.reward_components["steps_begun"]) == (0.0, 3.0)
    assert [len(shown) for shown in policy.shown] == [2, 4, 2, 4, 2, 4]
    assert [shown[1]["content"] for shown in policy.shown[::2]] == ["Write 0.txt.", "Write 1.txt.", "Write 2.txt."]
    assert [turn.told for turn in rollout.turns] == ["", "", "Write 1.txt.", "", "Write 2.txt.", ""]
    assert [turn.index for turn in rollout.turns] == list(range(6))
    # The work of all steps is one change.
    assert [name in rollout.patch for name in ("0.txt", "1.txt", "2.txt")] == [True] * 3
    assert (rollout.status, rollout.stop_reason) == (Status.COMPLETED, StopReason.AGENT_DONE)


async def test_grading_one_change_for_steps_is_refused() -> None:
    with pytest.raises(VerifierError, match="step by step"):
        await grade(GradingRequest(in_steps(None), Change(), fake(), rng=random.Random(1)))


async def test_task_is_resolved_if_all_steps_are() -> None:
    rollout, _ = await play(in_steps(1.0, 1.0), write(0, 1), DONE, write(1, 1), DONE)
    assert (rollout.reward, rollout.reward_components["resolved"]) == (1.0, 1.0)


@pytest.mark.parametrize(("given", "judged"), [(0.5, [0.5]), (0.75, [0.75, 0.25])])
async def test_step_below_minimum_reward_ends_episode(given: float, judged: list[float]) -> None:
    rollout, _ = await play(in_steps(0.75, None), write(0, given), DONE, DONE)
    assert steps_of(rollout) == judged
    assert rollout.reward == sum(judged) / len(judged)
    assert rollout.reason.startswith(f"{len(judged)} of 2 steps gave")


async def lie(process: FakeProcess) -> int:
    """Report that every test of every file passed."""
    report, *files = process.argv[1:]
    named = {path: re.findall(r"def (test_\w+)", process.files.read(process.path(path)).decode()) for path in files}
    cases = [case(path.removesuffix(".py").replace("/", "."), name) for path in files for name in named[path]]
    process.files.write(report, junit(*cases), parents=True)
    return 0


async def test_tampered_step_is_flagged_despite_later_steps() -> None:
    bundle = in_steps(None, None)
    verifier = make_verifier(command="lie {report} {files}", pass_to_pass=())
    steps = (replace(bundle.task.steps[0], verifier=verifier), bundle.task.steps[1])
    tests = {"tests/test_a.py": BundleFile(b"def test_new():\n    assert 1 == 1\n")}
    parts = (replace(bundle.steps[0], tests=tests), bundle.steps[1])
    bundle = replace(bundle, task=replace(bundle.task, steps=steps, verifier=verifier), tests=tests, steps=parts)
    runtime = fake(programs={"score": score, "ready": ready, "lie": lie})
    rollout = await run_episode(order(), bundle, Scripted(DONE, write(1, 1), DONE), NodeServices("n1", runtime))
    assert steps_of(rollout) == [0.0, 1.0], rollout
    assert rollout.reward_components["tampered"] == 1.0
    assert [flag.kind for flag in rollout.audit] == ["tests"]
    assert "step 1: " in rollout.audit[0].evidence
    assert all(is_component(name) for name in rollout.reward_components)


async def test_policy_breaking_next_step_earns_zero_there() -> None:
    script = (write(0, 1), say(create("spoilt\n")), DONE)
    rollout, _ = await play(in_steps(None, None), *script)
    assert steps_of(rollout) == [1.0, 0.0]
    assert rollout.reward == 0.5
    assert "healthcheck" in rollout.reason


async def test_failed_setup_of_first_step_is_task_failure() -> None:
    bundle = in_steps(None)
    bundle = replace(bundle, steps=(replace(bundle.steps[0], workdir={"src/a.py": BundleFile(b"spoilt\n")}),))
    rollout, _ = await play(bundle, DONE)
    assert rollout.error is not None
    assert (rollout.error.origin, rollout.reward) == (Origin.TASK, None)


@pytest.mark.parametrize(("stalls", "rewards"), [(1, [1.0, 1.0]), (2, [1.0, 0.0])])
async def test_setup_that_times_out_runs_once_more(
    monkeypatch: pytest.MonkeyPatch, stalls: int, rewards: list[float]
) -> None:
    monkeypatch.setattr("farm.episode.steps.SETUP_S", 1.0)
    runs: list[tuple[str, ...]] = []

    async def bash(process: FakeProcess) -> int:
        runs.append(tuple(process.argv))
        if len(runs) <= stalls:
            await asyncio.Event().wait()
        return 0

    bundle = in_steps(None, None)
    second = replace(bundle.steps[1], workdir={"setup.sh": BundleFile(b"true\n")})
    bundle = replace(bundle, steps=(bundle.steps[0], second))
    runtime = fake(programs={"score": score, "ready": ready, "bash": bash})
    policy = Scripted(write(0, 1), DONE, write(1, 1), DONE)
    rollout = await run_episode(order(), bundle, policy, NodeServices("n1", runtime))
    assert steps_of(rollout) == rewards, rollout.reason
    assert runs == [("bash", "setup.sh")] * 2
    assert ("took over 1 s, twice" in rollout.reason) == (stalls == 2)


async def test_timeout_is_per_step_and_turns_are_total() -> None:
    bundle = in_steps(None, None)
    first = replace(bundle.task.steps[0], agent_timeout_s=1.0)
    bundle = replace(bundle, task=replace(bundle.task, agent_timeout_s=1.0, steps=(first, bundle.task.steps[1])))
    policy = Scripted(write(0, 1))
    policy.then(policy.late(1.2))
    policy.then(write(1, 1))
    policy.then(DONE)
    runtime = fake(programs={"score": score, "ready": ready})
    rollout = await run_episode(order(), bundle, policy, NodeServices("n1", runtime))
    assert (steps_of(rollout), rollout.stop_reason) == ([1.0, 1.0], StopReason.AGENT_DONE)

    rollout, _ = await play(in_steps(None, None), write(0, 1), DONE, write(1, 1), limits=EpisodeLimits(max_turns=3))
    assert (steps_of(rollout), rollout.stop_reason) == ([1.0, 1.0], StopReason.MAX_TURNS)
    rollout, _ = await play(in_steps(None, None), write(0, 1), limits=EpisodeLimits(max_turns=1))
    assert (steps_of(rollout), rollout.stop_reason) == ([1.0, 0.0], StopReason.MAX_TURNS)


async def test_each_step_has_own_segment() -> None:
    def at(reply: Any, prompt: Sequence[int], tokens: Sequence[int]) -> Any:
        return replace(reply, sampled=sampled(prompt, tokens))

    script = (
        at(write(0, 1), [1, 2], [3]),
        at(DONE, [1, 2, 3, 4], [5]),
        at(write(1, 1), [1, 6], [7]),
        at(DONE, [1, 6, 7, 8], [9]),
    )
    rollout, _ = await play(in_steps(None, None), *script)
    assert [list(segment.token_ids) for segment in rollout.segments] == [[1, 2, 3, 4, 5], [1, 6, 7, 8, 9]]
    assert rollout.trainable


async def test_sandbox_lost_by_policy_zeroes_remaining_steps() -> None:
    async def dies(process: FakeProcess) -> int:
        raise SandboxGone("it ended by itself", by=LossCause.INSIDE)

    runtime = fake(programs={"score": score, "ready": ready, "die": dies})
    policy = Scripted(write(0, 1), DONE, say(call("bash", {"command": "die"})))
    rollout = await run_episode(order(), in_steps(None, None, None), policy, NodeServices("n1", runtime))
    assert steps_of(rollout) == [1.0, 0.0, 0.0]
    assert rollout.reward == pytest.approx(1 / 3)
    assert rollout.stop_reason is StopReason.SANDBOX_LOST
