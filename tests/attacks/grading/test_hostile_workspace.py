"""A workspace left so that reading it, or applying its change, harms whoever does."""

import errno

import pytest

from farm.grading import ChangeTooLarge, apply_change
from sandboxes.errors import PathError
from sandboxes.interface import FileKind
from sandboxes.spec import SandboxSpec
from tests.attacks.conftest import Arena
from tests.support.attacks.project import WORKSPACE

TOO_LARGE = {
    "ten thousand files": "mkdir many && seq 10000 | split -l 1 -a 5 - many/",
    "a sparse file": "truncate -s 1000M hole",
    "many files that are large together": "for i in 1 2 3 4 5; do head -c 20M /dev/zero > zero$i; done",
}
UNREADABLE = {
    "a file without permissions": ("echo >> pricing/cart.py && chmod 000 pricing/cart.py", errno.EACCES),
    "a directory without permissions": ("mkdir shut && chmod 000 shut", errno.EACCES),
    "a very deep directory": (
        "d=d; for i in 1 2 3 4 5 6 7 8; do d=$d/$d; done; cd /tmp; mkdir -p $d; mv d /workspace/",
        errno.ENAMETOOLONG,
    ),
}


@pytest.mark.parametrize("attack", TOO_LARGE.values(), ids=TOO_LARGE)
async def test_too_large_change_is_refused(arena: Arena, attack: str) -> None:
    with pytest.raises(ChangeTooLarge):
        await arena.change(attack)


@pytest.mark.parametrize(("attack", "code"), UNREADABLE.values(), ids=UNREADABLE)
async def test_unreadable_workspace_raises_path_error(arena: Arena, attack: str, code: int) -> None:
    with pytest.raises(PathError) as caught:
        await arena.change(attack)
    assert caught.value.errno == code


@pytest.mark.docker_too
async def test_odd_files_are_recorded_without_special_files(arena: Arena) -> None:
    change = await arena.change(
        """
        mkfifo pipe; ln /etc/passwd hard; ln -s /proc/self/root/etc out; ln -s loop loop
        printf x > "$(printf 'new\\nline')"; printf x > "$(printf '\\377\\376')"; touch -- -rf
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
        """
    )
    found = {file.path: file.content for file in change.files}
    assert found.pop("hard").startswith(b"root:")
    assert found == {
        "out": b"/proc/self/root/etc",
        "loop": b"loop",
        "new\nline": b"x",
        "\udcff\udcfe": b"x",
        "-rf": b"",
    }


@pytest.mark.docker_too
async def test_symlink_is_applied_and_never_followed(arena: Arena) -> None:
    change = await arena.change(
        "rm -r pricing && ln -s /etc pricing && rm pyproject.toml && ln -s /etc/hostname pyproject.toml"
    )
    async with arena.runtime.scope(SandboxSpec(arena.image, workdir=WORKSPACE)) as sandbox:
        before = await sandbox.walk("/etc")
        await apply_change(sandbox, WORKSPACE, change)
        assert await sandbox.walk("/etc") == before
        assert (await sandbox.stat("pricing")).kind is FileKind.SYMLINK
        assert (await sandbox.stat("pyproject.toml")).kind is FileKind.SYMLINK


async def test_moved_workspace_earns_nothing(arena: Arena) -> None:
    verdict = await arena.ours("cd / && mv workspace w && ln -s w workspace")
    assert verdict.reward == 0.0
    assert verdict.components["changed_files"] == 5
