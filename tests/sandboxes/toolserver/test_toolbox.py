"""The toolbox: made once, whole, and named by what is in it."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxes.errors import RuntimeUnavailable
from sandboxes.toolserver.toolbox import Toolbox, ensure_toolbox

ROOT = Path(__file__).parents[3]


def test_concurrent_builds_make_one_toolbox(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        boxes = set(pool.map(ensure_toolbox, [tmp_path] * 4))
    assert len(boxes) == 1
    made = next(iter(boxes)).path
    before = (made / "bin" / "toolserver").stat().st_mtime_ns
    assert ensure_toolbox(tmp_path) == Toolbox(made)
    assert (made / "bin" / "toolserver").stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "toolbox").iterdir()] == [made.parent.name]


def test_toolbox_programs_are_static_and_small(toolbox: Toolbox) -> None:
    programs = toolbox.path / "bin"
    assert {path.name for path in programs.iterdir()} == {"bash", "busybox", "rg", "toolserver"}
    for program in programs.iterdir():
        said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        assert "not a dynamic executable" in said.stderr + said.stdout or "statically linked" in said.stdout
        assert program.stat().st_mode & 0o777 == 0o755
    assert (programs / "toolserver").stat().st_size < 100_000


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeUnavailable, match="make musl-tools gcc libc6-dev bash-static busybox-static ripgrep"):
        ensure_toolbox(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_build_script_prints_path(tmp_path: Path) -> None:
    script = ROOT / "images" / "toolbox" / "build.sh"
    said = subprocess.run(
        [script, tmp_path], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=True
    )
    assert (Path(said.stdout.strip()) / "bin" / "toolserver").is_file()
