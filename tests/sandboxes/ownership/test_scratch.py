"""Directories for the length of one piece of work, whose makers may die."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sandboxes.ownership.scratch_dirs import PREFIX, scratch, sweep
from tests.support.services import needs_root

pytestmark = needs_root

HOLD = """
import sys
from pathlib import Path
from sandboxes.ownership.scratch_dirs import scratch
with scratch(Path(sys.argv[1])) as path:
    (path / "note").write_text("x")
    print(path, flush=True)
    sys.stdin.read()
"""

MANY = """
import sys
from pathlib import Path
from sandboxes.ownership.scratch_dirs import scratch
for turn in range(int(sys.argv[2])):
    with scratch(Path(sys.argv[1])) as path:
        (path / "deep" / "er").mkdir(parents=True)
        (path / "deep" / "er" / "note").write_text(str(turn))
        assert (path / "deep" / "er" / "note").read_text() == str(turn)
"""


@contextmanager
def holder(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    command = [sys.executable, "-c", HOLD, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process, Path(process.stdout.readline().rstrip())
        process.kill()


def test_scratch_directory_is_removed_after_success_and_error(tmp_path: Path) -> None:
    with scratch(tmp_path) as path:
        (path / "sub").mkdir(mode=0o000)
        assert path.parent == tmp_path
        assert path.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError), scratch(tmp_path):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_sweep_removes_only_directories_of_dead_processes(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path)
    (tmp_path / f"{PREFIX}file").touch()
    (tmp_path / "another").mkdir()
    (tmp_path / f"{PREFIX}theirs").mkdir()
    os.chown(tmp_path / f"{PREFIX}theirs", 65534, 65534)
    others = set(tmp_path.iterdir())
    with holder(tmp_path) as (_, living), holder(tmp_path) as (dying, dead):
        assert living.is_dir()
        dying.kill()
        dying.wait()
        assert (dead / "note").is_file()
        with scratch(tmp_path) as mine:
            assert set(tmp_path.iterdir()) == others | {living, mine}
            sweep(tmp_path)
            assert set(tmp_path.iterdir()) == others | {living, mine}
        assert (living / "note").is_file()
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) == others


def test_failed_lock_raises_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(OSError, match="locks"), scratch(tmp_path):
        raise AssertionError
    assert list(tmp_path.iterdir()) == []


def test_undeletable_directory_does_not_block_others(tmp_path: Path) -> None:
    with scratch(tmp_path) as path:
        (path / "disk").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", path / "disk"], check=True)
    try:
        with scratch(tmp_path) as other:
            assert set(tmp_path.iterdir()) == {path, other}
    finally:
        subprocess.run(["umount", path / "disk"], check=True)
    sweep(tmp_path)
    sweep(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


def test_concurrent_processes_keep_their_own_directories(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MANY, str(tmp_path), "60"]
    with ExitStack() as stack:
        for process in [stack.enter_context(subprocess.Popen(command)) for _ in range(6)]:
            assert process.wait() == 0
    assert list(tmp_path.iterdir()) == []
