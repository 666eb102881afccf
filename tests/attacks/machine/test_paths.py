"""A path that the host names may be anything by the time it is used: a link, a pipe, a device, somebody else's."""

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable

import pytest

from sandboxes import FileKind, PathError, Sandbox
from tests.attacks.machine.conftest import ANSWER_S, Scene
from tests.support.sandboxes.conformance import refusal

LEADS_OUT = (
    "../../../../../../etc/shadow",
    "/etc/shadow",
    "/proc/self/root/etc/shadow",
    "/proc/1/root/etc/shadow",
    "/proc/1/cwd/../../etc/shadow",
    "/var/lib/docker",
    "/proc/self/fd/3",
    "/proc/self/fd/4/../../etc/shadow",
)
NO_FILES = (
    "mkfifo",
    "mkdir",
    "probe socket",
    "ln -s /dev/zero",
    "ln -s /dev/ptmx",
    "ln -s x",
    "ln -s $(seq -s / 1 1000)",
    "ln -s /proc/kcore",
    "ln -s /proc/kmsg",
    "ln -s /proc/self/mem",
)
OTHERS = ("mkdir -p /srv/x/y/z", "mkfifo /srv/x", "echo > /srv/x", "cp -r /etc /srv/x")
SWAP = (
    f"while :; do {' '.join(f'ln -sfn /srv/kept /srv/x; rm -rf /srv/x; {made};' for made in OTHERS)} done 2>/dev/null &"
)


async def test_symlinks_do_not_lead_out_of_sandbox(after_an_attack: Scene) -> None:
    attacker = after_an_attack.attacker
    for target in LEADS_OUT:
        await attacker.write_link("/srv/x", target)
        for path in ("/srv/x", f"/srv/x/{target}", target):
            for call in (attacker.read_file(path), attacker.walk(path)):
                with pytest.raises(PathError):
                    await call
        assert (await attacker.stat("/srv/x")).kind is FileKind.SYMLINK
        await attacker.remove_path("/srv/x")


async def test_special_file_is_refused_at_once(after_an_attack: Scene) -> None:
    attacker = after_an_attack.attacker
    for made in NO_FILES:
        await after_an_attack.attack(f"{made} /srv/x")
        async with asyncio.timeout(ANSWER_S):
            for call in (attacker.read_file("/srv/x"), attacker.write_file("/srv/x", b"x")):
                with pytest.raises(PathError):
                    await call
            await attacker.walk("/srv")
            await attacker.remove_path("/srv/x")
        assert await refusal(attacker.stat("/srv/x")) == errno.ENOENT


async def test_hard_link_does_not_change_image_file(after_an_attack: Scene) -> None:
    """What is in the image is read by all and written by none."""
    await after_an_attack.attack("ln /etc/motd /srv/x; ln /bin/busybox /srv/y")
    await after_an_attack.attacker.write_file("/srv/x", b"changed")
    await after_an_attack.attack("echo changed > /etc/motd; echo changed >> /srv/y")
    assert await after_an_attack.sibling.read_file("/etc/motd") == b"hello\n"
    async with after_an_attack.runtime.scope(after_an_attack.sibling.spec) as newcomer:
        assert await newcomer.read_file("/etc/motd") == b"hello\n"


def calls(sandbox: Sandbox) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: sandbox.read_file("/srv/x"),
        lambda: sandbox.read_file("/srv/x/motd"),
        lambda: sandbox.write_file("/srv/x", b"x"),
        lambda: sandbox.write_file("/srv/x/y/z", b"x", parents=True),
        lambda: sandbox.write_link("/srv/x/l", "t"),
        lambda: sandbox.remove_path("/srv/x"),
        lambda: sandbox.remove_path("/srv/x/y"),
        lambda: sandbox.stat("/srv/x/motd"),
        lambda: sandbox.walk("/srv"),
        lambda: sandbox.walk("/srv/x"),
    ]


async def test_path_swapped_during_call_does_no_harm(after_an_attack: Scene) -> None:
    """A path turns from a link to something else and back while the host uses it. Removal follows no link."""
    attacker = after_an_attack.attacker
    await after_an_attack.attack("mkdir /srv/kept; echo kept > /srv/kept/y")
    await after_an_attack.attack(SWAP)
    for _ in range(50):
        for call in calls(attacker):
            with contextlib.suppress(PathError):
                async with asyncio.timeout(ANSWER_S):
                    await call()
    await attacker.kill_all()
    assert (await attacker.stat("/srv/kept")).kind is FileKind.DIRECTORY


async def test_file_changing_during_read_respects_limit(after_an_attack: Scene) -> None:
    attacker = after_an_attack.attacker
    await after_an_attack.attack("(while :; do seq 100000 > /srv/x; : > /srv/x; done) &")
    for _ in range(30):
        with contextlib.suppress(PathError):
            assert len(await attacker.read_file("/srv/x", limit=10_000)) <= 10_000
