"""Output without end, and output that is no text."""

import asyncio

from tests.attacks.machine.conftest import ANSWER_S, Scene
from tests.support.sandboxes.conformance import text

LIMIT = 10_000
EVERY_BYTE = bytes(range(256))
TERMINAL = b"\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\r\b\x9b31m"
NAMES = [b"new\nline", b"tab\tescape\x1b[31m", b"not \xff\xfe utf-8", b"-rf", b" ", b"\xe2\x80\xae.txt", b"x" * 255]


async def test_discarded_flood_does_not_block_sibling(after_an_attack: Scene) -> None:
    yes = asyncio.create_task(after_an_attack.attack("yes > /dev/null", timeout_s=2))
    for _ in range(20):
        assert text(await after_an_attack.sibling.exec(["echo", "on"], timeout_s=ANSWER_S)) == "on\n"
    assert (await yes).timed_out


async def test_flood_of_output_is_cut_off(after_an_attack: Scene) -> None:
    attacker = after_an_attack.attacker
    yes = await attacker.exec(["yes"], timeout_s=2, output_limit=LIMIT)
    assert yes.timed_out
    assert len(yes.stdout.head) + len(yes.stdout.tail) <= LIMIT
    assert yes.stdout.elided > 0
    shell = await attacker.shell("yes", timeout_s=2, output_limit=LIMIT)
    assert (shell.timed_out, shell.shell_lost) == (True, True)
    assert len(shell.stdout.head) + len(shell.stdout.tail) <= LIMIT


async def test_background_flood_is_not_kept(after_an_attack: Scene) -> None:
    """A job that floods the shell's output between two commands."""
    attacker = after_an_attack.attacker
    await attacker.shell("yes & sleep 1", timeout_s=ANSWER_S, output_limit=LIMIT)
    later = await attacker.shell("kill %1; echo on", timeout_s=ANSWER_S, output_limit=LIMIT)
    assert later.exit_code == 0
    assert len(later.stdout.head) + len(later.stdout.tail) <= LIMIT


async def test_concurrent_floods_do_not_block_sibling(after_an_attack: Scene) -> None:
    attacker = after_an_attack.attacker
    floods = [asyncio.create_task(attacker.exec(["yes"], timeout_s=2, output_limit=LIMIT)) for _ in range(20)]
    assert text(await after_an_attack.sibling.exec(["echo", "on"], timeout_s=ANSWER_S)) == "on\n"
    assert all(result.timed_out for result in await asyncio.gather(*floods))


async def test_undecodable_output_is_unchanged(after_an_attack: Scene) -> None:
    attacker = after_an_attack.attacker
    for said in (EVERY_BYTE, TERMINAL, b"\xff" * 1000, b"\0"):
        await attacker.write_file("/tmp/said", said)
        assert (await attacker.exec(["cat", "/tmp/said"], timeout_s=ANSWER_S)).stdout.head == said
        assert (await attacker.shell("cat /tmp/said", timeout_s=ANSWER_S)).stdout.head == said
        assert await attacker.read_file("/tmp/said") == said


async def test_undecodable_names_are_unchanged(after_an_attack: Scene) -> None:
    attacker = after_an_attack.attacker
    for name in NAMES:
        await attacker.write_file(f"/srv/here/{name.decode('utf-8', 'surrogateescape')}", name)
    found = {entry.path.encode("utf-8", "surrogateescape") for entry in await attacker.walk("/srv/here")}
    assert found == set(NAMES)
    for name in NAMES:
        path = f"/srv/here/{name.decode('utf-8', 'surrogateescape')}"
        assert await attacker.read_file(path) == name
        assert (await attacker.stat(path)).size == len(name)
        await attacker.remove_path(path)
    assert await attacker.walk("/srv/here") == []
