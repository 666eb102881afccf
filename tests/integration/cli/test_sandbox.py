"""``farm sandbox``, as a person uses it: every way out leaves no container."""

import asyncio
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import psutil
import pytest

from sandboxes.docker_engine.api import Engine
from sandboxes.ownership.owner import owner_names
from sandboxes.runtimes.reaper import reap
from sandboxes.toolserver.toolbox import Toolbox

pytestmark = pytest.mark.docker

Farm = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = (sys.executable, "-m", "farm.cli.main", "sandbox")


@pytest.fixture
def place(toolbox: Toolbox, tmp_path: Path) -> Path:
    """A state directory that has its toolbox already."""
    state = tmp_path / "state"
    (state / "toolbox").mkdir(parents=True)
    (state / "toolbox" / toolbox.path.parent.name).symlink_to(toolbox.path.parent)
    return state


@pytest.fixture
def farm(place: Path) -> Farm:
    def run(*arguments: str, lines: str = "") -> "subprocess.CompletedProcess[str]":
        command = [*PROGRAM, "--state-dir", str(place), *arguments]
        return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120)

    return run


@pytest.fixture(autouse=True)
def nothing_left(docker_client: docker.DockerClient, place: Path) -> object:
    yield
    labels = [f"farm.state_dir={place}"]
    if docker_client.containers.list(all=True, filters={"label": labels}):
        asyncio.run(reap_leftovers(place))  # a slow daemon did not remove them in time
    assert docker_client.containers.list(all=True, filters={"label": labels}) == []


async def reap_leftovers(place: Path) -> None:
    engine = Engine("unix:///var/run/docker.sock")
    await engine.connect()
    await reap(engine, place)
    await engine.close()


def test_command_passes_on_streams_and_exit_code(farm: Farm, test_image: str) -> None:
    done = farm("--workdir", "/tmp", test_image, "--", "sh", "-c", "pwd; echo oops >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "/tmp\n", "oops\n")


def test_timed_out_command_is_reported(farm: Farm, test_image: str) -> None:
    done = farm("--timeout-s", "0.5", test_image, "--", "sleep", "4242")
    assert done.returncode == 124
    assert "timed out after 0.5 s" in done.stderr


def test_lines_share_one_shell_until_it_ends(farm: Farm, test_image: str) -> None:
    done = farm(test_image, lines="cd /tmp; X=1\n\necho $X in $PWD\nexit 3\necho never\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "1 in /tmp\n", "")


def test_end_of_input_returns_last_exit_code(farm: Farm, test_image: str) -> None:
    assert farm(test_image, lines="true\nfalse\n").returncode == 1


def test_fork_is_entered_and_discarded(farm: Farm, test_image: str) -> None:
    lines = (
        "cd /tmp; echo first > f; x=1",
        ":fork",
        "cat /tmp/f; echo second > /tmp/f; echo $PWD[$x]",
        " :fork ",
        "cat /tmp/f",
        ":back",
        ":back",
        "cat f; echo $PWD[$x]",
        ":back",
        ": > g; ls",
    )
    done = farm(test_image, lines="\n".join(lines) + "\n")
    assert done.stdout == "first\n/[]\nsecond\nfirst\n/tmp[1]\nf\ng\n"
    assert done.returncode == 0
    said = done.stderr.splitlines()
    assert [line.split()[0] for line in said] == ["in", "in", "back", "back", "there"]


def test_missing_image_is_one_error_line(farm: Farm) -> None:
    done = farm("no-such-image:1", "--", "true")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "no-such-image:1" in done.stderr


@pytest.fixture
def busy(place: Path, test_image: str) -> Iterator["subprocess.Popen[str]"]:
    """A session whose command runs by now, as this machine sees it, whichever runtime started its sandbox."""
    process = subprocess.Popen(
        [*PROGRAM, "--state-dir", str(place), test_image], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None
        command = ["sleep", str(10**6 + secrets.randbelow(10**6))]
        process.stdin.write(" ".join(command) + "\n")
        process.stdin.flush()
        deadline = time.monotonic() + 120
        while not any(other.info["cmdline"] == command for other in psutil.process_iter(["cmdline"])):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.communicate()


def test_ctrl_c_kills_command_but_not_session(busy: "subprocess.Popen[str]") -> None:
    busy.send_signal(signal.SIGINT)
    out, _ = busy.communicate("echo alive\n", timeout=120)
    assert (busy.returncode, out) == (0, "alive\n")


def test_next_session_removes_killed_sandbox(
    busy: "subprocess.Popen[str]", farm: Farm, place: Path, test_image: str
) -> None:
    (dead,) = owner_names(place)
    busy.kill()
    busy.communicate(timeout=120)
    assert set(owner_names(place)) <= {dead}  # the reaper of another test may have been quicker
    assert farm(test_image, "--", "true").returncode == 0
    assert owner_names(place) == []


def test_sigterm_ends_session(busy: "subprocess.Popen[str]") -> None:
    busy.terminate()
    busy.communicate(timeout=120)
    assert busy.returncode == 143
