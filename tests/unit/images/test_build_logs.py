"""Logs of failed builds: whole, and bounded in size and number."""

import os
from pathlib import Path

import pytest

from sandboxes.images import build_logs
from sandboxes.images.build_logs import BuildLogs, BuildOutput


def output(*lines: str, most_bytes: int = 1000) -> BuildOutput:
    made = BuildOutput(most_bytes)
    for line in lines:
        made.take(line)
    return made


def test_log_is_complete_and_private(tmp_path: Path) -> None:
    path = BuildLogs.of(tmp_path).keep("registry.example/a/b:1", output("one", "two"))
    assert path == tmp_path / "log" / "builds" / "registry.example-a-b-1.log"
    assert path.read_bytes() == b"one\ntwo\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_next_failure_of_image_replaces_log(tmp_path: Path) -> None:
    logs = BuildLogs(tmp_path)
    assert logs.keep("a:1", output("one")) == logs.keep("a:1", output("two"))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"two\n"]


def test_long_output_keeps_beginning_and_end() -> None:
    lines = [f"line {number}" for number in range(1000)]
    content = output(*lines).content().decode().splitlines()
    gap = next(number for number, line in enumerate(content) if "left out" in line)
    left_out = 1000 - (len(content) - 1)
    assert content[gap] == f"[{left_out} lines are left out here]"
    assert content[:gap] == lines[:gap]
    assert content[gap + 1 :] == lines[-(len(content) - gap - 1) :]
    assert len("\n".join(content)) < 1100
    assert len(output("x" * 5000).content()) == 500


def test_number_of_logs_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_logs, "MAX_LOGS", 3)
    logs = BuildLogs(tmp_path)
    for number in range(5):
        path = logs.keep(f"image-{number}", output("failed"))
        assert path is not None
        os.utime(path, (number, number))
    logs.keep("image-5", output("failed"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image-3.log", "image-4.log", "image-5.log"]


def test_unwritable_log_raises_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert BuildLogs(tmp_path / "file").keep("a:1", output("one")) is None
    assert BuildLogs(tmp_path).keep("a:1", output()) is None
