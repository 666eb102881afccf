"""A directory of one's own is read, never written to, and refused where nothing can come of it."""

import json
import re
import shutil
from pathlib import Path

import pytest

from farm.task_generation.mutation.directory import TREE
from farm.task_generation.mutation.repository import open_repository
from farm.task_generation.mutation.requirements import parse_report
from farm.tasks import TaskError

FILES = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "src/purse/__init__.py": "def pay(): ...\n",
    "tests/test_purse.py": "def test_pay(): ...\n",
}
PINS = ("pytest==8.4.2",)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def report(*packages: tuple[str, str, str]) -> bytes:
    """Return a pip report with the name, version and URL of each package."""
    items = [
        {"metadata": {"name": name, "version": version}, "download_info": {"url": url}}
        for name, version, url in packages
    ]
    return json.dumps({"install": items}).encode()


def test_pins_leave_out_the_repository(tmp_path: Path) -> None:
    repository = open_repository(str(write(tmp_path / "checkout", {**FILES, "checkout.py": ""})), state_dir=tmp_path)
    own = ("purse", "1", f"file://{TREE}/repository")
    found = report(own, ("pytest", "8", "https://x/pytest.whl"), ("Checkout", "3", "https://x/checkout.whl"))
    assert repository.requirements == ()
    assert parse_report(repository, found) == ("pytest==8",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "not a report"),
        (b"[" * 100_000, "not a report"),
        (b'{"install": [3]}', "not a report"),
        (report(), "0 requirements"),
        (report(*((f"p{number}", "1", "x:") for number in range(2_001))), "2001 requirements, not 1 to 2000"),
        (report(("a' && curl evil #", "1", "x:")), "is not a pin"),
    ],
)
def test_forged_pip_report_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    repository = open_repository(str(write(tmp_path / "purse", FILES)), state_dir=tmp_path)
    with pytest.raises(TaskError) as caught:
        parse_report(repository, content)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("pyproject.toml", "pip cannot install it: it has neither pyproject.toml nor setup.py; add one"),
        ("src", r"holds no package: no directory with __init__.py .* nor purse.py; move the package there"),
        ("tests", r"holds no tests: no file is named test_\*.py or \*_test.py; add tests that pytest collects"),
    ],
)
@pytest.mark.parametrize("pins", [PINS, ()])
def test_unusable_directory_is_refused(gone: str, said: str, pins: tuple[str, ...], tmp_path: Path) -> None:
    root = write(tmp_path / "purse", FILES)
    assert open_repository(str(root), state_dir=tmp_path, pins=PINS).package == "purse"
    path = root / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(TaskError) as caught:
        open_repository(str(root), state_dir=tmp_path, pins=pins)
    assert re.search(said, str(caught.value))
    assert "\n" not in str(caught.value)
