"""``farm doctor`` on this machine: what it finds, and how many sandboxes the limits of the host allow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.docker


def doctor(state_dir: Path, *arguments: str, **variables: str) -> tuple[int, dict[str, Any]]:
    program = str(Path(sys.executable).with_name("farm"))
    command = [program, "doctor", "--json", "--state-dir", str(state_dir), *arguments]
    done = subprocess.run(command, env={**os.environ, **variables}, cwd=state_dir, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def finding(told: dict[str, Any], name: str) -> Any:
    [found] = [finding for finding in told["findings"] if finding["name"] == name]
    return found


def test_each_limit_says_how_many_it_allows_and_what_would_raise_it(tmp_path: Path) -> None:
    _, told = doctor(tmp_path, "--sandboxes", "1000000", FARM_RUNTIME="docker")
    assert finding(told, "runtime")["found"] == "docker, as configured"
    assert told["sandboxes"] == 1_000_000
    assert {"kernel.pid_max", "fs.inotify.max_user_instances", "fs.mount-max", "memory"} <= {
        limit["name"] for limit in told["limits"]
    }
    for limit in told["limits"]:
        assert limit["verdict"] == ("ok" if limit["allows"] >= 1_000_000 else "raise")
        assert bool(limit["remedy"]) == (limit["verdict"] == "raise")


def test_the_runtime_that_would_be_taken_is_tried(tmp_path: Path) -> None:
    _, told = doctor(tmp_path, "--sandboxes", "1")
    runtime = finding(told, "runtime")
    assert runtime["found"].startswith("oci: ") or runtime["found"].startswith("docker, which starts slower; not oci: ")
    assert list((tmp_path / "owners").iterdir()) == []


def test_without_a_daemon_the_rest_is_still_said(tmp_path: Path) -> None:
    code, told = doctor(tmp_path, FARM_DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert code == 1
    assert not told["healthy"]
    assert finding(told, "docker")["mark"] == "lacks"
    assert finding(told, "runtime")["mark"] == "warn"
    assert told["limits"]
