"""The shell and Python blocks of each page run as they stand, in their order, on a farm of the page's own."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, Block, blocks, name
from tests.support.services import kept_port, require_program
from tests.support.state_dirs import share

GROUPS = {
    "farm/docs/tasks.md": "docs-tasks",
    "farm/docs/task-generation.md": "docs-tasks",
    "farm/docs/task-import.md": "docs-tasks",
    "farm/docs/task-validation.md": "docs-tasks",
    "farm/docs/retrieval-tasks.md": "docs-tasks",
    "sandboxes/docs/README.md": "docs-bench",
}
"""Pages that run one after the other; all others are in ``docs-run``."""

SHORTER = {
    "deploy/quickstart.sh ": "deploy/quickstart.sh --group-size 1 ",
    "images/tasks --policy oracle": "images/tasks/pathspec-0.11.1 --policy oracle",
    'Path("images/tasks")': 'Path("images/tasks/pathspec-0.11.1")',
    "farm run my-tasks --policy oracle": "farm run my-tasks --policy oracle --group-size 1",
    "farm bench episodes": "farm bench episodes --rounds 1",
    "farm bench start": "farm bench start --rounds 1",
}
"""The same commands with less of it."""


def _pages() -> Iterator[object]:
    for page in PAGES:
        if any(not block.not_run for block in blocks(page, "sh", "python")):
            group = pytest.mark.xdist_group(GROUPS.get(name(page), "docs-run"))
            yield pytest.param(page, id=name(page), marks=group)


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Return a state directory and a port of the page's own. Stop a farm that is still up at the end."""
    require_program("docker")
    with kept_port() as port:
        own = {"FARM_STATE_DIR": str(share(tmp_path / "state")), "FARM_PORT": str(port)}
        chosen = {**os.environ, **own}
        yield chosen
        subprocess.run([ROOT / ".venv/bin/farm", "down"], env=chosen, cwd=ROOT, check=True)


def _command(block: Block, port: str, scratch: Path) -> list[str]:
    text = block.text
    for command, shorter in SHORTER.items():
        text = text.replace(command, shorter)
    text = re.sub(r"(?<=[ \"'=])my-", f"{scratch}/my-", text.replace("8710", port))
    if block.language == "python":
        return [str(ROOT / ".venv/bin/python"), "-c", text]
    return ["bash", "-euxo", "pipefail", "-c", text]


@pytest.mark.docker
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", list(_pages()))
def test_code_blocks_of_page_run(page: Path, environ: Mapping[str, str], tmp_path: Path) -> None:
    for block in blocks(page, "sh", "python"):
        if block.not_run:
            continue
        done = subprocess.run(
            _command(block, environ["FARM_PORT"], tmp_path),
            env=dict(environ),
            cwd=ROOT,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert "Traceback" not in done.stderr, done.stderr[-4000:]


def test_groups_and_shorter_commands_occur_in_pages() -> None:
    every = {name(page): "".join(block.text for block in blocks(page, "sh", "python")) for page in PAGES}
    assert [page for page in GROUPS if not every[page]] == []
    assert [command for command in SHORTER if not any(command in text for text in every.values())] == []
