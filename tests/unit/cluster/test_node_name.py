"""The id of a node: it names the host and stays the same."""

import re
from pathlib import Path

import pytest

from farm.cluster import ClusterError
from farm.cluster.node_name import kept_node_id


@pytest.mark.parametrize(
    ("host", "begins"),
    [("gpu-7.rack2.lan", "gpu-7"), ("Big_Box", "big-box"), ("..", "node"), ("é", "node"), ("x" * 64, "x" * 40)],
)
def test_node_id_starts_with_hostname_and_is_stable(tmp_path: Path, host: str, begins: str) -> None:
    made = kept_node_id(tmp_path, host)
    assert re.fullmatch(f"{begins}-[0-9a-f]{{6}}", made)
    assert kept_node_id(tmp_path, host) == made


def test_state_directories_of_one_host_have_different_ids(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert kept_node_id(tmp_path / "a") != kept_node_id(tmp_path / "b")


def test_copied_state_directory_gets_new_id(tmp_path: Path) -> None:
    first = kept_node_id(tmp_path, "one")
    second = kept_node_id(tmp_path, "two")
    assert second.startswith("two-")
    assert second != first


@pytest.mark.parametrize("text", ["", "one", "one-abcdef\none-abcdef", "../one-abcdef", "\0"])
def test_a_damaged_file_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "node-id").write_text(text)
    assert re.fullmatch("one-[0-9a-f]{6}", kept_node_id(tmp_path, "one"))


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "node-id").mkdir()
    with pytest.raises(ClusterError, match=r"node-id: .*; make it writable, or choose another state_dir"):
        kept_node_id(tmp_path)
