"""Trees as a sandbox may leave them, removed on the machine."""

import os
import sys
from pathlib import Path

import pytest

from sandboxes.linux.remove_tree import remove_tree


def dig(path: Path, depth: int) -> None:
    home = os.getcwd()
    path.mkdir()
    os.chdir(path)
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(home)


def test_tree_deeper_than_recursion_limit_is_removed(tmp_path: Path) -> None:
    dig(tmp_path / "deep", 3 * sys.getrecursionlimit())
    remove_tree(tmp_path / "deep")
    assert list(tmp_path.iterdir()) == []


def test_links_are_not_followed_and_missing_tree_ignored(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("stays")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path)
    remove_tree(tmp_path / "tree")
    remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


def test_undeletable_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="/proc/self cannot be removed"):
        remove_tree(Path("/proc/self"))
