"""Files of a few bytes, and some of more."""

import os
from pathlib import Path

import pytest

from sandboxes.linux.small_files import read_small_file, write_small_file


@pytest.mark.parametrize("text", ["", "12\n", "ü", "x" * 200_000])
def test_written_text_is_read_back(tmp_path: Path, text: str) -> None:
    write_small_file(tmp_path / "file", text, os.O_CREAT)
    assert read_small_file(tmp_path / "file") == text


def test_file_returned_in_parts_is_read_whole() -> None:
    assert read_small_file("/proc/kallsyms").count("\n") == Path("/proc/kallsyms").read_text().count("\n") > 10_000


def test_missing_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_small_file(tmp_path / "file", "1")
    assert not list(tmp_path.iterdir())


def test_failed_write_raises() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_small_file("/dev/full", "1")


def test_append_flag_adds_lines(tmp_path: Path) -> None:
    for line in "ab":
        write_small_file(tmp_path / "file", line, os.O_CREAT | os.O_APPEND)
    assert read_small_file(tmp_path / "file") == "ab"
