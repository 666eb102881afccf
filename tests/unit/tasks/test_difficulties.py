"""The difficulties that task directories give."""

from pathlib import Path

from farm.tasks.difficulties import difficulties


def test_difficulties_are_read_by_task_id(tmp_path: Path) -> None:
    manifests = {
        "easy": '[metadata]\ndifficulty = "easy"\n',
        "named": '[task]\nname = "other"\n[metadata]\ndifficulty = "hard"\n',
        "silent": "[metadata]\n",
        "number": "[metadata]\ndifficulty = 3\n",
        "broken": "[metadata\n",
        "bad name": '[metadata]\ndifficulty = "easy"\n',
    }
    for name, manifest in manifests.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.toml").write_text(manifest)
    assert difficulties(tmp_path) == {"easy": "easy", "other": "hard"}
