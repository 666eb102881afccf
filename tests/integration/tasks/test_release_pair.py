"""A release pair from the package index to a fit task. Sources are kept where ``tests/run.sh`` names a place."""

import os
import secrets
import shutil
from pathlib import Path

import pytest

from farm.task_generation.release_pair import ReleasePairSpec, make_release_pair
from farm.task_generation.services import GenerationServices
from farm.task_validation.validate import validate
from farm.tasks import TaskError, ensure_image, load_task, load_taskset, pack, unpack
from sandboxes.images.store import ImageStore
from tests.support.outside import EitherRuntime

pytestmark = [pytest.mark.docker, pytest.mark.slow]

TASKS = Path(__file__).parents[3] / "images" / "tasks"
SQLPARSE = TASKS / "sqlparse-0.4.4"


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("FARMTEST_STATE_DIR")
    return Path(kept) if kept else tmp_path_factory.mktemp("sources")


def test_bundled_tasks_load_with_gold_solutions(sources: Path) -> None:
    bundles = load_taskset(TASKS, state_dir=sources)
    assert len(bundles) >= 5
    for bundle in bundles:
        assert bundle.gold is not None
        assert not bundle.gold.empty
        assert unpack(pack(bundle)) == bundle
        for file in bundle.gold.files:
            assert file.path.rpartition("/")[2] not in bundle.task.instruction
            assert file.path not in bundle.tests


def test_sqlparse_task_keeps_its_content(sources: Path) -> None:
    bundle = load_task(SQLPARSE, state_dir=sources)
    assert bundle.gold is not None
    assert {file.path for file in bundle.gold.files} == {
        "sqlparse/__init__.py",
        "sqlparse/keywords.py",
        "sqlparse/lexer.py",
        "sqlparse/sql.py",
    }
    assert len(bundle.task.verifier.fail_to_pass) == 10
    assert len(bundle.task.verifier.pass_to_pass) == 417


def test_second_load_needs_no_network(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_task(SQLPARSE, state_dir=sources)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/nowhere")
    said: list[str] = []
    assert load_task(SQLPARSE, state_dir=sources, on_progress=said.append) == first
    assert said == []


def test_source_with_wrong_hash_is_refused(tmp_path: Path) -> None:
    task = shutil.copytree(SQLPARSE, tmp_path / "task")
    manifest = task / "task.toml"
    lines = manifest.read_text().splitlines()
    lines = [f'old_sha256 = "{"0" * 64}"' if line.startswith("old_sha256") else line for line in lines]
    manifest.write_text("\n".join(lines))
    with pytest.raises(TaskError, match="not the one that was pinned"):
        load_task(task, state_dir=tmp_path / "state")


def test_damaged_source_cache_is_fetched_again(tmp_path: Path) -> None:
    first = load_task(SQLPARSE, state_dir=tmp_path)
    for path in (tmp_path / "sources").glob("*/*"):
        path.write_bytes(b"rubbish")
    assert load_task(SQLPARSE, state_dir=tmp_path) == first


async def test_release_pair_task_is_created_and_fit(
    tmp_path: Path, sources: Path, images: ImageStore, any_runtime: EitherRuntime
) -> None:
    said: list[str] = []
    out = tmp_path / f"made-{secrets.token_hex(4)}"
    wish = ReleasePairSpec("pathspec", "0.11.0", "0.11.1", out)
    made = await make_release_pair(wish, GenerationServices(sources, images, any_runtime, said.append))
    assert made.fail_to_pass == ("tests/test_gitignore.py::GitIgnoreSpecTest::test_07_issue_74",)
    assert len(made.pass_to_pass) == 90
    assert made.flaky == ()
    bundle = load_task(out, state_dir=sources)
    try:
        assert "pathspec/" not in bundle.task.instruction
        info = await ensure_image(bundle, images)
        assert (await ensure_image(bundle, images)).digest == info.digest
        finding = await validate(bundle, images=images, runtime=any_runtime, on_progress=said.append)
        assert finding.problems == []
        assert (set(finding.nop), finding.flaky) == ({0.0}, [])
        assert finding.gold[0] == finding.gold[2] == 1.0  # in random order its tests need not pass
    finally:
        await images.remove(bundle.task.image)
    with pytest.raises(TaskError, match="exists already"):
        await make_release_pair(wish, GenerationServices(sources, images, any_runtime, said.append))


async def test_unfit_task_problems_name_the_tests(
    tmp_path: Path, sources: Path, images: ImageStore, any_runtime: EitherRuntime
) -> None:
    task = shutil.copytree(TASKS / "pathspec-0.11.1", tmp_path / "pathspec-0.11.1")
    mend, keep = task / "tests" / "fail_to_pass.txt", task / "tests" / "pass_to_pass.txt"
    moved, *rest = keep.read_text().splitlines(keepends=True)
    missing = moved.replace("\n", "_that_is_not_there\n")
    mend.write_text(mend.read_text() + moved)
    keep.write_text("".join([missing, *rest]))
    bundle = load_task(task, state_dir=sources)
    finding = await validate(bundle, images=images, runtime=any_runtime, on_progress=lambda line: None, once=True)
    assert not finding.fit
    assert f"{moved.strip()} passes with nothing done" in finding.problems
    assert f"{missing.strip()} does not pass with the gold solution" in finding.problems
