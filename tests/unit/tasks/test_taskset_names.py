"""A task set's name names a sub-folder of one directory, and never leads out of it."""

from pathlib import Path

import pytest

from farm.tasks import TaskError, is_taskset_name, named_taskset


def test_name_is_a_sub_directory(tmp_path: Path) -> None:
    (tmp_path / "demo-1.0").mkdir()
    assert named_taskset("demo-1.0", tmp_path) == tmp_path / "demo-1.0"


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "/etc", "../etc", ".hidden", "a\0", "a\n", "-x", "x" * 129, "é", "~"]
)
def test_names_that_are_paths_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / ".hidden").mkdir()
    assert not is_taskset_name(name)
    with pytest.raises(TaskError, match="no task set goes by that name"):
        named_taskset(name, tmp_path)


def test_unknown_name_lists_the_existing_ones(tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / f"set-{number:02}").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(TaskError, match=r"holds set-00, .*, set-19, …$"):
        named_taskset("file", tmp_path)


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="gone: No such file or directory; correct tasksets"):
        named_taskset("demo", tmp_path / "gone")
    with pytest.raises(TaskError, match="set tasksets to use names"):
        named_taskset("demo", None)
