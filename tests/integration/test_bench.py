"""``farm bench`` measures both sides in one run and leaves nothing."""

import json
from dataclasses import replace
from pathlib import Path

import docker
import pytest
from typer.testing import CliRunner

from farm.bench import BenchError, BenchResult, Machine, measure_episodes
from farm.cli.bench import app
from farm.cli.errors import CliError
from sandboxes.runtimes.docker import DockerRuntime
from tests.integration.tiny import GOLD, task

pytestmark = pytest.mark.docker


async def test_episodes_are_measured_beside_the_docker_loop(
    docker_runtime: DockerRuntime, tiny_image: str, docker_client: docker.DockerClient
) -> None:
    rounds: list[int] = []
    figures = await measure_episodes(
        task(tiny_image, gold=GOLD), docker_runtime, docker_host=None, rounds=2, concurrency=2, on_round=rounds.append
    )
    document = json.loads(json.dumps(BenchResult("episodes", Machine.here("docker"), figures).document()))
    assert rounds == [0, 1, 2]
    assert [(figure["name"], figure["unit"], figure["baseline_name"]) for figure in document["figures"]] == [
        ("episodes_per_min", "1/min", "docker_sdk_loop"),
        ("overhead_p50_ms", "ms", "docker_sdk_loop"),
    ]
    for figure in document["figures"]:
        assert figure["ratio"] == pytest.approx(figure["value"] / figure["baseline"])
    assert document["machine"].keys() == {"cores", "memory_mib", "kernel", "runtime"}
    assert [name async for name in docker_runtime.living()] == []
    assert docker_client.containers.list(all=True, filters={"label": "farm.bench"}) == []


async def test_an_oracle_that_fails_is_no_figure(docker_runtime: DockerRuntime, tiny_image: str) -> None:
    unsolved = replace(GOLD, files=tuple(file for file in GOLD.files if file.path != "tiny.py"))
    with pytest.raises(BenchError, match=r"reward 0.0: 1 of 2 expected tests"):
        await measure_episodes(
            task(tiny_image, gold=unsolved), docker_runtime, docker_host=None, rounds=1, concurrency=1, on_round=print
        )


def test_a_task_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(app, ["episodes", "--task", str(tmp_path / "none"), "--state-dir", str(tmp_path)])
    assert isinstance(outcome.exception, CliError)
    assert "task.toml: missing" in str(outcome.exception)
