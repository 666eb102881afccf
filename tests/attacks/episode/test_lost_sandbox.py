"""A sandbox lost on purpose, so that an episode that goes badly is taken for a fault of the machine and tried again."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.core.rollout import Rollout, Status, StopReason, check
from farm.core.run import EpisodeLimits
from farm.core.task import ReportFormat
from farm.episode import NodeServices, Reply, run_episode
from sandboxes.errors import BootError, SandboxGone
from sandboxes.interface import Runtime
from tests.attacks.conftest import Arena
from tests.support.attacks.naive import Belief, naive_grade
from tests.support.attacks.project import CART, make_task
from tests.support.farm.episode_values import DONE, Scripted, Step, call, create, order, say
from tests.support.outside import EitherRuntime, crash, mute
from tests.support.services import needs_root

Trick = Callable[[int], None]
"""Done to the tool server, by its pid on the host."""


async def episode(arena: Arena, *steps: Step, limits: EpisodeLimits | None = None) -> Rollout:
    bundle = make_task(arena.image, ReportFormat.PYTEST)
    rollout = await run_episode(order(limits), bundle, Scripted(*steps), NodeServices("n1", arena.runtime))
    check(rollout)
    return rollout


def bash(command: str) -> Reply:
    return say(call("bash", {"command": command}))


async def only(runtime: Runtime) -> str:
    (name,) = [name async for name in runtime.living()]
    return name


async def where_tests_run(runtime: EitherRuntime) -> str:
    """Wait until pytest runs in a sandbox, and return its name."""
    async with asyncio.timeout(60):
        while True:
            async for name in runtime.living():
                with contextlib.suppress(BootError, KeyError, OSError):  # it is starting, or it has ended
                    if any(b"pytest" in command for command in commands(await runtime.first_pid(name))):
                        return name
            await asyncio.sleep(0.1)


def commands(pid: int) -> list[bytes]:
    """Return the command lines of all processes in the PID namespace of process ``pid``."""
    namespace, found = os.readlink(f"/proc/{pid}/ns/pid"), []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            if os.readlink(place / "ns/pid") == namespace:
                found.append((place / "cmdline").read_bytes())
    return found


REACH_FOR_THE_SERVER = r"""
python3 - <<'END'
import os, resource, signal

def attempt(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        pass

for number in range(1, signal.SIGRTMAX + 1):
    attempt(os.kill, 1, number)
    attempt(signal.pidfd_send_signal, os.pidfd_open(1), number)
for limit in range(16):
    attempt(resource.prlimit, 1, limit, (0, 0))
attempt(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
attempt(os.sched_setaffinity, 1, [0])
for kind, who in ((os.PRIO_PROCESS, 1), (os.PRIO_PGRP, 1), (os.PRIO_USER, 0)):
    attempt(os.setpriority, kind, who, 19)
END
"""
BUSY = "for _ in $(seq 300); do (while :; do :; done) & done"
CROWD = "bomb() { bomb | bomb & }; bomb; sleep 2"
EATEN = "python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'"
HUNGER = """
echo 1000 > /proc/1/oom_score_adj
mkfifo /tmp/never; sleep 1000 > /tmp/never &
for _ in 1 2 3 4 5 6 7 8; do python3 -c 'x = b"x" * (100 << 20); input()' < /tmp/never & done; wait
"""
"""Eight eat, none alone more than a fifth of the limit: so the one whom the kernel prefers is the tool server."""

BLOWS = {
    "signals, limits and priorities of the tool server": REACH_FOR_THE_SERVER,
    "hundreds of busy loops behind it": f"{REACH_FOR_THE_SERVER}\n{BUSY}",
    "every process there may be": CROWD,
    "all memory": EATEN,
}


@pytest.mark.docker_too
@pytest.mark.parametrize("blow", BLOWS.values(), ids=BLOWS)
async def test_policy_attacking_its_sandbox_is_judged(arena: Arena, blow: str) -> None:
    rollout = await episode(arena, bash(blow), bash("true"), DONE, limits=EpisodeLimits(tool_s=30))
    assert (rollout.error, rollout.reward) == (None, 0.0), rollout


@pytest.mark.docker_too
async def test_tool_server_lost_to_oom_is_judged(arena: Arena) -> None:
    with pytest.raises(SandboxGone):  # who takes that for a fault of the machine tries again
        await arena.naive(HUNGER, Belief.EXIT_CODE)
    rollout = await episode(arena, bash(HUNGER), DONE)
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.TRUNCATED, StopReason.OUT_OF_MEMORY, 0.0)


@pytest.mark.docker_too
@needs_root
@pytest.mark.parametrize("trick", [mute, crash], ids=["mute", "crashed"])
async def test_tool_server_lost_during_turn_is_judged(arena: Arena, trick: Trick) -> None:
    async def strike() -> Reply:
        trick(await arena.runtime.first_pid(await only(arena.runtime)))
        return bash("true")

    rollout = await episode(arena, strike, DONE, limits=EpisodeLimits(agent_s=3, tool_s=3))
    assert rollout.error is None
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.TRUNCATED, StopReason.SANDBOX_LOST, 0.0)


ENDLESS = f"{CART}\ndef total(prices, discount=0):\n    while True: pass\n"


@pytest.mark.docker_too
@needs_root
async def test_tool_server_lost_during_grading_is_judged(arena: Arena) -> None:
    async with arena.runtime.scope(arena.spec) as sandbox:
        crash(await arena.runtime.first_pid(await only(arena.runtime)))
        with pytest.raises(SandboxGone):  # who takes that for a fault of the machine tries again
            await naive_grade(sandbox, make_task(arena.image, ReportFormat.PYTEST), Belief.EXIT_CODE, timeout_s=60)
    running = asyncio.create_task(episode(arena, say(create(ENDLESS, "pricing/cart.py")), DONE))
    crash(await arena.runtime.first_pid(await where_tests_run(arena.runtime)))
    rollout = await running
    assert (rollout.error, rollout.stop_reason, rollout.reward) == (None, StopReason.AGENT_DONE, 0.0)
    assert rollout.reason.startswith("the tests lost their sandbox: ")
