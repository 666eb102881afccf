"""What a task asks for and does not get is told by its place, wherever that is."""

from pathlib import Path

import pytest

from farm.tasks.schema.unsupported import unsupported_features
from tests.unit.tasks.test_loader import MANIFEST, load, write_steps, write_task

SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


def told(path: Path) -> list[str]:
    load(path)
    warnings = unsupported_features(path)
    assert not any("\n" in warning for warning in warnings)
    return [warning.split(" is ignored: ")[0] for warning in warnings]


@pytest.mark.parametrize(
    ("toml", "places"),
    [
        ('[agent]\nallowed_hosts = ["a.org"]\n', ["agent.allowed_hosts"]),
        ('[agent]\nallowed_hosts = ["a.org"]\nnetwork_mode = "allowlist"\n', []),
        ('[environment]\nallowed_hosts = ["a.org"]\n', ["environment.allowed_hosts"]),
        ('[verifier]\nallowed_hosts = ["a.org"]\n', ["verifier.allowed_hosts"]),
        ("[verifier]\ntimeout = 3\n", ["verifier.timeout"]),
        ("[agent]\nretries = 3\n[odd]\nx = 1\n", ["agent.retries", "odd"]),
        ('[environment]\ngpu_types = ["H100"]\nmemory = "1G"\n', ["environment.gpu_types"]),
        (
            '[environment.healthcheck]\ncommand = "true"\nstart_interval_sec = 1\n',
            ["environment.healthcheck.start_interval_sec"],
        ),
        ('[task]\nname = "a/b"\ndescription = "x"\n[metadata.mine]\nx = 1\n', []),
        ('"odd\\nkey" = 1\n', ["odd\\nkey"]),
    ],
)
def test_pytest_task_lists_unsupported_keys(tmp_path: Path, toml: str, places: list[str]) -> None:
    top = toml if toml.startswith('"') else ""
    assert told(write_task(tmp_path, task_DOT_toml=top + MANIFEST + toml.removeprefix(top))) == places


@pytest.mark.parametrize(
    ("toml", "places"),
    [
        ('artifacts = ["/app/x"]\n', ["artifacts"]),
        ('artifacts = [{source = "/app/x", destination = "y"}]\n' + SEPARATE, ["artifacts.0.destination"]),
        ('artifacts = ["/app/x"]\nmulti_step_reward_strategy = "final"\n' + SEPARATE, ["multi_step_reward_strategy"]),
        ("[verifier.environment]\nallow_internet = true\n", ["verifier.environment.allow_internet"]),
        (
            "[metadata.farm]\nnetwork = 'none'\n[verifier.environment]\nallow_internet = true\n",
            ["verifier.environment.allow_internet"],
        ),
        ('[verifier.environment]\nallowed_hosts = ["a.org"]\n', ["verifier.environment.allowed_hosts"]),
        ("[verifier.environment]\nbuild_timeout_sec = 60.0\n", ["verifier.environment.build_timeout_sec"]),
        ('[verifier.environment]\ntpu = {type = "v6e"}\n', ["verifier.environment.tpu"]),
        (
            '[verifier.environment.healthcheck]\ncommand = "true"\nodd = 1\n',
            ["verifier.environment.healthcheck", "verifier.environment.healthcheck.odd"],
        ),
        ('version = "1.0"\nsource = "somewhere"\n', []),
    ],
)
def test_reward_file_task_lists_unsupported_keys(tmp_path: Path, toml: str, places: list[str]) -> None:
    script = "echo 1 > /logs/verifier/reward.txt\n"
    assert told(write_task(tmp_path, task_DOT_toml=toml, tests__test_DOT_sh=script)) == places


def test_task_of_steps_lists_unsupported_keys(tmp_path: Path) -> None:
    path = write_steps(tmp_path, without="instruction.md")
    assert told(path) == []
    (path / "task.toml").write_text(
        '[[steps]]\nname = "one"\nartifacts = ["/app/x"]\nretries = 1\n'
        '[steps.verifier]\nallowed_hosts = ["a.org"]\ntimeout = 1\n'
        '[steps.healthcheck]\ncommand = "true"\nstart_interval_sec = 1.0\n'
    )
    (path / "instruction.md").write_text("All of it.\n")
    (path / "solution").mkdir()
    (path / "steps" / "one" / "environment").mkdir()
    assert told(path) == [
        "steps.one.verifier.allowed_hosts",
        "steps.one.artifacts",
        "steps.one.retries",
        "steps.one.verifier.timeout",
        "steps.one.healthcheck.start_interval_sec",
        "instruction.md",
        "solution",
        "steps/one/environment",
        "steps/two",
    ]


def test_undeclared_steps_are_listed(tmp_path: Path) -> None:
    assert told(write_task(tmp_path, steps__lay__instruction_DOT_md="Lay it.\n")) == ["steps/"]
