"""The author of a task wants a program of his to run on the host: by a source distribution, or by a directory."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from farm.build_config import read_build_settings
from farm.task_generation.mutation.generator import GenerationContext
from farm.task_generation.mutation.repository import open_repository
from farm.task_generation.mutation.requirements import with_requirements
from farm.tasks import TaskError, load_task
from farm.tasks.sdist.package_index import read_index_settings
from farm.tasks.sdist.sdist import fetch_sdist, read_sdist
from sandboxes.images.store import ImageStore
from sandboxes.runtimes.docker.runtime import DockerRuntime
from tests.support.attacks.source_index import SourceIndex, author_files, source_index

NOWHERE = {"PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_CONSTRAINT": ""}


@pytest.fixture(params=["html", "json"])
def index(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceIndex]:
    """An index of the author's, which pip is configured to use."""
    with source_index(tmp_path / "marker", kind=request.param) as served:
        for name, value in {**NOWHERE, "PIP_INDEX_URL": served.url}.items():
            monkeypatch.setenv(name, value)
        yield served


@pytest.fixture
async def images() -> AsyncIterator[ImageStore]:
    store = ImageStore(None, read_build_settings())
    yield store
    await store.close()


def naive_download(place: Path) -> None:
    """Download as the farm did before: pip also prepares metadata."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "purse==1.0"]
    subprocess.run([*command, "--dest", str(place)], check=True, capture_output=True)


def write_task(home: Path, sha256: str) -> Path:
    manifest = f"""
[metadata.farm]
fail_to_pass = ["tests/test_purse.py::test_pay"]
[metadata.farm.original]
package = "purse"
version = "1.0"
sha256 = "{sha256}"
changed = ["src/purse/__init__.py"]
"""
    files = {"task.toml": manifest, "instruction.md": "Mend it.\n", "environment/Dockerfile": "FROM farm-base:1\n"}
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


def farm(*arguments: str) -> str:
    command = [sys.executable, "-m", "farm.cli.main", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.timeout(120)
def test_reading_a_task_fetches_nothing(index: SourceIndex, tmp_path: Path) -> None:
    naive_download(tmp_path / "naive")
    assert index.marker.exists()
    index.marker.unlink()
    index.asked.clear()

    task, state = write_task(tmp_path / "set" / "purse", index.sha256), str(tmp_path / "state")
    (listed,) = json.loads(farm("tasks", "list", str(task.parent), "--state-dir", state, "--json"))
    (shown,) = json.loads(farm("tasks", "show", str(task), "--state-dir", state, "--json"))
    out = str(tmp_path / "out")
    taken = json.loads(
        farm("tasks", "import", "harbor", str(task.parent), "--out", out, "--state-dir", state, "--json")
    )
    assert listed["task_id"] == shown["task_id"] == taken["taken"][0]["id"] == "purse"
    assert listed["has_gold"]
    assert index.asked == []
    assert not index.marker.exists()


def test_source_is_downloaded_but_never_built(index: SourceIndex, tmp_path: Path) -> None:
    bundle = load_task(write_task(tmp_path / "purse", index.sha256), state_dir=tmp_path)
    assert bundle.gold is not None
    assert set(bundle.tests) == {"tests/test_purse.py"}
    assert len(index.asked) == 2
    assert not index.marker.exists()


def test_a_source_of_another_digest_is_refused(index: SourceIndex, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="not the one that was pinned"):
        fetch_sdist("purse", "1.0", "0" * 64, state_dir=tmp_path)
    assert [path.name for path in tmp_path.glob("sources/*")] == []


def test_a_local_directory_serves_as_an_index(
    index: SourceIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = fetch_sdist("purse", "1.0", None, state_dir=tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(fetched.parent))
    index.asked.clear()
    again = fetch_sdist("purse", "1.0", index.sha256, state_dir=tmp_path / "other")
    assert read_sdist(again) == read_sdist(fetched)
    assert index.asked == []


def test_pip_in_current_directory_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "pip.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True)
    assert marker.exists()
    marker.unlink()
    assert read_index_settings().index_urls
    assert not marker.exists()


@pytest.mark.timeout(600)
async def test_directory_requirements_are_resolved_in_build(
    tmp_path: Path, images: ImageStore, docker_runtime: DockerRuntime
) -> None:
    marker = tmp_path / "marker"
    root = tmp_path / f"purse-{secrets.randbelow(10**6)}"
    for name, text in author_files(marker).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    naive = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", str(root)]
    await asyncio.to_thread(subprocess.run, naive, check=True, capture_output=True)
    assert marker.exists()
    marker.unlink()

    bench = GenerationContext(tmp_path, images, docker_runtime, asyncio.Semaphore(1), lambda line: None)
    repository = await with_requirements(open_repository(str(root), state_dir=tmp_path), (), bench)
    assert any(pin.startswith("pytest==") for pin in repository.requirements)
    assert not any(pin.startswith("purse==") for pin in repository.requirements)
    assert not marker.exists()
