"""The task that ``farm tasks new`` makes is fit as it stands."""

import json
import subprocess
from pathlib import Path

import pytest

from farm.task_generation.scaffold import scaffold_task
from farm.tasks import TaskError, load_task
from tests.support.state_dirs import share

ROOT = Path(__file__).resolve().parents[3]
FARM = ROOT / ".venv/bin/farm"


def farm(*words: object, state_dir: Path) -> subprocess.CompletedProcess[str]:
    if not state_dir.exists():
        share(state_dir)
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "FARM_STATE_DIR": str(state_dir), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [FARM, "tasks", *map(str, words)], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tasks/x/..", "tasks/x/..: exists already; choose another name"),
        (".", ".: exists already; choose another name"),
        ("tasks/My Task", "tasks/My Task: 'My Task' is not a task name; use letters"),
        ("file/one", "file/one: cannot be written ("),
    ],
)
def test_invalid_task_path_is_refused_and_left_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(TaskError) as refused:
        scaffold_task(Path(name))
    assert str(refused.value).startswith(said)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "tasks"]


@pytest.mark.docker
def test_new_task_is_fit_and_never_overwritten(tmp_path: Path) -> None:
    task = tmp_path / "free-apples"
    made = farm("new", task, state_dir=tmp_path / "state")
    assert made.returncode == 0, made.stderr
    assert f"farm tasks validate {task}" in made.stdout.replace("\n", "")
    assert load_task(task, state_dir=tmp_path).task.id == "free-apples"
    validated = farm("validate", task, "--json", state_dir=tmp_path / "state")
    assert validated.returncode == 0, validated.stdout + validated.stderr
    (finding,) = json.loads(validated.stdout)["tasks"]
    assert (finding["fit"], finding["problems"]) == (True, [])
    whole = (task / "solution/solve.sh").read_bytes()
    (task / "environment/workspace/kept.txt").write_bytes(whole)
    manifest = (task / "task.toml").read_text()
    (task / "task.toml").write_text(manifest.replace("[environment]", "[environment]\nallow_internet = true"))
    leaky = farm("validate", task, "--json", state_dir=tmp_path / "state")
    (finding,) = json.loads(leaky.stdout)["tasks"]
    assert (leaky.returncode, finding["fit"]) == (1, False)
    assert "kept.txt holds" in " ".join(finding["problems"])
    assert any(note.startswith("environment.allow_internet is ignored") for note in finding["notes"])
    odd = farm("new", tmp_path / "free apples", state_dir=tmp_path / "state")
    assert (odd.returncode, "is not a task name" in odd.stderr) == (1, True), odd.stderr
    assert not (tmp_path / "free apples").exists()
    again = farm("new", task, state_dir=tmp_path / "state")
    assert again.returncode == 1
    assert "exists already; choose another name" in again.stderr.replace("\n", " ")
