"""Too many processes, and such as do not want to die."""

import asyncio

from tests.attacks.machine.conftest import ANSWER_S, SMALL, Scene
from tests.support.sandboxes.conformance import text
from tests.support.sandboxes.serving import eventually

HIDDEN_NAME = "printf ') Z 0 (' > /proc/self/comm; "
"""What /proc says of a process then looks like that of another, which has ended."""


async def only_left(scene: Scene, count: int) -> bool:
    """So many of those that sleep are alive, or will be in a moment: who was killed is not dead at once."""
    return await eventually(lambda: sum("7777" in command for command in scene.living()) == count)


async def test_fork_bomb_stays_within_pid_limit(after_an_attack: Scene) -> None:
    bomb = await after_an_attack.attack("probe forks")
    assert int(text(bomb)) < SMALL.pids
    await after_an_attack.attacker.kill_all()
    assert text(await after_an_attack.attack("echo on")) == "on\n"


async def test_fork_bomb_left_running_does_no_harm(after_an_attack: Scene) -> None:
    await after_an_attack.attack("probe forks")


async def test_shell_fork_bomb_ends_at_timeout(after_an_attack: Scene) -> None:
    bomb = await after_an_attack.attacker.shell("bomb() { bomb | bomb & }; bomb; sleep 1000", timeout_s=1)
    assert bomb.timed_out or bomb.shell_lost
    await after_an_attack.attacker.kill_all()
    assert text(await after_an_attack.attack("echo on")) == "on\n"


async def test_kill_of_all_processes_hits_only_attacker(after_an_attack: Scene) -> None:
    for _ in range(3):
        killed = await after_an_attack.attacker.shell("kill -9 -1; kill -STOP -1; sleep 1000", timeout_s=1)
        assert killed.shell_lost
    assert text(await after_an_attack.attack("echo on")) == "on\n"


async def test_processes_that_left_session_are_killed(after_an_attack: Scene) -> None:
    away = "for i in 1 2 3; do (setsid sh -c 'setsid sleep 7777 & sleep 7777 & exec setsid sleep 7777' &); done"
    late = await after_an_attack.attack(f"{away}; sleep 1000", timeout_s=1)
    assert late.timed_out
    assert await only_left(after_an_attack, 0)
    await after_an_attack.attack(away)
    assert await only_left(after_an_attack, 9)
    await after_an_attack.attacker.kill_all()
    assert await only_left(after_an_attack, 0)


async def test_misleading_process_name_does_not_prevent_kill(after_an_attack: Scene) -> None:
    late = await after_an_attack.attack(f"{HIDDEN_NAME} sleep 7777 & {HIDDEN_NAME} sleep 7777", timeout_s=1)
    assert late.timed_out
    assert await only_left(after_an_attack, 0)


async def test_stopped_and_signal_ignoring_processes_are_killed(after_an_attack: Scene) -> None:
    await after_an_attack.attack(
        "trap '' TERM INT HUP; sleep 7777 & sleep 7777 & kill -STOP $!; kill -STOP $$", timeout_s=1
    )
    assert await only_left(after_an_attack, 0)


async def test_background_process_with_output_does_not_delay(after_an_attack: Scene) -> None:
    held = await after_an_attack.attack("sleep 7777 & echo told", timeout_s=ANSWER_S)
    assert (held.exit_code, text(held)) == (0, "told\n")
    held = await after_an_attack.attacker.shell("sleep 7777 & setsid sleep 7777 & echo told", timeout_s=ANSWER_S)
    assert (held.exit_code, held.stdout.head.endswith(b"told\n")) == (0, True)


async def test_orphans_are_reaped(after_an_attack: Scene) -> None:
    """More orphans than there may be processes, one after the other."""
    await after_an_attack.attack("for i in $(seq 300); do (sleep 0 &) ; done")
    async with asyncio.timeout(ANSWER_S):
        while text(await after_an_attack.attack("grep -l ') Z ' /proc/[0-9]*/stat; true")):
            pass


async def test_busy_loops_do_not_block_sibling(after_an_attack: Scene) -> None:
    busy = asyncio.create_task(
        after_an_attack.attack("for i in $(seq 50); do while :; do :; done & done; wait", timeout_s=3)
    )
    for _ in range(20):
        assert text(await after_an_attack.sibling.exec(["echo", "on"], timeout_s=ANSWER_S)) == "on\n"
    assert (await busy).timed_out
