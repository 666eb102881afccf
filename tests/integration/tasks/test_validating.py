"""Tasks with tests that flap, need others before them, or lack time are found, mended and checked by runs."""

import json
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from farm.build_config import read_build_settings
from farm.config import BuildOptions
from farm.task_generation.progress_log import ProgressLog
from farm.task_generation.scaffold import scaffold_task
from farm.task_validation.result import Reason, ValidationResult
from farm.task_validation.validate_set import ValidationContext, log_path, validate_set, validated_tasks
from farm.tasks import TaskError, load_task
from farm.tasks.validation_file import read_validated, refuse_unvalidated, set_digest
from sandboxes.images.store import ImageStore
from sandboxes.testing.fake_runtime import FakeRuntime
from tests.support.state_dirs import share

ROOT = Path(__file__).resolve().parents[3]
FARM = ROOT / ".venv/bin/farm"

FRAGILE = """\


class Fragile(unittest.TestCase):
    def test_alone_on_the_machine(self):
        import glob

        def says(path):
            try:
                return open(path, "rb").read()
            except OSError:
                return b""

        self.assertLess(sum(b"while :" in says(path) for path in glob.glob("/proc/[0-9]*/cmdline")), 2)


class Chain(unittest.TestCase):
    done = []

"""
CHAIN = (
    "    def test_{n}(self):\n        self.assertEqual(self.done, list(range({n})))\n        self.done.append({n})\n\n"
)
LINKS = range(7)
FLAKY = "tests/test_basket.py::Fragile::test_alone_on_the_machine"


def farm(*words: object, state_dir: Path) -> subprocess.CompletedProcess[str]:
    if not state_dir.exists():
        share(state_dir)
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "FARM_STATE_DIR": str(state_dir), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [FARM, "tasks", *map(str, words)], env=environment, capture_output=True, text=True, check=False
    )


def make_set(directory: Path) -> Path:
    """A task that can be mended, and beside it one whose flaky test is what it is about."""
    mendable, hopeless = directory / "mendable", directory / "hopeless"
    scaffold_task(mendable)
    tests = mendable / "tests/workspace/tests/test_basket.py"
    tests.write_text(tests.read_text() + FRAGILE + "".join(CHAIN.format(n=n) for n in LINKS))
    shutil.copytree(mendable, hopeless)
    manifest = mendable / "task.toml"
    chain = "".join(f'    "tests/test_basket.py::Chain::test_{n}",\n' for n in LINKS)
    text = manifest.read_text().replace("timeout_sec = 60.0", "timeout_sec = 20.0  # enough?")
    manifest.write_text(text.replace("pass_to_pass = [\n", f'pass_to_pass = [\n    "{FLAKY}",\n{chain}'))
    other = hopeless / "task.toml"
    other.write_text(other.read_text().replace("fail_to_pass = [", f'fail_to_pass = ["{FLAKY}", '))
    return mendable


def tasks_of(done: subprocess.CompletedProcess[str]) -> Mapping[str, Mapping[str, Any]]:
    assert done.stdout, done.stderr
    return {task["task_id"]: task for task in json.loads(done.stdout)["tasks"]}


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_flaky_tests_are_removed_and_task_revalidated(tmp_path: Path) -> None:
    state, tasks = tmp_path / "state", tmp_path / "tasks"
    mendable = make_set(tasks)
    before = mendable.joinpath("task.toml").read_text()
    first = farm("validate", tasks, "--json", state_dir=state)
    assert first.returncode == 1, first.stdout + first.stderr
    found = tasks_of(first)
    assert mendable.joinpath("task.toml").read_text() == before
    assert not (tasks / "validated.json").exists()

    mend = found["mendable"]
    assert (mend["reasons"], mend["flaky"]) == ([Reason.FLAKY_KEPT, Reason.TIME_OUT], [FLAKY]), mend["problems"]
    assert mend["how"][:3] == ["as it is", "in random order", "under load"]
    assert len(mend["gold"]) == 5
    assert set(mend["order_dependent"]) <= {f"tests/test_basket.py::Chain::test_{n}" for n in LINKS}
    assert len(mend["order_dependent"]) > 2
    assert set(mend["prune"]) == {FLAKY, *mend["order_dependent"]}
    assert any(f"{FLAKY} of pass_to_pass is flaky: it fails in 1 of 5 runs, under load" in x for x in mend["problems"])
    assert (found["hopeless"]["reasons"], found["hopeless"]["prune"]) == (["flaky fail_to_pass"], []), found["hopeless"]

    written = farm("validate", tasks, "--write", "--json", state_dir=state)
    assert written.returncode == 1, written.stdout + written.stderr
    document, found = json.loads(written.stdout), tasks_of(written)
    assert document["summary"]["fit"] == 1, found
    assert document["summary"]["unfit"] == {"flaky fail_to_pass": 1}
    mend = found["mendable"]
    assert (mend["fit"], mend["problems"], mend["order_dependent"]) == (True, [], [])
    assert FLAKY in mend["removed"]
    assert f"mendable: {FLAKY} is flaky and was removed from pass_to_pass" in written.stderr
    assert mend["wrong"] > 4
    text = mendable.joinpath("task.toml").read_text()
    bundle = load_task(mendable, state_dir=state)
    kept = set(bundle.task.verifier.pass_to_pass)
    assert {"tests/test_basket.py::Basket::test_empty", "tests/test_basket.py::Basket::test_prices_add_up"} <= kept
    assert FLAKY not in kept
    assert "timeout_sec = 30.0  # enough?" in text
    assert "# … and these pass now, and still must." in text

    report = read_validated(tasks)
    assert report is not None
    assert {name: task.fit for name, task in report.tasks.items()} == {"mendable": True, "hopeless": False}
    assert report.tasks["mendable"].digest == bundle.task.digest == mend["digest"]
    digests = {name: load_task(tasks / name, state_dir=state).task.digest for name in report.tasks}
    assert report.digest == document["digest"] == set_digest(digests)
    refuse_unvalidated(tasks, {"mendable": bundle.task.digest})
    with pytest.raises(TaskError, match="hopeless: was validated as unfit"):
        refuse_unvalidated(tasks, digests)


async def test_unavailable_image_fails_only_its_own_task(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    with socket.socket() as closed:  # a registry that does not answer
        closed.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{closed.getsockname()[1]}"
        builds = read_build_settings(BuildOptions(registries=(place,)))
        loaded = []
        for name in ("away", "never"):
            scaffold_task(tasks / name)
            manifest = tasks / name / "task.toml"
            image = f"{place}/none:1" if name == "away" else "nowhere.invalid/none:1"
            text = manifest.read_text()
            manifest.write_text(text.replace("[environment]\n", f'[environment]\ndocker_image = "{image}"\n'))
            loaded.append((tasks / name, load_task(tasks / name, state_dir=tmp_path)))
        store = ImageStore(None, builds)
        try:
            bench = ValidationContext(tmp_path, store, FakeRuntime({}), 2, False, lambda line: None)
            away, never = await validate_set(tasks, loaded, bench, lambda finding: None)
        finally:
            await store.close()
    assert (away.fit, away.judged, away.reasons) == (False, False, [Reason.MACHINE])
    assert "its image is not available now: " in away.problems[0]
    assert (never.fit, never.judged, never.reasons) == (False, True, [Reason.TASK])
    assert "away" not in validated_tasks([away, never])


async def test_stopped_validation_resumes_from_log(tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "known"
    scaffold_task(task)
    bundle = load_task(task, state_dir=tmp_path)
    known = ValidationResult("known", bundle.task.digest, bundle.task.image, gold=[1.0], timeout_s=30.0)
    known.refuse(Reason.CHEAT, "a cheat")
    kept = log_path(tmp_path / "tasks", tmp_path)
    ProgressLog(kept).put(bundle.task.digest, asdict(known))
    nothing = ImageStore("tcp://127.0.0.1:1", read_build_settings())  # whoever asks it fails
    heard: list[str] = []
    bench = ValidationContext(tmp_path, nothing, FakeRuntime({}), 2, False, heard.append)
    done: list[ValidationResult] = []
    found = await validate_set(tmp_path / "tasks", [(task, bundle)], bench, done.append)
    assert found == done == [known]
    assert heard == []
    assert not kept.exists()


def test_bad_task_does_not_block_other_validations(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    scaffold_task(tasks / "good")
    for name in ("bad", "worse"):
        scaffold_task(tasks / name)
    (tasks / "bad" / "task.toml").write_text("[")
    (tasks / "worse" / "instruction.md").unlink()
    done = farm("validate", tasks, "--write", "--json", state_dir=tmp_path / "state")
    assert done.returncode == 1, done.stderr
    found = tasks_of(done)
    assert found["good"]["fit"], found["good"]["problems"]
    assert "bad/task.toml: not TOML: " in found["bad"]["problems"][0]
    assert "worse/instruction.md: missing; " in found["worse"]["problems"][0]
    report = read_validated(tasks)
    assert report is not None
    assert {name: task.fit for name, task in report.tasks.items()} == {"good": True}
