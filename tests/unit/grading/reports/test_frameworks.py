"""Tests of recorded reports of other frameworks, and of the commands that run these frameworks."""

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.core.task import ReportFormat
from farm.core.test_frameworks import FRAMEWORKS, invalid_test_id_reason
from farm.grading import ReportError
from farm.grading.decoys.verifier_plan import RUNNER, PlannedRun, VerifierPlan, build_verifier_plan
from farm.grading.reports.outcome import CaseOutcome
from farm.grading.reports.parsers import MAX_JSON_BYTES, read_report
from farm.tasks.bundle import BundleFile
from tests.support.farm.grading_values import make_verifier

RECORDED = Path(__file__).with_name("recorded")
GO, CARGO, JEST, TAP = ReportFormat.GO, ReportFormat.CARGO, ReportFormat.JEST, ReportFormat.TAP
PASSED, SKIPPED, FAILED, ERROR = CaseOutcome
OTHERS = [kind for kind in FRAMEWORKS if kind is not ReportFormat.PYTEST]
IDS = {
    ReportFormat.UNITTEST: "tests/test_a.py::TestB::test_sum_of_two",
    GO: "example.com/sum/part::TestAdd/two",
    CARGO: "tests/api.rs::group::case",
    JEST: "src/sum.test.js::sum adds",
    ReportFormat.JUNIT: "pkg.ClassTest::case",
    TAP: "::it adds",
}
TESTS = {
    ReportFormat.UNITTEST: {
        "tests/test_a.py": b"import unittest\n\n\nclass TestB(unittest.TestCase):\n    def test_sum_of_two(self):\n"
        b"        self.assertEqual(sum([1, 2]), 3)\n"
    },
    GO: {"part/sum_test.go": b"package part_test\n", "part/data.json": b"{}"},
    CARGO: {"tests/api.rs": b"mod group {}"},
    JEST: {"src/sum.test.js": b"const { add } = require('./sum');\n"},
    ReportFormat.JUNIT: {"t/run.sh": b"#!/bin/sh\n"},
    TAP: {"t/run.sh": b"#!/bin/sh\n"},
}


def read(kind: ReportFormat, name: str) -> dict[str, CaseOutcome]:
    return dict(read_report((RECORDED / name).read_bytes(), kind, (), "/srv/repo"))


def test_cargo_report_is_parsed() -> None:
    assert read(CARGO, "cargo.txt") == {
        "src/lib.rs::tests::adds": PASSED,
        "src/lib.rs::tests::later": SKIPPED,
        "src/lib.rs::tests::panics": PASSED,
        "src/lib.rs::tests::breaks": FAILED,
        "tests/api.rs::group::case": PASSED,
        "tests/api.rs::wide": FAILED,
    }


@pytest.mark.parametrize(
    ("kind", "name", "test"),
    [(CARGO, "cargo.txt", "wide"), (GO, "go.jsonl", "TestAdd"), (GO, "go.jsonl", "TestAdd/two")],
)
def test_empty_container_matches_name_in_all(kind: ReportFormat, name: str, test: str) -> None:
    assert invalid_test_id_reason(f"::{test}", kind) is None
    outcomes = read_report((RECORDED / name).read_bytes(), kind, ("",), "/srv/repo")
    assert outcomes[f"::{test}"] is (PASSED if test.endswith("two") else FAILED)
    assert FRAMEWORKS[kind].words("") in ("", "./...")


def test_go_report_is_parsed() -> None:
    package = "example.com/sum/part"
    assert read(GO, "go.jsonl") == {
        f"{package}::TestAdd": FAILED,
        f"{package}::TestAdd/two": PASSED,
        f"{package}::TestAdd/bad_one": FAILED,
        f"{package}::TestLater": SKIPPED,
        f"{package}::TestGood": PASSED,
    }


@pytest.mark.parametrize(("name", "file"), [("jest.json", "src/sum.test.js"), ("vitest.json", "vt/sum.test.js")])
def test_jest_and_vitest_reports_are_parsed(name: str, file: str) -> None:
    assert read(JEST, name) == {
        f"{file}::sum adds": PASSED,
        f"{file}::sum breaks": FAILED,
        f"{file}::sum later": SKIPPED,
        f"{file}::sum some day": SKIPPED,
    }


def test_tap_report_is_parsed() -> None:
    report = b"""TAP version 14
1..6
ok 1 - it adds
not ok 2 - it divides # TODO soon
ok 3 it waits # skip no clock
  ok 1 - nested
  1..1
ok 4 - twice
not ok 5 - twice
ok
# ok 7 - a comment
okay 8
"""
    assert read_report(report, TAP, (), "/") == {
        "::it adds": PASSED,
        "::it divides": SKIPPED,
        "::it waits": SKIPPED,
        "::twice": FAILED,
        "::": PASSED,
    }


def test_junit_report_is_parsed() -> None:
    report = b"<testsuite><testcase classname='a.BTest' name='c'/><testcase name='d'><error/></testcase></testsuite>"
    assert read_report(report, ReportFormat.JUNIT, (), "/") == {"a.BTest::c": PASSED, "::d": ERROR}


UNITTEST = """
import unittest

class Sums(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(1 + 2, 3)

    def test_breaks(self):
        self.assertEqual(1 + 2, 4)

    def test_raises(self):
        raise KeyError

    @unittest.skip("later")
    def test_later(self): ...

    @unittest.expectedFailure
    def test_known(self):
        self.fail()

    @unittest.expectedFailure
    def test_mended(self): ...

    def test_parts(self):
        for number in (1, 2):
            with self.subTest(number=number):
                self.assertEqual(number, 1)

    def tearDown(self):
        if "adds_not" in self.id():
            raise KeyError

    def test_adds_not(self): ...
"""


def test_unittest_runner_writes_junit_report(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text(UNITTEST)
    (tests / "test_b.py").write_text("import no_such_module")
    files = ["tests/test_a.py", "tests/test_b.py"]
    subprocess.run([sys.executable, RUNNER, tmp_path / "report", *files], cwd=tmp_path, check=True, capture_output=True)
    outcomes = read_report((tmp_path / "report").read_bytes(), ReportFormat.UNITTEST, files, str(tmp_path))
    assert {test.removeprefix("tests/test_a.py::Sums::test_"): outcome for test, outcome in outcomes.items()} == {
        "adds": PASSED,
        "breaks": FAILED,
        "raises": ERROR,
        "later": SKIPPED,
        "known": SKIPPED,
        "mended": FAILED,
        "parts": FAILED,
        "adds_not": ERROR,
    }


@pytest.mark.parametrize("kind", FRAMEWORKS)
@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,ok not1.test run\n', max_size=200).map(str.encode))
def test_any_bytes_raise_only_report_error(kind: ReportFormat, report: bytes) -> None:
    with contextlib.suppress(ReportError):
        read_report(report, kind, ("a.py",), "/srv")


LONG = 300_000
CARGO_RUNS = b"Running src/lib.rs (x)\nrunning 3 tests\n"
JEST_NAMES = b'{"testResults": [{"name": "%s", "assertionResults": [%s]}]}'
TAKES_LONG = {
    "blanks in TAP": (TAP, b"ok" + b" " * LONG + b"#x\nok 1 - x\n"),
    "ends of a line of cargo's": (CARGO, CARGO_RUNS + b"test x" + b" ... ok <" * LONG + b"\ntest y ... ok\n"),
    "dots in a class": (
        ReportFormat.PYTEST,
        b"<testsuite><testcase classname='%s' name='x'/><testcase classname='a' name='x'/></testsuite>"
        % (b"b." * LONG * 4),
    ),
}


@pytest.mark.parametrize(("kind", "report"), TAKES_LONG.values(), ids=TAKES_LONG)
def test_hostile_report_is_parsed_in_linear_time(kind: ReportFormat, report: bytes) -> None:
    assert len(read_report(report, kind, ("a.py",), "/srv")) == 1


@pytest.mark.parametrize(
    ("kind", "report"),
    [
        (
            JEST,
            JEST_NAMES % (b"a" * 2**20, b",".join(b'{"fullName": "%d", "status": "passed"}' % i for i in range(64))),
        ),
        (
            CARGO,
            b"Running %s.rs (x)\nrunning 99 tests\n%s"
            % (b"a" * 2**20, b"".join(b"test %d ... ok\n" % i for i in range(64))),
        ),
    ],
    ids=["jest", "cargo"],
)
def test_long_container_name_is_limited(kind: ReportFormat, report: bytes) -> None:
    with pytest.raises(ReportError, match="names"):
        read_report(report, kind, (), "/srv")


@pytest.mark.parametrize("kind", [JEST, GO])
def test_too_large_json_raises(kind: ReportFormat) -> None:
    honest = JEST_NAMES % (b"a", b'{"fullName": "b", "status": "passed"}') if kind is JEST else GO_PASS % b'"A"'
    read_report(honest, kind, (), "/srv")
    with pytest.raises(ReportError, match="JSON"):
        read_report(honest.replace(b"}", b" " * MAX_JSON_BYTES + b"}", 1), kind, (), "/srv")


GO_PASS = b'{"Action": "pass", "Package": "p", "Test": %s}\n'


@pytest.mark.parametrize("kind", [JEST, GO])
def test_nested_test_name_raises(kind: ReportFormat) -> None:
    for depth in range(600, 1000):  # at some depth it can be read, and not be printed
        nested = b"[" * depth + b"]" * depth
        case = b'{"fullName": %s, "status": "passed"}' % nested
        with pytest.raises(ReportError):
            read_report(GO_PASS % nested if kind is GO else JEST_NAMES % (b"a", case), kind, (), "/srv")


@pytest.mark.parametrize(
    "report", [b"", b"{}", b'{"testResults": 3}', b'{"testResults": [{"name": "a"}]}', b"[" * 9999]
)
def test_invalid_jest_report_raises(report: bytes) -> None:
    with pytest.raises(ReportError):
        read_report(report, JEST, (), "/")


def make_plan(kind: ReportFormat, seed: int = 1) -> VerifierPlan:
    verifier = make_verifier(report=kind, fail_to_pass=(IDS[kind],), pass_to_pass=())
    return build_verifier_plan(
        PlannedRun(verifier, decoys_first=True),
        {path: BundleFile(content) for path, content in TESTS[kind].items()},
        (),
        random.Random(seed),
    )


@pytest.mark.parametrize("kind", [ReportFormat.UNITTEST, GO, CARGO, JEST])
def test_plan_runs_decoys_with_expected_tests(kind: ReportFormat) -> None:
    plan = make_plan(kind)
    assert plan.decoys.must_fail
    assert plan.decoys.must_pass
    assert plan.decoys.path in plan.tests
    for test in (*plan.decoys.must_fail, *plan.decoys.must_pass):
        assert invalid_test_id_reason(test, kind) is None
        assert test.partition("::")[0] in plan.test_containers
    assert plan.decoys.content not in {make_plan(kind, seed).decoys.content for seed in range(2, 9)}


def test_unittest_runner_runs_falsified_tests(tmp_path: Path) -> None:
    plan = make_plan(ReportFormat.UNITTEST)
    for path, file in plan.tests.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(file.content)
    subprocess.run([sys.executable, RUNNER, tmp_path / "report", *plan.test_containers], cwd=tmp_path, check=True)
    report = (tmp_path / "report").read_bytes()
    outcomes = read_report(report, ReportFormat.UNITTEST, plan.test_containers, str(tmp_path))
    assert plan.decoys.must_not_pass
    assert {outcomes.get(test) for test in plan.decoys.must_not_pass} == {FAILED}


@pytest.mark.parametrize("kind", [ReportFormat.JUNIT, TAP])
def test_format_without_decoys_runs_unchanged(kind: ReportFormat) -> None:
    plan = make_plan(kind)
    assert (plan.decoys.must_fail, dict(plan.tests)) == (
        (),
        {path: BundleFile(content) for path, content in TESTS[kind].items()},
    )


def test_commands_select_test_containers() -> None:
    def words(kind: ReportFormat, holder: str) -> str:
        return FRAMEWORKS[kind].words(holder)

    assert words(CARGO, "tests/wide api.rs") == "--test 'wide api'"
    assert words(CARGO, "crates/a/benches/b.rs") == "--bench b"
    assert words(CARGO, "src/bin/tool.rs") == "--bin tool"
    assert (words(CARGO, "src/lib.rs"), words(CARGO, "src/main.rs")) == ("--lib", "--bins")
    assert words(JEST, "a b.test.js") == "'a b.test.js'"
    plan = make_plan(ReportFormat.UNITTEST)
    command = plan.command(FRAMEWORKS[ReportFormat.UNITTEST].command)
    assert command.startswith(f"python3 {plan.runner_path} {plan.report_path} ")
    assert set(command.split()[3:]) == set(plan.test_containers)


@pytest.mark.parametrize(
    ("template", "brief"),
    [
        (FRAMEWORKS[ReportFormat.PYTEST].command, True),
        ("cd sub && /venv/bin/pytest -n 2 --junitxml={report} {files}", True),
        ("xvfb-run py.test --junitxml={report} {files}; true", True),
        ("tox -- --junitxml={report} {files}", False),
        ("for f in {files}; do pytest --junitxml={report} $f; done", False),
        ("run-pytest.sh {report} {files}", False),
        ("pip install pytest && ./tests.py {report} {files}", False),
    ],
)
def test_only_pytest_gets_no_traceback_option(template: str, brief: bool) -> None:
    verifier = make_verifier(command=template)
    plan = build_verifier_plan(
        PlannedRun(verifier), {"tests/test_a.py": BundleFile(b"def test_new(): assert 1\n")}, [], random.Random(1)
    )
    command = plan.command(template, tracebacks=False)
    assert ("--tb=no tests/" in command) is brief
    assert command.replace("--tb=no ", "") == plan.command(template)


@pytest.mark.parametrize("kind", OTHERS)
def test_invalid_test_ids_have_reason(kind: ReportFormat) -> None:
    assert invalid_test_id_reason(IDS[kind], kind) is None
    for wrong in ("no colons", "a::", f"{IDS[kind]}\n", "../x.py::t", "/x.rs::t", "-rf::t", "./x.test.js::t"):
        if kind in (ReportFormat.JUNIT, GO) and wrong.startswith((".", "/")):
            continue
        fault = invalid_test_id_reason(wrong, kind)
        assert fault is not None
        assert IDS[kind].partition("::")[0] in fault or "such as" in fault
