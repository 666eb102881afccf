"""Each format's rows become drafts: names of images, commands, ids, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farm.core.task import ReportFormat
from farm.grading.reports.outcome import CaseOutcome
from farm.grading.reports.parsers import read_report
from farm.task_import.draft import Command, Commands, ImportDraft
from farm.task_import.fields import Fields, RowError
from farm.task_import.importer import ROWS as IMPORTERS
from farm.tasks.unified_diff import apply_patch, parse_patch
from tests.support import importing as rows

CONDA = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi; "
ENDING = "--continue-on-collection-errors --junitxml={report} {files}"


def draft(format_: str, row: dict[str, Any], commands: Commands | None = None) -> ImportDraft:
    return IMPORTERS[format_](Fields(row), commands or Commands())


def refusal(format_: str, row: dict[str, Any]) -> str:
    with pytest.raises(RowError) as caught:
        draft(format_, row)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("format_", "image", "workspace"),
    [
        ("swebench", "swebench/sweb.eval.x86_64.marshmallow-code_1776_marshmallow-1343:latest", "/testbed"),
        ("swegym", "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-5406:latest", "/testbed"),
        ("swesmith", "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536:latest", "/testbed"),
        ("rebench", "swerebenchv2/codezonediitj-pydatastructs:177-9d2d84b", "/pydatastructs"),
        ("r2e", f"namanjain12/orange3_final:{rows.COMMIT}", "/testbed"),
        ("multiswe", "mswebench/cli_m_cli:pr-10388", "/home/cli"),
        ("swebenchpro", f"jefzda/sweap-images:{rows.ROWS['swebenchpro']['dockerhub_tag']}", "/app"),
    ],
)
def test_image_names_of_each_data_set(format_: str, image: str, workspace: str) -> None:
    made = draft(format_, rows.ROWS[format_])
    assert (made.image, made.workspace) == (image, workspace)


@pytest.mark.parametrize("format_", ["swebench", "swegym", "rebench", "swebenchpro"])
def test_rows_with_a_test_patch(format_: str) -> None:
    made = draft(format_, rows.ROWS[format_])
    assert (list(made.fail_to_pass), list(made.pass_to_pass)) == (rows.FAIL, rows.KEEP)
    (test_patch,) = parse_patch(made.test_patch)
    assert apply_patch(test_patch, rows.OLD_TESTS.encode()).decode() == rows.NEW_TESTS
    (solution,) = parse_patch(made.solution)
    assert apply_patch(solution, rows.BROKEN.encode()).decode() == rows.MENDED
    assert made.command.report == "pytest"
    assert made.command.line.endswith(ENDING)
    assert "add" in made.instruction


def test_swesmith_patch_is_the_bug() -> None:
    made = draft("swesmith", rows.swesmith())
    assert made.bug == made.solution
    assert made.reverse_solution
    assert not made.test_patch
    assert not made.commit


def test_swebench_5_row_has_image_and_command() -> None:
    made = draft("swebench", rows.swebench5())
    assert made.image == draft("swebench", rows.swebench()).image
    assert made.command.line == f"{CONDA}export LANG=en_US.UTF-8; pytest -rA --tb=no -p no:cacheprovider {ENDING}"


def test_r2e_row_has_tests_and_commit() -> None:
    made = draft("r2e", rows.r2e())
    assert made.fail_to_pass == ("r2e_tests/test_1.py::test_add[7]",)
    assert made.pass_to_pass == ("r2e_tests/test_1.py::test_same",)
    assert set(made.tests) == {"r2e_tests/__init__.py", "r2e_tests/test_1.py"}
    (solution,) = parse_patch(made.solution)
    assert apply_patch(solution, rows.BROKEN.encode()).decode() == rows.MENDED
    assert "/r2e_tests" in made.removed
    assert made.instruction == "**Title:** add() subtracts"


def test_multiswe_removes_patches_from_the_image() -> None:
    made = draft("multiswe", rows.multiswe())
    assert made.command == Command("go test -json {files} > {report}", "go")
    assert (made.fail_to_pass, made.pass_to_pass) == (("::TestAdd",), ("::TestSame",))
    assert {"/home/fix.patch", "/home/test.patch"} <= set(made.removed)
    assert made.commit == rows.COMMIT
    assert made.instruction == "# add() subtracts\n\nIt should add."


COLUMNS = {"run": ["NONE"], "test": ["FAIL"], "fix": ["PASS"]}


def test_multiswe_reads_columnar_rows() -> None:
    columns = {
        "f2p_tests": {"name": ["TestAdd"], **COLUMNS},
        "p2p_tests": {"name": ["TestSame"], **COLUMNS},
        "fixed_tests": {"name": ["TestAdd"], **COLUMNS},
        "s2p_tests": {"name": [], "run": [], "test": [], "fix": []},
        "n2p_tests": {"name": [], "run": [], "test": [], "fix": []},
        "resolved_issues": {"number": [1, 2], "title": ["Adds not", "Nor here"], "body": ["It should.", None]},
    }
    made = draft("multiswe", rows.multiswe(**columns))
    assert (made.fail_to_pass, made.pass_to_pass) == (("::TestAdd",), ("::TestSame",))
    assert made.instruction == "# Adds not\n\nIt should.\n\n# Nor here"
    status = {"run": "NONE", "test": "FAIL", "fix": "PASS"}
    spread = {"f2p_tests": {"TestAdd": status, "TestOther": None}, "p2p_tests": {"TestSame": status, "TestAdd": None}}
    made = draft("multiswe", rows.multiswe(**spread))
    assert (made.fail_to_pass, made.pass_to_pass) == (("::TestAdd",), ("::TestSame",))


@pytest.mark.parametrize(
    "tests", [{"name": ["TestAdd"], "run": []}, {"TestAdd": "PASS"}, {"run": ["NONE"], "fix": ["PASS"]}]
)
def test_multiswe_row_without_outcomes_is_refused(tests: dict[str, Any]) -> None:
    assert "f2p_tests: holds no outcomes" in refusal("multiswe", rows.multiswe(f2p_tests=tests))


@pytest.mark.parametrize("format_", ["swebench", "swegym", "swesmith", "swebenchpro"])
def test_unusable_pass_to_pass_ids_are_left_out(format_: str) -> None:
    lower = format_ == "swebenchpro"
    keep = [*rows.KEEP, "README.rst::README.rst"]
    made = draft(format_, rows.ROWS[format_] | {"pass_to_pass" if lower else "PASS_TO_PASS": repr(keep)})
    assert (list(made.pass_to_pass), made.left_out) == (rows.KEEP, ("README.rst::README.rst",))


def test_unusable_fail_to_pass_id_is_refused() -> None:
    said = refusal("swebench", rows.swebench(FAIL_TO_PASS=repr([*rows.FAIL, "docs/a.rst::a.rst"])))
    assert "'docs/a.rst::a.rst' is in a file that is not a Python module" in said
    assert "test runner of its own" not in said


def test_pro_instruction_has_requirements_and_interface() -> None:
    assert draft("swebenchpro", rows.swebenchpro()).instruction == (
        "# add() subtracts\n\nIt should add.\n\n## Requirements\n\n- `add` adds.\n\n"
        "## New interfaces\n\nNo new interfaces are introduced."
    )


def test_truncated_ids_are_left_out() -> None:
    cut = ["tests/test_pair.py::test_add[1", "tests/test_pair.py::test_x\u2028y"]
    made = draft("swegym", rows.swegym(FAIL_TO_PASS=[*rows.FAIL, *cut]))
    assert list(made.fail_to_pass) == rows.FAIL
    assert made.left_out == tuple(sorted(cut))
    assert "can be in a report" in refusal("swegym", rows.swegym(FAIL_TO_PASS=cut[:1]))


def test_terminal_colours_in_ids_are_removed() -> None:
    coloured = [f"\x1b[1m{test}\x1b[0m " for test in rows.FAIL]
    made = draft("rebench", rows.rebench(FAIL_TO_PASS=coloured))
    assert (made.fail_to_pass, made.left_out) == (tuple(rows.FAIL), ())


def test_unknown_test_runner_needs_a_command() -> None:
    row = rows.swebench(repo="org/own", version="1.7", FAIL_TO_PASS='["test_add"]')
    said = refusal("swebench", row)
    assert "'test_add' is not a pytest id" in said
    assert '--test-command with --report, or ["org/own@1.7"]' in said
    named = Commands(by_repo={"org/own@1.7": Command("bin/test -C {files} > {report}", "cargo")})
    assert draft("swebench", row, named).command == Command(CONDA + "bin/test -C {files} > {report}", "cargo")


def test_django_command_and_ids(tmp_path: Path) -> None:
    patch = rows.diff("tests/auth_tests/test_forms.py", "a = 1\n", "a = 2\n")
    ids = '["test_add (auth_tests.test_forms.FormTest)", "test_b (auth_tests.test_forms.FormTest.test_b)", "Says so."]'
    row = rows.swebench(repo="django/django", FAIL_TO_PASS=ids, PASS_TO_PASS="[]", test_patch=patch)
    made = draft("swebench", row)
    assert made.command.report == "junit"
    assert made.command.line.endswith(
        "FARM_REPORT={report} ./tests/runtests.py --verbosity 1 --settings=farm_django "
        "--parallel 1 auth_tests.test_forms"
    )
    names = ("auth_tests.test_forms.FormTest::test_add", "auth_tests.test_forms.FormTest::test_b")
    assert (made.fail_to_pass, made.left_out) == (names, ("Says so.",))
    assert set(made.tests) == {"tests/farm_django.py", "tests/farm_django_runner.py"}
    for content in made.tests.values():
        compile(content, "made", "exec")


def test_sympy_command_and_ids(tmp_path: Path) -> None:
    path = "sympy/core/tests/test_a b.py"
    row = rows.swebench(
        repo="sympy/sympy",
        FAIL_TO_PASS='["test_add"]',
        PASS_TO_PASS='["test_same", "test_odd"]',
        test_patch=rows.diff(path, "a = 1\n", "a = 2\n"),
    )
    made = draft("swebench", row)
    assert (made.fail_to_pass, made.pass_to_pass) == (("sympy::test_add",), ("sympy::test_odd", "sympy::test_same"))
    for name, content in made.tests.items():
        (tmp_path / name).write_bytes(content)
    tests = "from other import test_not_ours\ndef test_add(): assert 3\ndef test_same(): raise KeyError\n"
    tests += "class XFail(Exception): ...\ndef test_odd(): raise XFail\ndef helper(): ...\n"
    (tmp_path / "other.py").write_text("def test_not_ours(): ...\n")
    (tmp_path / "sympy/core/tests").mkdir(parents=True)
    (tmp_path / path).write_text(tests)
    line = made.command.line.removeprefix(CONDA).replace("{report}", str(tmp_path / "deep" / "report.xml"))
    line = line.replace(" python ", f" {sys.executable} ")
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True, capture_output=True)
    report = (tmp_path / "deep" / "report.xml").read_bytes()
    outcomes = read_report(report, ReportFormat.JUNIT, ["sympy"], str(tmp_path))
    assert outcomes == {
        "sympy::test_add": CaseOutcome.PASSED,
        "sympy::test_same": CaseOutcome.ERROR,
        "sympy::test_odd": CaseOutcome.SKIPPED,
    }


@pytest.mark.parametrize(
    ("parser", "command", "line"),
    [
        ("parse_log_gotest", "go test -v ./...", "go test -json {files} > {report}"),
        (
            "parse_log_cargo",
            ["cargo test --no-fail-fast --features a,b"],
            "cargo test --offline --no-fail-fast --features a,b {files} > {report} 2>&1",
        ),
        (
            "parse_log_vitest",
            "npx vitest run",
            "npx --no-install vitest run --reporter=json --outputFile={report} {files}",
        ),
        ("parse_log_tap", "make check | tee {report}", "make check | tee {report}"),
    ],
)
def test_log_parsers_determine_the_report(parser: str, command: Any, line: str) -> None:
    ids = ["src/a.test.js::adds"] if "vitest" in parser else ["adds"]
    config = {"test_cmd": command, "log_parser": parser}
    made = draft("rebench", rows.rebench(install_config=config, FAIL_TO_PASS=ids, PASS_TO_PASS=[]))
    assert made.command.line == line


LINK = "diff --git a/docs b/docs\nindex 1..2 120000\n--- a/docs\n+++ b/docs\n@@ -1 +1 @@\n-a\n+/etc\n"
SUBMODULE = (
    "diff --git a/lib b/lib\nnew file mode 160000\n--- /dev/null\n+++ b/lib\n"
    f"@@ -0,0 +1 @@\n+Subproject commit {rows.COMMIT}\n"
)


def r2e_commit(**more: Any) -> str:
    file = {"header": {"file": {"path": "pair.py"}}, "old_file_content": rows.BROKEN, "new_file_content": rows.MENDED}
    return json.dumps({"file_diffs": [{**file, **more}]})


@pytest.mark.parametrize("before", [rows.BROKEN, rows.MENDED])
def test_r2e_renamed_file_is_deleted(before: str) -> None:
    commit = r2e_commit(minus_file={"path": "a/old.py"}, old_file_content=before)
    row = rows.r2e(parsed_commit_content=commit)
    patches = {(patch.old, patch.new): patch for patch in parse_patch(draft("r2e", row).solution)}
    assert set(patches) == {("old.py", None), (None, "pair.py")}
    assert apply_patch(patches[None, "pair.py"], None).decode() == rows.MENDED
    assert apply_patch(patches["old.py", None], before.encode()) == b""


@pytest.mark.parametrize(
    ("format_", "changes", "said"),
    [
        ("swebench", {"instance_id": "../../etc"}, "not a name of letters"),
        ("swebench", {"instance_id": "a" * 300}, "not a name of letters"),
        ("swebench", {"instance_id": None}, "instance_id: missing"),
        ("swebench", {"patch": rows.GOLD.replace("pair.py", "../pair.py")}, "not a path inside"),
        ("swebench", {"test_patch": rows.TEST_PATCH.replace("b/tests/", "b//etc/")}, "not a path inside"),
        ("swebench", {"patch": rows.GOLD + LINK}, "patch: docs is a symlink, not a regular file; leave"),
        ("swebench", {"test_patch": rows.TEST_PATCH + SUBMODULE}, "test_patch: lib is a submodule"),
        (
            "r2e",
            {"parsed_commit_content": r2e_commit(index_line={"mode": "120000"})},
            "pair.py is a symlink or a submodule",
        ),
        ("r2e", {"parsed_commit_content": r2e_commit(minus_file={"path": "a/../x"})}, "'../x' is not a path"),
        ("swebench", {"patch": ""}, "patch: changes nothing"),
        ("swebench", {"patch": "\0"}, "zero byte"),
        ("swebench", {"problem_statement": " "}, "has no text"),
        ("swebench", {"FAIL_TO_PASS": "[]"}, "names no test"),
        ("swebench", {"FAIL_TO_PASS": "__import__('os').abort()"}, "neither JSON nor a Python literal"),
        ("swebench", {"FAIL_TO_PASS": f"[0x{'f' * 5000}]"}, "neither JSON nor a Python literal"),
        ("swebench", {"FAIL_TO_PASS": "[" * 5000}, "nested more than"),
        ("swebench", {"FAIL_TO_PASS": ["/etc/x.py::test"]}, "is not a pytest id"),
        ("swebench", {"image_name": "x/../../y"}, "not an image name"),
        ("swebench", {"image_name": "x\nRUN true"}, "not an image name"),
        ("swebench", {"image_name": "Org/x"}, "image_name: 'Org/x' is not an image name"),
        ("multiswe", {"org": "cli-"}, "not an image name"),
        (
            "rebench",
            {"install_config": {"test_cmd": "make test | tee log", "log_parser": "pytest"}},
            "not a plain pytest",
        ),
        ("rebench", {"install_config": {"test_cmd": "make test", "log_parser": "jest"}}, "not a plain jest command"),
        ("rebench", {"install_config": {"test_cmd": "x", "log_parser": "parse_log_odd"}}, "what 'parse_log_odd' reads"),
        ("rebench", {"install_config": {"test_cmd": ["pytest -k \ud800"]}}, "test_cmd: not Unicode text"),
        ("rebench", {"install_config": {"test_cmd": ["pytest -k \0"]}}, "test_cmd: holds a zero byte"),
        ("rebench", {"base_commit": "HEAD; rm -rf /"}, "is not a commit hash"),
        ("rebench", {"repo": "a/../b"}, "is not a repository"),
        ("r2e", {"expected_output_json": "{}"}, "does not say which tests passed"),
        (
            "r2e",
            {"execution_result_content": {"test_file_names": ["a", "a/b"], "test_file_codes": ["", ""]}},
            "is below",
        ),
        ("r2e", {"parsed_commit_content": '{"file_diffs": []}'}, "changes only tests"),
        ("multiswe", {"test_patch": rows.TEST_PATCH}, "only its image has one"),
        ("multiswe", {"repo": "cli; true"}, "not a name of letters"),
        ("swebenchpro", {"repo_language": "js"}, "are not in the row"),
        ("swebenchpro", {"dockerhub_tag": "a b"}, "not a name of letters"),
    ],
)
def test_refused_rows_name_the_fault(format_: str, changes: dict[str, Any], said: str) -> None:
    assert said in refusal(format_, rows.ROWS[format_] | changes)


@pytest.mark.parametrize(
    ("format_", "row"),
    [
        ("multiswe", rows.multiswe(number=10388.0)),
        ("swebench", rows.swebench(instance_id=1343.0)),
        ("swebench", rows.swebench(instance_id=1343)),
        ("swebenchpro", rows.swebenchpro(dockerhub_tag=7.0)),
    ],
)
def test_whole_numbers_are_names(format_: str, row: dict[str, Any]) -> None:
    made = draft(format_, row)
    assert ".0" not in made.id + made.image


def test_numbers_as_names_and_ids() -> None:
    for number in (True, 1e300, -3.0):
        assert "instance_id" in refusal("swebench", rows.swebench(instance_id=number))
    config = {"test_cmd": "make check | tee {report}", "log_parser": "parse_log_tap"}
    for ids in ([1, 2], "[1, 2]"):
        made = draft("rebench", rows.rebench(install_config=config, FAIL_TO_PASS=ids, PASS_TO_PASS="[]"))
        assert made.fail_to_pass == ("::1", "::2")
    assert "not a list of strings" in refusal("swebench", rows.swebench(FAIL_TO_PASS=[True]))


@pytest.mark.parametrize("format_", ["swebench", "swegym", "swesmith", "rebench", "swebenchpro"])
@pytest.mark.parametrize("none", ["", " \n", "[]", [], None])
def test_missing_fail_to_pass_is_refused(format_: str, none: Any) -> None:
    lower = format_ == "swebenchpro"
    keep, mend = ("pass_to_pass", "fail_to_pass") if lower else ("PASS_TO_PASS", "FAIL_TO_PASS")
    made = draft(format_, rows.ROWS[format_] | {keep: none})
    assert (list(made.fail_to_pass), made.pass_to_pass) == (rows.FAIL, ())
    said = refusal(format_, rows.ROWS[format_] | {mend: none})
    assert ("missing" if none is None else "names no test; leave the row out") in said
