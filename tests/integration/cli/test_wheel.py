"""The wheel works away from the checkout: the client alone, and all that makes and validates a task."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

import farm
from farm.cli.main import COMMANDS
from farm.tasks import BASE_IMAGE, load_task
from tests.support.services import missing

ROOT = Path(__file__).resolve().parents[3]
UV = Path(sys.executable).with_name("uv")
CLIENT_PACKAGES = {"httpx", "msgpack", "pydantic", "zstandard"}


class Installed:
    """An environment of its own with the wheel. Commands run in an empty directory and cannot see the checkout."""

    def __init__(self, home: Path, wheel: Path, extra: str = "") -> None:
        self.home = home
        self.work = home / "work"
        self.work.mkdir()
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, home / "env"], check=True)
        self.add(wheel, extra)

    def add(self, wheel: Path, extra: str) -> None:
        """Install the wheel with an extra."""
        constraints = ("--constraints", ROOT / "deploy/constraints.txt")
        what = f"{wheel}[{extra}]" if extra else wheel
        install = (UV, "pip", "install", "--quiet", "--python", self.home / "env/bin/python", *constraints, what)
        subprocess.run(install, check=True, cwd=self.work)

    def run(self, program: str, *words: object) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("FARM_", "PYTHON"))}
        return subprocess.run(
            [self.home / "env/bin" / program, *map(str, words)],
            env={**environ, "FARM_STATE_DIR": str(self.home / "state")},
            cwd=self.work,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def checked_in() -> list[str]:
    """The paths of the repository's files, with those that are not committed yet."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    return [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, checked_in: list[str]) -> Path:
    """The wheel of a copy, for an earlier build leaves files in its directory that would be packed again."""
    copy = tmp_path_factory.mktemp("sources")
    for path in checked_in:
        if path.startswith(("farm/", "sandboxes/")) or "/" not in path:
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, copy / path)
    built = tmp_path_factory.mktemp("wheel")
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", built, copy], check=True)
    (found,) = built.glob("*.whl")
    return found


@pytest.mark.xdist_group("wheel")
def test_wheel_contains_all_package_files(wheel: Path, checked_in: list[str]) -> None:
    packaged = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    own = {path for path in checked_in if path.startswith(("farm/", "sandboxes/"))}
    assert packaged == {path for path in own if not path.endswith(".md") and not path.startswith("farm/docs/")}
    needed = {
        "farm/py.typed",
        "sandboxes/py.typed",
        "farm/tasks/base_image/build.sh",
        "sandboxes/toolserver/src/main.c",
        "sandboxes/starter/starter.c",
    }
    assert needed < packaged


@pytest.mark.xdist_group("wheel")
def test_wheel_without_extras_installs_only_client(wheel: Path, tmp_path: Path) -> None:
    """Each command then names the extra that it needs."""
    client = Installed(tmp_path, wheel)
    code = (
        "import importlib.metadata as m; from farm.client import FarmClient; "
        "print(m.version('rollout-farm'), *(r for r in m.requires('rollout-farm') if 'extra' not in r))"
    )
    version, *required = client.run("python", "-c", code).stdout.split()
    assert version == farm.__version__
    assert {name.partition(">")[0] for name in required} == CLIENT_PACKAGES
    assert client.run("farm", "--version").stdout == f"farm {farm.__version__}\n"
    for words in ([], ["--help"], *([name] for name in COMMANDS)):
        ended = client.run("farm", *words)
        assert (ended.returncode, ended.stdout) == (1, "")
        remedy = "pip install 'rollout-farm[node]'"
        assert ended.stderr == f"error: this command needs typer, which is not installed; {remedy}\n"


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("wheel")
def test_installed_wheel_creates_and_validates_task(
    wheel: Path, tmp_path: Path, docker_client: docker.DockerClient, removed_later: Callable[[str], None]
) -> None:
    if not docker_client.images.list(BASE_IMAGE):
        missing(f"the image {BASE_IMAGE}", "`farm images base`, or run tests/run.sh")
    node = Installed(tmp_path, wheel, "node")
    assert node.run("farm", "--version").stdout == f"farm {farm.__version__}\n"
    base = node.run("farm", "images", "base")
    assert (base.returncode, base.stderr) == (0, f"base image: {BASE_IMAGE} is up to date\n")
    examined = json.loads(node.run("farm", "doctor", "--json").stdout)
    marks = {finding["name"]: finding["mark"] for finding in examined["findings"]}
    assert marks["toolbox"] == marks["ray"] == marks["ruff"] == marks["docker"] == "ok", examined["findings"]
    assert node.run("farm", "tasks", "new", "wheel-apples").returncode == 0
    removed_later(load_task(node.work / "wheel-apples", state_dir=tmp_path).task.image)
    lacking = node.run("farm", "tasks", "validate", "wheel-apples")
    assert lacking.returncode == 1
    assert lacking.stderr == (
        "error: this command needs tomlkit, which is not installed; pip install 'rollout-farm[generate]'\n"
    )
    node.add(wheel, "generate")
    validated = node.run("farm", "tasks", "validate", "wheel-apples", "--json")
    assert validated.returncode == 0, validated.stdout + validated.stderr
    (finding,) = json.loads(validated.stdout)["tasks"]
    assert (finding["fit"], finding["problems"]) == (True, [])
    (node.work / "rows.parquet").touch()
    lacking = node.run("farm", "tasks", "import", "swebench", "rows.parquet", "--out", "imported")
    assert lacking.returncode == 1
    assert "pip install 'rollout-farm[parquet]'" in " ".join(lacking.stderr.split())
