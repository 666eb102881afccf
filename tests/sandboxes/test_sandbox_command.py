"""``farm sandbox``, as a person uses it: every way out leaves no container."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from sandboxes.toolbox import Toolbox

pytestmark = pytest.mark.docker

Farm = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = (sys.executable, "-m", "farm.cli.main", "sandbox")


@pytest.fixture
def place(toolbox: Toolbox, tmp_path: Path) -> Path:
    """A state directory that has its toolbox already."""
    state = tmp_path / "state"
    (state / "toolbox").mkdir(parents=True)
    (state / "toolbox" / toolbox.path.name).symlink_to(toolbox.path)
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
    assert docker_client.containers.list(all=True, filters={"label": labels}) == []


def test_a_command_gives_its_streams_and_its_code(farm: Farm, test_image: str) -> None:
    done = farm("--workdir", "/tmp", test_image, "--", "sh", "-c", "pwd; echo oops >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "/tmp\n", "oops\n")


def test_a_time_out_is_told(farm: Farm, test_image: str) -> None:
    done = farm("--timeout-s", "0.5", test_image, "--", "sleep", "4242")
    assert done.returncode == 124
    assert "timed out after 0.5 s" in done.stderr


def test_lines_share_one_shell_until_it_ends(farm: Farm, test_image: str) -> None:
    done = farm(test_image, lines="cd /tmp; X=1\n\necho $X in $PWD\nexit 3\necho never\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "1 in /tmp\n", "")


def test_the_end_of_input_ends_it_with_the_last_code(farm: Farm, test_image: str) -> None:
    assert farm(test_image, lines="true\nfalse\n").returncode == 1


def test_a_missing_image_is_one_line(farm: Farm) -> None:
    done = farm("no-such-image:1", "--", "true")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "no-such-image:1" in done.stderr


def _started(place: Path, image: str) -> "subprocess.Popen[str]":
    """A session whose command runs: it has said so through a file of its output."""
    process = subprocess.Popen(
        [*PROGRAM, "--state-dir", str(place), image], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("echo ready\nsleep 4242\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"
    return process


def test_ctrl_c_kills_the_command_and_not_the_session(place: Path, test_image: str) -> None:
    process = _started(place, test_image)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate("echo alive\n", timeout=120)
    assert (process.returncode, out) == (0, "alive\n")


def test_sigterm_ends_it(place: Path, test_image: str) -> None:
    process = _started(place, test_image)
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 143
