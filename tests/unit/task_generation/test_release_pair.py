"""Release pairs without a network: archives read safely, gold and tests told apart, ids sorted out, drafts written."""

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from farm.core.change import ChangeKind
from farm.grading.reports.outcome import CaseOutcome
from farm.task_generation.instruction import changelog_items, draft_instruction, readable_name
from farm.task_generation.release_pair import ReleasePairSpec, check_order, classify_tests
from farm.task_generation.release_pair_directory import PairTests, release_pair_directory
from farm.tasks import BundleFile, TaskError
from farm.tasks.schema.manifest import ReleaseTable
from farm.tasks.sdist.release_pair import compare, pytest_modules
from farm.tasks.sdist.sdist import read_sdist

RELEASE = ReleaseTable(package="thing", old="1.0", new="1.1", old_sha256="a" * 64, new_sha256="b" * 64)
WISH = ReleasePairSpec("thing", "1.0", "1.1", Path("out"))
PASSED, FAILED = CaseOutcome.PASSED, CaseOutcome.FAILED


def files(**content: str) -> dict[str, BundleFile]:
    """Return files by path, with ``__`` for a slash and ``_DOT_`` for a dot."""
    named = {key.replace("_SL_", "/").replace("_DOT_", "."): text for key, text in content.items()}
    return {path: BundleFile(text.encode()) for path, text in named.items()}


def archive(path: Path, members: Mapping[str, bytes], **links: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(f"thing-1.0/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


def test_archive_is_read_below_its_top(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar.gz", {"thing-1.0/a/b.py": b"x", "thing-1.0/run.sh": b"y"}, shadow="/etc/shadow")
    assert read_sdist(path) == {"a/b.py": BundleFile(b"x"), "run.sh": BundleFile(b"y", True)}


def test_zip_archive_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr("thing-1.0/a.py", "x")
    assert read_sdist(tmp_path / "a.zip") == {"a.py": BundleFile(b"x")}


@pytest.mark.parametrize("name", ["thing-1.0/../../etc/passwd", "/etc/passwd", "../x"])
def test_archive_that_leaves_its_top_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match="the archive names"):
        read_sdist(archive(tmp_path / "a.tar.gz", {name: b"x"}))


def test_unreadable_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"not gzip")
    with pytest.raises(TaskError, match="not a readable source distribution"):
        read_sdist(tmp_path / "a.tar.gz")


def test_gold_change_has_only_package_files() -> None:
    old = files(
        thing_SL___init___DOT_py="old", thing_SL_gone_DOT_py="x", thing_SL_same_DOT_py="s", setup_DOT_py="a", README="a"
    )
    new = files(
        thing_SL___init___DOT_py="new",
        thing_SL_data_SL_table_DOT_txt="t",
        thing_SL_same_DOT_py="s",
        thing_SL___pycache___SL_x_DOT_pyc="c",
        thing_DOT_egg_info="e",
        setup_DOT_py="b",
        README="b",
        docs_SL___init___DOT_py="d",
        tests_SL_test_a_DOT_py="t",
        tests_SL_data_DOT_json="j",
        conftest_DOT_py="c",
    )
    prepared = compare("thing", old, new)
    assert [(file.path, file.kind) for file in prepared.gold.files] == [
        ("thing/__init__.py", ChangeKind.WRITE),
        ("thing/data/table.txt", ChangeKind.WRITE),
        ("thing/gone.py", ChangeKind.DELETE),
    ]
    assert set(prepared.tests) == {"tests/test_a.py", "tests/data.json", "conftest.py"}
    assert pytest_modules(prepared.tests) == ("tests/test_a.py",)


@pytest.mark.parametrize("place", ["Some_thing_DOT_py", "src_SL_some_thing_DOT_py"])
def test_package_of_one_module(place: str) -> None:
    old = files(**{place: "old"})
    new = files(**{place: "new"}, test_SL_test_a_DOT_py="t", other_DOT_py="o")
    assert len(compare("some-thing", old, new).gold.files) == 1


def test_releases_without_a_task_are_refused() -> None:
    code = files(thing_SL___init___DOT_py="x")
    with pytest.raises(TaskError, match="has no tests"):
        compare("thing", code, files(thing_SL___init___DOT_py="y"))
    with pytest.raises(TaskError, match="the same code"):
        compare("thing", code, {**code, **files(tests_SL_test_a_DOT_py="t")})


def test_tests_are_classified() -> None:
    before = [{"mend": FAILED, "keep": PASSED, "break": PASSED, "flaky": PASSED, "wild": PASSED, "out": FAILED}] * 2
    before.append({**before[0], "flaky": FAILED})
    after = [{"new": PASSED, "mend": PASSED, "keep": PASSED, "break": FAILED, "flaky": PASSED, "out": PASSED}] * 3
    after[2] = {**after[2], "wild": PASSED}
    made = classify_tests(ReleasePairSpec("thing", "1.0", "1.1", Path("out"), exclude=("o*",)), before, after)
    assert made.fail_to_pass == ("mend", "new")
    assert made.pass_to_pass == ("keep",)
    assert made.flaky == ("flaky", "wild")


def test_releases_without_fail_to_pass_are_refused() -> None:
    with pytest.raises(TaskError, match=r"no test fails before and passes after \(1 pass on both\)"):
        classify_tests(WISH, [{"a": PASSED}], [{"a": PASSED}])


CHANGELOG = """
Changes
=======

1.1 (2024-02-03)
----------------
* Commas are kept, see [the report](https://example.test/7) (#7, thanks @someone).
* The loop in thing/core.py ends.
- Long items
  go on.

1.0
---
* Old news.
"""


def test_draft_lists_changes_without_file_names() -> None:
    new = files(CHANGES_DOT_rst=CHANGELOG)
    assert changelog_items("1.1", new) == ["Commas are kept, see the report", "Long items go on."]
    text = draft_instruction(
        RELEASE, new, ["tests/test_a.py::TestB::test_no_such_thing[1]", "tests/test_a.py::test_no_such_thing"]
    )
    assert text.count("- no such thing\n") == 1
    assert ".py" not in text
    assert "Old news" not in text


def test_draft_without_a_change_log() -> None:
    assert changelog_items("1.1", {}) == []
    assert readable_name("tests/test_a.py::test") == "test"


def test_directory_has_no_file_of_the_package() -> None:
    old = files(thing_SL___init___DOT_py="old secret", thing_SL_gone_DOT_py="x")
    new = files(thing_SL___init___DOT_py="new secret", tests_SL_test_a_DOT_py="test secret")
    prepared = compare("thing", old, new)
    tests = PairTests(("pytest==1",), "Do it.\n", ["tests/test_a.py::b", "tests/test_a.py::a"], [])
    directory = release_pair_directory(RELEASE, prepared.gold, tests)
    made = {path: file.content.decode() for path, file in directory.files.items()}
    assert "secret" not in "".join(made.values())
    assert made["tests/fail_to_pass.txt"] == "tests/test_a.py::a\ntests/test_a.py::b\n"
    assert "thing==1.0 --hash=sha256:" + "a" * 64 in made["environment/Dockerfile"]
    assert "rm -f '/workspace/thing/gone.py'" in made["solution/solve.sh"]


@pytest.mark.parametrize(
    ("old", "new"), [("1.1", "1.0"), ("1.10", "1.9"), ("1.0", "1.0"), ("2!1.0", "3.0"), ("1.0", "rc")]
)
def test_pair_in_wrong_order_is_refused(old: str, new: str) -> None:
    with pytest.raises(TaskError, match="name the older release first"):
        check_order(ReleasePairSpec("thing", old, new, Path("out")))


@pytest.mark.parametrize(
    ("old", "new"), [("1.9", "1.10"), ("1.0rc1", "1.0"), ("1.0", "1.0.post1"), ("v1.9", "2"), ("1", "1.0.1")]
)
def test_pair_in_order_is_accepted(old: str, new: str) -> None:
    check_order(ReleasePairSpec("thing", old, new, Path("out")))
