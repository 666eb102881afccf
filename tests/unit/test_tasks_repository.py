"""A directory of one's own is read, never written to, and refused where nothing can come of it."""

import re
import shutil
import zipfile
from pathlib import Path

import pytest

from farm.tasks import TaskError
from farm.workshop.mutation.repository import open_repository

# Whoever builds it leaves marks in the directory, as setuptools does with its egg-info; and no index is needed.
BACKEND = """\
from pathlib import Path


def prepare_metadata_for_build_wheel(where, config_settings=None):
    Path("left-behind").write_text("")
    home = Path(where) / "purse-1.dist-info"
    home.mkdir()
    needs = "".join(f"Requires-Dist: {line}\\n" for line in Path("needs.txt").read_text().splitlines())
    (home / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: purse\\nVersion: 1\\n{needs}")
    return home.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    raise AssertionError("nothing is built")
"""
FILES = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": BACKEND,
    "needs.txt": "",
    "src/purse/__init__.py": "def pay(): ...\n",
    "tests/test_purse.py": "def test_pay(): ...\n",
}
PINS = ("pytest==8.4.2",)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def names(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_pip_is_shown_a_copy_and_leaves_nothing_in_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "purse", FILES)
    before = names(root)
    shelf = write(tmp_path / "shelf", {"empty": ""})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    with pytest.raises(TaskError) as caught:  # nowhere to have pytest from, which is asked for once purse was looked at
        open_repository(str(root), state_dir=tmp_path)
    assert "its requirements cannot be resolved (ERROR: No matching distribution found for pytest)" in str(caught.value)
    assert names(root) == before


def test_a_directory_of_another_name_is_not_among_what_its_tests_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "checkout", FILES)
    with zipfile.ZipFile(tmp_path / "pytest-8-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pytest-8.dist-info/METADATA", "Metadata-Version: 2.1\nName: pytest\nVersion: 8\n")
        wheel.writestr("pytest-8.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("pytest-8.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert open_repository(str(root), state_dir=tmp_path).requirements == ("pytest==8",)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("pyproject.toml", "pip cannot install it: it has neither pyproject.toml nor setup.py; add one"),
        ("src", r"holds no package: no directory with __init__.py .* nor purse.py; lay the package there"),
        ("tests", r"holds no tests: no file is named test_\*.py or \*_test.py; add tests that pytest collects"),
    ],
)
@pytest.mark.parametrize("pins", [PINS, ()])
def test_a_directory_that_no_task_can_be_made_of_says_what_to_do(
    gone: str, said: str, pins: tuple[str, ...], tmp_path: Path
) -> None:
    root = write(tmp_path / "purse", FILES)
    assert open_repository(str(root), state_dir=tmp_path, pins=PINS).package == "purse"
    path = root / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(TaskError) as caught:
        open_repository(str(root), state_dir=tmp_path, pins=pins)
    assert re.search(said, str(caught.value))
    assert "\n" not in str(caught.value)
