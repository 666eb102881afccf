"""Values of a task's files that are of the right kind and that nothing can work with.

Each was accepted when the task was read, and failed later in a place that does not blame the task, or it raised
something else than an error of the task.
"""

import json
from pathlib import Path

import pytest

from farm.tasks import TaskError, pack, read_task, read_taskset, unpack
from tests.unit.tasks.test_loader import write_task

RETRIEVAL = """
[metadata.farm.retrieval]
expected = [{path = "a.py", lines = [[1, %s]]}]
"""
STEPS = """
[[steps]]
name = "first"
min_reward = %s
"""
COMPOSE = "services:\n  main:\n    %s\n"


def fault_of(task: Path) -> str:
    """Return the error of a task that is read and packed."""
    with pytest.raises(TaskError) as caught:
        unpack(pack(read_task(task).bundle))
    message = str(caught.value)
    assert message.encode().decode().isprintable()
    return message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (RETRIEVAL % f"0x{'f' * 100_000}", "metadata.farm.retrieval.expected.0.lines.0"),
        (RETRIEVAL % 2**64, "metadata.farm.retrieval.expected.0.lines.0"),
        (STEPS % "nan", "steps.0.min_reward"),
        (STEPS % "{reward = nan}", "steps.0.min_reward"),
        (STEPS % "{reward = -inf}", "steps.0.min_reward"),
        ("[environment]\ncpus = 1e-320", "environment.cpus"),
        ("[environment]\ncpus = nan", "environment.cpus"),
        ('[environment]\nworkdir = "/proc/1"', "environment.workdir"),
        ('[environment]\nworkdir = "/a\\u001b[2J"', "environment.workdir"),
        ('[metadata.farm]\nworkspace = "/.farm/bin"', "metadata.farm.workspace"),
        ('[metadata.farm]\nworkspace = "/a\\nb"', "metadata.farm.workspace"),
    ],
)
def test_value_that_nothing_works_with_is_an_error_of_the_task(tmp_path: Path, text: str, key: str) -> None:
    task = write_task(tmp_path, task_DOT_toml=text)
    assert key in fault_of(task)


@pytest.mark.parametrize(
    "line",
    [
        'working_dir: "/"',
        'working_dir: "/a\\0b"',
        'working_dir: "/../../etc"',
        'working_dir: "//etc"',
        'working_dir: "/sys/fs"',
        'working_dir: "/a\\e[2J"',
        'working_dir: "/a\\uD800"',
        f"working_dir: /{'a' * 5000}",
        'environment: {A: "\\uDFFF"}',
    ],
)
def test_compose_file_has_the_rules_of_task_toml(tmp_path: Path, line: str) -> None:
    task = write_task(tmp_path, **{"environment__docker-compose_DOT_yaml": COMPOSE % line})
    assert "docker-compose.yaml" in fault_of(task)


@pytest.mark.parametrize("workdir", ["/a\0b", "/a\x1b[2J", "/dev/shm/x", "/.farm", f"/{'a' * 5000}"])
def test_workdir_of_a_dockerfile_has_the_rules_of_task_toml(tmp_path: Path, workdir: str) -> None:
    task = write_task(tmp_path, task_DOT_toml="", environment__Dockerfile=f"FROM a\nWORKDIR {workdir}\n")
    assert "WORKDIR" in fault_of(task)


def test_symlinks_in_a_circle_are_a_fault_of_their_row(tmp_path: Path) -> None:
    write_task(tmp_path, "good")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "set.jsonl").write_text("".join(f"{json.dumps({'path': name})}\n" for name in ("circle", "good")))
    faults: list[object] = []
    assert [task.path.name for task in read_taskset(tmp_path / "set.jsonl", faults=faults)] == ["good"]  # type: ignore[arg-type]  # only counted
    assert len(faults) == 1


def test_name_outside_utf_8_is_written_in_the_error(tmp_path: Path) -> None:
    task = tmp_path / "\udcff"
    task.mkdir()
    (task / "task.toml").write_text("")
    with pytest.raises(TaskError) as caught:
        list(read_taskset(tmp_path))
    assert "\\udcff" in str(caught.value)
    assert str(caught.value).encode()
