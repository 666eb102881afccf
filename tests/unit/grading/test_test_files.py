"""Tests of test patches, which are applied to the image's files in a fresh sandbox."""

import random
from dataclasses import replace

import pytest

from farm.core.change import Change
from farm.grading import GradingRequest, VerifierError, grade
from farm.tasks.bundle import TaskBundle
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.testing.shell import FakeProcess
from tests.support.farm.grading_values import WORKSPACE, busybox, change, image, make_bundle, pretend_pytest, write

PRISTINE = {"src/a.py": b"bug\n", "tests/test_a.py": b"# old\n# keep\n", "tests/test_b.py": b"# b\n"}
PATCH = b"""\
diff --git a/tests/test_a.py b/tests/test_a.py
--- a/tests/test_a.py
+++ b/tests/test_a.py
@@ -1,2 +1,2 @@
-# old
+# new
 # keep
diff --git a/tests/new/data.txt b/tests/new/data.txt
new file mode 100644
--- /dev/null
+++ b/tests/new/data.txt
@@ -0,0 +1 @@
+data
diff --git a/tests/gone.py b/tests/gone.py
deleted file mode 100644
--- a/tests/gone.py
+++ /dev/null
@@ -1 +0,0 @@
-x
"""
FIX = write("src/a.py", b"fixed\n")


def bundle(patch: bytes = PATCH) -> TaskBundle:
    return replace(make_bundle(tests={}), test_patch=patch)


def passes(process: FakeProcess, name: str) -> bool:
    """Return True if the patched test files are complete and the workspace has the fix."""
    files = process.files
    put = files.read(f"{WORKSPACE}/tests/test_a.py").startswith(b"# new\n# keep\n")
    put = put and files.read(f"{WORKSPACE}/tests/new/data.txt") == b"data\n"
    return put and (name == "test_old" or files.read(f"{WORKSPACE}/src/a.py") == b"fixed\n")


async def judge(made: Change, judged: TaskBundle | None = None) -> tuple[float, str]:
    farm = FakeRuntime(image(PRISTINE), programs={"busybox": busybox, "pretend": pretend_pytest(passes)})
    verdict = await grade(GradingRequest(judged or bundle(), made, farm, rng=random.Random(1)))
    return verdict.reward, verdict.reason


async def test_patched_tests_are_run() -> None:
    assert await judge(change(FIX)) == (1.0, "all 2 expected tests passed")
    reward, reason = await judge(change())
    assert reward == 0.0
    assert reason.endswith("tests/test_a.py::test_new (failed)")


async def test_patched_files_ignore_the_policys_change() -> None:
    for own in (write("tests/test_a.py", b"def test_new(): pass\n"), write("tests/new/data.txt"), write("tests/new")):
        assert (await judge(change(FIX, own)))[0] == 1.0
        assert (await judge(change(own)))[0] == 0.0


async def test_unpatched_expected_tests_come_from_image() -> None:
    with_b = bundle()
    verifier = replace(with_b.task.verifier, pass_to_pass=("tests/test_b.py::test_old",))
    with_b = replace(with_b, task=replace(with_b.task, verifier=verifier))
    assert (await judge(change(FIX, write("tests/test_b.py", b"raise SystemExit\n")), with_b))[0] == 1.0


async def test_patch_that_does_not_apply_is_task_fault() -> None:
    for patch in (PATCH.replace(b"-# old", b"-# other"), PATCH.replace(b"tests/test_a.py", b"tests/none.py")):
        with pytest.raises(VerifierError, match="does not fit the image"):
            await judge(change(FIX), bundle(patch))
