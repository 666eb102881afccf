"""Parsers of test reports, which are hostile input: outcomes by the test ids of ``farm.core.test_frameworks``.

Each parser returns the worse outcome if an id occurs twice, and raises ReportError if the report is invalid. Time and
memory are linear in the size of any report: each line is searched once, JSON has a size limit, and so do all ids
together, because one prefix in a report may be repeated in many ids.
"""

import io
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from farm.core.nesting_limit import read_json
from farm.core.task import ReportFormat
from farm.grading.errors import ReportError
from farm.grading.reports.junit import node_ids, parse_junit
from farm.grading.reports.outcome import MAX_REPORT_BYTES, MAX_TESTS, CaseOutcome, worse

Outcomes = Mapping[str, CaseOutcome]
MAX_JSON_BYTES = 16 * 1024 * 1024
MAX_ID_CHARS = 64 * 1024 * 1024
"""Maximum characters of all ids together."""

_GO_OUTCOMES = {"pass": CaseOutcome.PASSED, "skip": CaseOutcome.SKIPPED, "fail": CaseOutcome.FAILED}
_CARGO_OUTCOMES = {"ok": CaseOutcome.PASSED, "ignored": CaseOutcome.SKIPPED, "FAILED": CaseOutcome.FAILED}
_JEST_OUTCOMES = {
    "passed": CaseOutcome.PASSED,
    "failed": CaseOutcome.FAILED,
    "pending": CaseOutcome.SKIPPED,
    "skipped": CaseOutcome.SKIPPED,
    "todo": CaseOutcome.SKIPPED,
    "disabled": CaseOutcome.SKIPPED,
}
_TARGET = re.compile(r"\s*Running (?:unittests )?(\S+\.rs) \(.+\)")
_DOC_TESTS = re.compile(r"\s*Doc-tests ")
_RUNNING = re.compile(r"running (\d{1,7}) tests?")
_CASE = re.compile(r"test (.+?)(?: - should panic)? \.\.\. (ok|ignored|FAILED)(?:, |\Z)")
_TIMED_CASE = re.compile(r"test (.+?)(?: - should panic)? \.\.\. (ok|ignored|FAILED)(?:, |\Z| <)")
"""``_TIMED_CASE`` is for lines that end in ``>``, with a duration in angle brackets."""
_TAP = re.compile(r"(not )?ok\b(?: +\d+)?(?: +-)? *", re.IGNORECASE)
_TAP_DIRECTIVE = re.compile(r" *(?:skip|todo)\b", re.IGNORECASE)


def read_report(
    report: bytes, kind: ReportFormat, containers: Collection[str], workspace: str, expected: Iterable[str] = ()
) -> Outcomes:
    """Return the outcomes in a report of the tests in ``containers``, and perhaps of other tests.

    ``expected``: ids that are preferred if the report does not determine an id (see ``node_ids``). If "" is among
    ``containers``, each outcome is also returned under an id without container.

    Raises ReportError if the report is invalid or too large.
    """
    if len(report) > MAX_REPORT_BYTES:
        raise ReportError(f"the report is too large: it has more than {MAX_REPORT_BYTES} bytes")
    if kind in (ReportFormat.PYTEST, ReportFormat.UNITTEST):
        return parse_junit(report, node_ids(containers, expected))
    outcomes = _PARSERS[kind](report, containers, workspace)
    if "" not in containers:
        return outcomes
    return {**outcomes, **_collect((f"::{test.partition('::')[2]}", outcome) for test, outcome in outcomes.items())}


def _parse_junit(report: bytes, containers: Collection[str], workspace: str) -> Outcomes:
    return parse_junit(report)


def _parse_go(report: bytes, containers: Collection[str], workspace: str) -> Outcomes:
    """Parse the events of ``go tool test2json``, one per line.

    test2json derives them from the output of the test program, which may be forged.
    """

    def events() -> Iterator[tuple[str, CaseOutcome]]:
        for line in io.BytesIO(report):
            if not line.startswith(b"{"):  # output of the go command itself
                continue
            match _parse_json(line):
                case {"Action": "pass" | "skip" | "fail" as action, "Test": str(test), **fields} if test:
                    package = fields.get("Package")
                    yield f"{package if isinstance(package, str) else None}::{test}", _GO_OUTCOMES[action]

    return _collect(events())


def _parse_cargo(report: bytes, containers: Collection[str], workspace: str) -> Outcomes:
    """Parse the text output of libtest, because its JSON output is not stable yet.

    It is ``running 4 tests``, one line per test, an empty line, and then the output of failed tests. Documentation
    tests have no target and are skipped.
    """

    def cases() -> Iterator[tuple[str, CaseOutcome]]:
        target, cases_left = "", 0
        for line in _lines(report):
            if match := _TARGET.fullmatch(line):
                target = match[1]
            elif _DOC_TESTS.match(line):
                target = ""
            elif match := _RUNNING.fullmatch(line):
                cases_left = int(match[1])
            elif not line:
                cases_left = 0
            elif target and cases_left and (match := (_TIMED_CASE if line.endswith(">") else _CASE).match(line)):
                cases_left -= 1
                yield f"{target}::{match[1]}", _CARGO_OUTCOMES[match[2]]

    return _collect(cases())


def _parse_jest(report: bytes, containers: Collection[str], workspace: str) -> Outcomes:
    def assertions() -> Iterator[tuple[str, CaseOutcome]]:
        document = _parse_json(report)
        suites = document.get("testResults") if isinstance(document, dict) else None
        if not isinstance(suites, list):
            raise ReportError("the report is not a Jest report: it has no testResults")
        for suite in suites:
            file = posixpath.relpath(_check_string(suite["name"]), workspace)
            for test in suite["assertionResults"]:
                yield (
                    f"{file}::{_check_string(test['fullName'])}",
                    _JEST_OUTCOMES.get(_check_string(test["status"]), CaseOutcome.ERROR),
                )

    try:
        return _collect(assertions())
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"the report is not a Jest report: {type(error).__name__} {error}") from None


def _parse_tap(report: bytes, containers: Collection[str], workspace: str) -> Outcomes:
    """Parse the Test Anything Protocol, versions 12 to 14; only the outermost of nested tests count."""

    def points() -> Iterator[tuple[str, CaseOutcome]]:
        for line in _lines(report):
            point, hash_sign, directive = line.partition("#")
            match = _TAP.match(point)
            if match is None or (hash_sign and not _TAP_DIRECTIVE.match(directive)):
                continue
            outcome = CaseOutcome.FAILED if match[1] else CaseOutcome.PASSED
            yield f"::{point[match.end() :].rstrip(' ')}", CaseOutcome.SKIPPED if hash_sign else outcome

    return _collect(points())


def _collect(cases: Iterable[tuple[str, CaseOutcome]]) -> Outcomes:
    outcomes: dict[str, CaseOutcome] = {}
    chars_left = MAX_ID_CHARS
    for number, (test, outcome) in enumerate(cases):
        if number >= MAX_TESTS:
            raise ReportError(f"the report is too large: it has more than {MAX_TESTS} tests")
        chars_left -= len(test)
        if chars_left < 0:
            raise ReportError(f"the report is too large: its test names have more than {MAX_ID_CHARS} characters")
        outcomes[test] = worse(outcomes.get(test, CaseOutcome.PASSED), outcome)
    if not outcomes:
        raise ReportError("the report contains no test")
    return outcomes


def _lines(report: bytes) -> Iterator[str]:
    for line in io.TextIOWrapper(io.BytesIO(report), "utf-8", "replace"):
        yield line.removesuffix("\n")


def _check_string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is not a string")
    return value


def _parse_json(text: bytes) -> Any:
    if len(text) > MAX_JSON_BYTES:
        raise ReportError(f"the report is too large: its JSON has more than {MAX_JSON_BYTES} bytes")
    try:
        return read_json(text)
    except ValueError:
        raise ReportError("the report is not JSON") from None


_PARSERS: Mapping[ReportFormat, Callable[[bytes, Collection[str], str], Outcomes]] = {
    ReportFormat.GO: _parse_go,
    ReportFormat.CARGO: _parse_cargo,
    ReportFormat.JEST: _parse_jest,
    ReportFormat.JUNIT: _parse_junit,
    ReportFormat.TAP: _parse_tap,
}
