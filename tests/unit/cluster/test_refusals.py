"""A farm that cannot come up says why in one line, at once, and leaves nothing half started."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from pydantic import SecretStr

from farm.cluster import ClusterError, running_farm, stop_farm, sweep_farm
from farm.cluster.launch import GatewayConfig, RunningFarm, _together, join_farm, start_farm
from farm.cluster.ray_process import RayNode
from farm.cluster.state_dir import FarmInfo, locked, write_farm_info
from farm.cluster.versions import RAY_FLOOR
from farm.config import Config
from farm.core.toml import read_toml
from farm.grading.diff.style import RUFF
from tests.support.farm.grading_values import install_ruff

TOKEN = SecretStr("a-token-of-some-length")


def never(plan: GatewayConfig) -> AbstractAsyncContextManager[str]:
    pytest.fail("the gateway must not be reached")


def up(**settings: Any) -> Callable[[Path], AbstractAsyncContextManager[RunningFarm]]:
    return lambda state_dir: start_farm(Config(state_dir=state_dir, **settings), serve=never)


def join(address: str, token: SecretStr | None = TOKEN) -> Callable[[Path], AbstractAsyncContextManager[RunningFarm]]:
    return lambda state_dir: join_farm(Config(state_dir=state_dir, join_token=token), address)


@pytest.mark.parametrize(
    ("attempt", "complaint"),
    [
        (up(redis_url=SecretStr("redis://127.0.0.1:1/0")), "redis://127.0.0.1:1/0 does not accept commands"),
        (up(redis_url=SecretStr("nonsense://x")), "redis_url nonsense://x"),
        (up(archive="/nonexistent/kept"), "the archive /nonexistent/kept: there is no such directory; create it"),
        (up(archive="nonsense://kept"), "the archive nonsense://kept: Protocol not known"),
        (up(node_ip="0.0.0.0"), "name the address by which other machines reach this one"),
        pytest.param(
            up(docker_host="unix:///nonexistent/docker.sock"),
            "/nonexistent/docker.sock does not exist; install docker.io and start the daemon",
            marks=pytest.mark.redis,
        ),
        (join("127.0.0.1:1"), "no farm answers at 127.0.0.1:1; give the address"),
        (join("127.0.0.1:99999"), "no farm answers at 127.0.0.1:99999"),
        (join("nonsense"), "'nonsense' is not an address; write HOST:PORT"),
        (join("127.0.0.1:1", None), "set FARM_JOIN_TOKEN"),
    ],
)
async def test_refused_start_gives_one_line_and_leaves_nothing(
    tmp_path: Path, attempt: Callable[[Path], AbstractAsyncContextManager[RunningFarm]], complaint: str
) -> None:
    with pytest.raises(ClusterError) as refused:
        await attempt(tmp_path).__aenter__()
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)
    assert running_farm(tmp_path) is None
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]


async def test_error_of_cause_is_raised_if_both_fail() -> None:
    failed = asyncio.Event()

    async def cause() -> None:
        await failed.wait()
        raise ClusterError("the cause")

    async def work() -> None:
        failed.set()
        raise ClusterError("a consequence")

    with pytest.raises(ClusterError, match="the cause"):
        await _together(cause(), work())


def test_a_taken_ray_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port}: .*another ray_port"):
            asyncio.run(RayNode(tmp_path, tmp_path / "token", node_ip="127.0.0.1", port=port).__aenter__())
    assert not list(tmp_path.iterdir())


def test_an_unwritable_state_directory_is_named() -> None:
    with pytest.raises(ClusterError, match="choose a writable state_dir"), locked(Path("/proc/farm")):
        pytest.fail("it must not be claimed")


def test_running_farm_is_found_and_sweeping_refused(tmp_path: Path) -> None:
    assert running_farm(tmp_path) is None
    info = FarmInfo(tmp_path, "head", 1, "http://127.0.0.1:1", "127.0.0.1:2", "node-a", 3.0)
    with locked(tmp_path):
        assert running_farm(tmp_path) is None, "it is not yet up"
        write_farm_info(info)
        assert running_farm(tmp_path) == info
        with pytest.raises(ClusterError, match="as process 1; stop it with `farm down`"):
            sweep_farm(tmp_path)
    assert running_farm(tmp_path) is None
    stop_farm(FarmInfo(tmp_path, "head", 2**22, "", "", "", 0.0))


def test_reading_farm_state_never_blocks_lock(tmp_path: Path) -> None:
    """A reader also never takes another reader for a running farm."""
    with locked(tmp_path):
        write_farm_info(FarmInfo(tmp_path, "head", 1, "", "", "", 0.0))
        left = (tmp_path / "run" / "farm.json").read_text()
    over, seen = threading.Event(), []

    def look() -> None:
        while not over.is_set():
            seen.append(running_farm(tmp_path))

    (tmp_path / "run" / "farm.json").write_text(left)  # of one that was killed
    others = [threading.Thread(target=look) for _ in range(2)]
    for other in others:
        other.start()
    try:
        while len(seen) < 500:
            assert running_farm(tmp_path) is None
        (tmp_path / "run" / "farm.json").unlink()
        for _ in range(200):
            with locked(tmp_path):
                pass
    finally:
        over.set()
        for other in others:
            other.join()
    assert set(seen) == {None}


def test_sweep_removes_files_of_killed_farm(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run_dir = tmp_path / "state" / "run"
    run_dir.mkdir(parents=True)
    (run_dir / "scratch").write_text(str(scratch))
    (run_dir / "farm.json").write_text("{")
    sweep_farm(tmp_path / "state")
    assert not scratch.exists()
    assert [path.name for path in run_dir.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("version", "complaint"),
    [
        ("2.40.0", "ray: 2.40.0 has no token authentication; pip install 'ray>=2.52'"),
        ("2.51.2", "ray: 2.51.2 has no token authentication; pip install 'ray>=2.52'"),
    ],
)
async def test_a_ray_without_token_authentication_is_refused(
    tmp_path: Path, version: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site" / f"ray-{version}.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ClusterError) as refused:
        await up()(tmp_path / "state").__aenter__()
    assert str(refused.value) == complaint
    assert running_farm(tmp_path / "state") is None


async def test_other_ruff_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_ruff(tmp_path, monkeypatch, "0.15.8")
    with pytest.raises(ClusterError) as refused:
        await join("127.0.0.1:1")(tmp_path / "state").__aenter__()
    told = f"ruff: 0.15.8 is not {RUFF}, which all nodes measure style with; pip install ruff=={RUFF}"
    assert str(refused.value) == told


def test_required_versions_equal_checked_versions() -> None:
    project = read_toml((Path(__file__).parents[3] / "pyproject.toml").read_bytes())["project"]
    required = {
        found.name: str(found.specifier) for found in map(Requirement, project["optional-dependencies"]["node"])
    }
    assert required["ray"] == f">={RAY_FLOOR}"
    assert required["ruff"] == f"=={RUFF}"
    assert "pip" in required
    assert project["license"] == "Apache-2.0", "setuptools takes an SPDX expression alone"


def test_call_without_a_connection_starts_no_ray(tmp_path: Path) -> None:
    program = "import farm.cluster, ray\nray.remote(lambda: 1).remote()"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Ray has not been started yet" in done.stderr
    assert list(tmp_path.iterdir()) == []
