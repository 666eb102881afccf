"""From a small repository of one's own, by either strategy, to tasks that are fit; the second time they are there."""

import asyncio
import secrets
from pathlib import Path

import pytest

from farm.core.change import Change
from farm.task_generation.mutation.generator import GenerationContext, GenerationStats, TaskGenerator
from farm.task_generation.mutation.repository import Repository, open_repository
from farm.task_generation.mutation.requirements import with_requirements
from farm.task_validation.solution_leaks import find_solution_leaks, solution_fingerprint
from farm.task_validation.validate import gold_change, validate
from farm.tasks import TaskBundle, load_task, pack, sandbox_spec, task_directories, unpack
from sandboxes.images.store import ImageStore
from tests.support.outside import EitherRuntime

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

CODE = '''\
"""A purse."""

_UNITS = ("", "k", "M")


def price(amount, discount=0):
    """What is to be paid for an amount."""
    if amount < 0:
        raise ValueError("a negative amount")
    total = amount * 3
    if discount and total > 10:
        total = total - discount
    return total


def short(number):
    """A number with a unit."""
    for unit in _UNITS:
        if number < 1000:
            return f"{number}{unit}"
        number //= 1000
    return "many"


class Purse:
    def __init__(self):
        self.coins = []

    def put(self, *coins):
        for coin in coins:
            if coin <= 0:
                continue
            self.coins.append(coin)
        self.coins.sort()
        return len(self.coins)

    def take(self, wanted):
        try:
            self.coins.remove(wanted)
        except ValueError:
            return None
        return wanted
'''
TESTS = """\
import pytest

from purse import Purse, price, short


@pytest.mark.parametrize("amount, discount, expected", [(1, 0, 3), (4, 2, 10), (3, 2, 9), (5, 0, 15)])
def test_price(amount, discount, expected):
    assert price(amount, discount) == expected


def test_negative():
    with pytest.raises(ValueError):
        price(-1)


@pytest.mark.parametrize("number, expected", [(5, "5"), (2000, "2k"), (10**7, "10M"), (10**12, "many")])
def test_short(number, expected):
    assert short(number) == expected


def test_put():
    purse = Purse()
    assert purse.put(3, 0, 1) == 2
    assert purse.coins == [1, 3]


def test_take():
    purse = Purse()
    purse.put(5)
    assert purse.take(4) is None
    assert purse.take(5) == 5


def test_names():
    assert price.__name__ == "price"
    assert short.__name__ == "short"


@pytest.mark.parametrize("number", range(12))
def test_counting(number):
    assert number < 12
"""
SETUP = """\
[project]
name = "purse"
version = "1"

[build-system]
requires = ["setuptools"]

[tool.setuptools]
py-modules = ["purse"]
"""


@pytest.fixture
def opened(tmp_path: Path) -> Repository:
    root = tmp_path / f"purse-{secrets.randbelow(10**6)}"
    (root / "tests").mkdir(parents=True)
    (root / "purse.py").write_text(CODE)
    (root / "tests" / "test_purse.py").write_text(TESTS)
    (root / "pyproject.toml").write_text(SETUP)
    return open_repository(str(root), state_dir=tmp_path)


async def test_local_repository_yields_fit_tasks_and_reuses_them(
    tmp_path: Path, opened: Repository, images: ImageStore, any_runtime: EitherRuntime
) -> None:
    said: list[str] = []
    bench = GenerationContext(tmp_path, images, any_runtime, asyncio.Semaphore(2), said.append)
    repository = await with_requirements(opened, (), bench)
    wanted = {"mutate": 3, "delete-feature": 1}

    async def make(out: Path) -> list[GenerationStats]:
        maker = TaskGenerator(repository, out, 7, bench)
        await maker.make(wanted)
        return maker.stats

    faults, features = await make(tmp_path / "out")
    assert len(faults.tasks) == 3
    assert len(features.tasks) == 1
    assert faults.trials["usable"] >= 3
    directories = task_directories(tmp_path / "out")
    assert {directory.name for directory in directories} == faults.tasks.keys() | features.tasks.keys()
    for directory in directories:
        bundle = load_task(directory, state_dir=tmp_path)
        assert bundle.task.digest == (faults.tasks | features.tasks)[directory.name]
        assert unpack(pack(bundle)) == bundle
        assert "level-1" in (directory / "task.toml").read_text() or "purse.py" not in bundle.task.instruction

    said.clear()
    again = await make(tmp_path / "out")
    assert [one.tasks for one in again] == [faults.tasks, features.tasks]
    assert not any(line.endswith((": image", ": fit")) for line in said)

    bundle = load_task(directories[0], state_dir=tmp_path)
    try:
        finding = await validate(bundle, images=images, runtime=any_runtime, on_progress=said.append, once=True)
        assert finding.problems == []
        await _look_inside(bundle.task.workspace, await gold_change(bundle, any_runtime), any_runtime, bundle)
    finally:
        await images.remove(bundle.task.image)


async def _look_inside(workspace: str, gold: Change, runtime: EitherRuntime, bundle: TaskBundle) -> None:
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "test"})) as sandbox:
        look = (
            "git status --porcelain; git rev-list --all --count; find . -name __pycache__ -o -name '*.egg-info'; "
            "find . -mindepth 1 -path ./.git -prune -o -printf '%T@\\n' | sort -u | wc -l; ls /tmp"
        )
        seen = await sandbox.exec(("/.farm/bin/bash", "-c", look), timeout_s=60, merge_stderr=True)
        assert seen.stdout.head.decode().split() == ["1", "1"]
        present = {file.path: await sandbox.read_file(f"{workspace}/{file.path}") for file in gold.files}
        wanted = solution_fingerprint(gold, present)
        assert await find_solution_leaks(sandbox, wanted) == []
        (solved,) = (file.content for file in gold.files if file.path == "purse.py")
        await sandbox.write_file("/opt/kept.py", solved)
        found = await find_solution_leaks(sandbox, wanted)
        assert found
        assert {residue.path for residue in found} == {"/opt/kept.py"}
