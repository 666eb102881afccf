"""Tests of JUnit reports and reward files as hostile input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.grading import ReportError
from farm.grading.reports import outcome
from farm.grading.reports.junit import junit_name, node_ids, parse_junit
from farm.grading.reports.outcome import CaseOutcome
from farm.grading.reports.reward_file import MAX_REWARD_BYTES, choose_reward, parse_reward
from tests.support.farm.grading_values import FAILURE, case
from tests.support.farm.grading_values import junit as report

NAMES = node_ids(("tests/test_a.py", "test_top.py"))


def test_node_ids_follow_from_class_names() -> None:
    outcomes = parse_junit(
        report(
            case("tests.test_a", "test_f"),
            case("tests.test_a.TestB.TestC", "test_g[x.y-1]"),
            case("test_top", "test_h", "<skipped type='pytest.xfail'/>"),
            case("tests.test_a", "test_e", "<error/>"),
            case("tests.test_other", "test_f"),
            case("", "tests.test_a"),
        ),
        NAMES,
    )
    assert outcomes == {
        "tests/test_a.py::test_f": CaseOutcome.PASSED,
        "tests/test_a.py::TestB::TestC::test_g[x.y-1]": CaseOutcome.PASSED,
        "test_top.py::test_h": CaseOutcome.SKIPPED,
        "tests/test_a.py::test_e": CaseOutcome.ERROR,
    }


def test_class_with_dot_gets_expected_id() -> None:
    """mypy's own test suite has such classes."""
    file, id_ = "mypy/test/testcheck.py", "mypy/test/testcheck.py::TypeCheckSuite::check-dataclasses.test::testInit"
    classname = "mypy.test.testcheck.TypeCheckSuite.check-dataclasses.test"
    content = report(case(classname, "testInit"), case(classname, "testOther"))
    outcomes = parse_junit(content, node_ids([file], [id_]))
    other = f"{file}::TypeCheckSuite::check-dataclasses::test::testOther"
    assert outcomes == {id_: CaseOutcome.PASSED, other: CaseOutcome.PASSED}


@given(st.lists(st.text("ab.-", min_size=1), max_size=3), st.text("ab[]:.", min_size=1))
def test_any_expected_id_is_recovered(classes: list[str], parameter: str) -> None:
    id_ = "::".join(["tests/test_a.py", *classes, f"test[{parameter}]"])
    assert node_ids(["tests/test_a.py"], [id_])(*junit_name(id_)) == id_


@pytest.mark.parametrize("children", [("", FAILURE), (FAILURE, ""), ("", "<skipped/>")])
def test_repeated_test_has_worse_outcome(children: tuple[str, str]) -> None:
    outcomes = parse_junit(report(*(case("test_top", "test", child) for child in children)), NAMES)
    assert outcomes["test_top.py::test"] is not CaseOutcome.PASSED


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no xml",
        b"<testsuites>",
        b"<other/>",
        b"<testsuite>\0</testsuite>",
        b"<?xml version='1.0' encoding='klingon'?><testsuite/>",
        b"<!DOCTYPE a><testsuite/>",
        b"<!DOCTYPE a [<!ENTITY x 'y'><!ENTITY z '&x;&x;'>]><testsuite>&z;</testsuite>",
        b"<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><testsuite>&x;</testsuite>",
        b"<testsuite>" * 40,
        b"<testsuite><testcase classname='a' classname='b'/></testsuite>",
    ],
)
def test_invalid_junit_report_raises(content: bytes) -> None:
    with pytest.raises(ReportError):
        parse_junit(content, NAMES)


def test_too_large_report_raises() -> None:
    with pytest.raises(ReportError, match="bytes"):
        parse_junit(bytes(outcome.MAX_REPORT_BYTES + 1), NAMES)
    with pytest.raises(ReportError, match="tests"):
        parse_junit(b"<testsuite>" + b"<testcase/>" * (outcome.MAX_TESTS + 1), NAMES)


@given(st.binary())
def test_any_bytes_raise_only_report_error(content: bytes) -> None:
    for data in (content, b"<testsuite>" + content + b"</testsuite>"):
        try:
            parse_junit(data, NAMES)
        except ReportError:
            continue


@pytest.mark.parametrize(
    ("content", "is_json", "reward"),
    [
        (b"1", False, 1.0),
        (b" 0.25\n", False, 0.25),
        (b'{"reward": 0.5, "note": "x"}', True, 0.5),
        (b"1", True, 1.0),
        (b"-1e6", False, -1e6),
    ],
)
def test_reward_file_number_is_parsed(content: bytes, is_json: bool, reward: float) -> None:
    assert parse_reward(content, is_json=is_json) == reward


@pytest.mark.parametrize(
    ("in_json", "in_text", "reward"),
    [
        (b"1", b"0", 0.0),
        (b"0", b"1", 0.0),
        (b'{"reward": 0.5}', b"0.5", 0.5),
        (b'{"accuracy": 0.9, "speed": 3}', b"0.25", 0.25),
        (b"0.5", None, 0.5),
        (None, b"0.5", 0.5),
    ],
)
def test_lower_of_two_reward_files_counts(in_json: bytes | None, in_text: bytes | None, reward: float) -> None:
    given = {"reward.json": in_json, "reward.txt": in_text}
    assert choose_reward({name: content for name, content in given.items() if content is not None}) == reward


@pytest.mark.parametrize(
    ("in_json", "in_text"),
    [
        (None, None),
        (b'{"accuracy": 1}', None),
        (b"1", b"none"),
        (b"none", b"1"),
        (b'{"reward": null}', b"1"),
        (b"{" * 60_000, b"1"),
    ],
)
def test_invalid_reward_file_beside_valid_one_raises(in_json: bytes | None, in_text: bytes | None) -> None:
    given = {"reward.json": in_json, "reward.txt": in_text}
    with pytest.raises(ReportError):
        choose_reward({name: content for name, content in given.items() if content is not None})


@pytest.mark.parametrize(
    ("content", "is_json"),
    [
        (b"", False),
        (b"nan", False),
        (b"inf", False),
        (b"1e999", False),
        (b"1.5e308", False),
        (b"-1000001", False),
        (b"1000001", True),
        (b"one", False),
        (b"\xff", False),
        (b"NaN", True),
        (b"Infinity", True),
        (b"1" + b"0" * 400, True),
        (b'{"reward": "1"}', True),
        (b'{"reward": true}', True),
        (b"{}", True),
        (b"[1]", True),
        (b"[" * 60_000, True),
        (b"1" * (MAX_REWARD_BYTES + 1), False),
    ],
)
def test_invalid_reward_file_raises(content: bytes, is_json: bool) -> None:
    with pytest.raises(ReportError):
        parse_reward(content, is_json=is_json)
