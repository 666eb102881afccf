"""Read test reports of each kind, which are hostile input: outcomes by the ids of ``farm.core.test_frameworks``.

Every reader takes the worse outcome where an id occurs twice, and raises ReportError for what is no such report. Time
and room are linear in the report, whatever it says: lines are read one at a time and never searched twice, a JSON text
has a bound, and so have all ids together, for a name that is said once may stand before many others.
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
"""Of all ids together."""

_GO = {"pass": CaseOutcome.PASSED, "skip": CaseOutcome.SKIPPED, "fail": CaseOutcome.FAILED}
_CARGO = {"ok": CaseOutcome.PASSED, "ignored": CaseOutcome.SKIPPED, "FAILED": CaseOutcome.FAILED}
_JEST = {
    "passed": CaseOutcome.PASSED,
    "failed": CaseOutcome.FAILED,
    "pending": CaseOutcome.SKIPPED,
    "skipped": CaseOutcome.SKIPPED,
    "todo": CaseOutcome.SKIPPED,
    "disabled": CaseOutcome.SKIPPED,
}
_TARGET = re.compile(r"\s*Running (?:unittests )?(\S+\.rs) \(.+\)")
_DOCUMENTATION = re.compile(r"\s*Doc-tests ")
_RUNNING = re.compile(r"running (\d{1,7}) tests?")
_CASE = re.compile(r"test (.+?)(?: - should panic)? \.\.\. (ok|ignored|FAILED)(?:, |\Z)")
_TIMED_CASE = re.compile(r"test (.+?)(?: - should panic)? \.\.\. (ok|ignored|FAILED)(?:, |\Z| <)")
"""The latter of lines that end in ``>``."""
_TAP = re.compile(r"(not )?ok\b(?: +\d+)?(?: +-)? *", re.IGNORECASE)
_TAP_DIRECTIVE = re.compile(r" *(?:skip|todo)\b", re.IGNORECASE)


def read_report(
    report: bytes, kind: ReportFormat, holders: Collection[str], workspace: str, expected: Iterable[str] = ()
) -> Outcomes:
    """What a report of ``kind`` says of the tests of ``holders``, and perhaps of others. ``expected``: ids whose form
    no report tells alone."""
    if len(report) > MAX_REPORT_BYTES:
        raise ReportError(f"the report holds more than {MAX_REPORT_BYTES} bytes")
    if kind in (ReportFormat.PYTEST, ReportFormat.UNITTEST):
        return parse_junit(report, node_ids(holders, expected))
    outcomes = _READERS[kind](report, holders, workspace)
    if "" not in holders:
        return outcomes
    return {**outcomes, **_gather((f"::{test.partition('::')[2]}", outcome) for test, outcome in outcomes.items())}


def _junit(report: bytes, holders: Collection[str], workspace: str) -> Outcomes:
    return parse_junit(report)


def _go(report: bytes, holders: Collection[str], workspace: str) -> Outcomes:
    """``go doc test2json``: a line an event. It makes these of what the test program prints, which may lie."""

    def events() -> Iterator[tuple[str, CaseOutcome]]:
        for line in io.BytesIO(report):
            if not line.startswith(b"{"):  # what the go command itself says
                continue
            match _parse(line):
                case {"Action": "pass" | "skip" | "fail" as action, "Test": str(test), **more} if test:
                    package = more.get("Package")
                    yield f"{package if isinstance(package, str) else None}::{test}", _GO[action]

    return _gather(events())


def _cargo(report: bytes, holders: Collection[str], workspace: str) -> Outcomes:
    """The words of libtest, whose JSON is not stable yet: ``running 4 tests``, a line a test, an empty line; what was
    printed by tests that failed comes later. Documentation tests have no target and are passed over."""

    def cases() -> Iterator[tuple[str, CaseOutcome]]:
        target, left = "", 0
        for line in _lines(report):
            if found := _TARGET.fullmatch(line):
                target = found[1]
            elif _DOCUMENTATION.match(line):
                target = ""
            elif found := _RUNNING.fullmatch(line):
                left = int(found[1])
            elif not line:
                left = 0
            elif target and left and (found := (_TIMED_CASE if line.endswith(">") else _CASE).match(line)):
                left -= 1
                yield f"{target}::{found[1]}", _CARGO[found[2]]

    return _gather(cases())


def _jest(report: bytes, holders: Collection[str], workspace: str) -> Outcomes:
    def assertions() -> Iterator[tuple[str, CaseOutcome]]:
        whole = _parse(report)
        suites = whole.get("testResults") if isinstance(whole, dict) else None
        if not isinstance(suites, list):
            raise ReportError("the report holds no testResults")
        for suite in suites:
            file = posixpath.relpath(_string(suite["name"]), workspace)
            for test in suite["assertionResults"]:
                yield f"{file}::{_string(test['fullName'])}", _JEST.get(_string(test["status"]), CaseOutcome.ERROR)

    try:
        return _gather(assertions())
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"the report is not Jest's: {type(error).__name__} {error}") from None


def _tap(report: bytes, holders: Collection[str], workspace: str) -> Outcomes:
    """Test Anything Protocol, versions 12 to 14; of nested tests the outermost count."""

    def points() -> Iterator[tuple[str, CaseOutcome]]:
        for line in _lines(report):
            point, hash_sign, directive = line.partition("#")
            found = _TAP.match(point)
            if found is None or (hash_sign and not _TAP_DIRECTIVE.match(directive)):
                continue
            outcome = CaseOutcome.FAILED if found[1] else CaseOutcome.PASSED
            yield f"::{point[found.end() :].rstrip(' ')}", CaseOutcome.SKIPPED if hash_sign else outcome

    return _gather(points())


def _gather(seen: Iterable[tuple[str, CaseOutcome]]) -> Outcomes:
    outcomes: dict[str, CaseOutcome] = {}
    room = MAX_ID_CHARS
    for number, (test, outcome) in enumerate(seen):
        if number >= MAX_TESTS:
            raise ReportError(f"the report holds more than {MAX_TESTS} tests")
        room -= len(test)
        if room < 0:
            raise ReportError(f"the names of the report's tests hold more than {MAX_ID_CHARS} characters")
        outcomes[test] = worse(outcomes.get(test, CaseOutcome.PASSED), outcome)
    if not outcomes:
        raise ReportError("the report holds no test")
    return outcomes


def _lines(report: bytes) -> Iterator[str]:
    for line in io.TextIOWrapper(io.BytesIO(report), "utf-8", "replace"):
        yield line.removesuffix("\n")


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is no string")
    return value


def _parse(text: bytes) -> Any:
    if len(text) > MAX_JSON_BYTES:
        raise ReportError(f"the report holds JSON of more than {MAX_JSON_BYTES} bytes")
    try:
        return read_json(text)
    except ValueError:
        raise ReportError("the report is not JSON") from None


_READERS: Mapping[ReportFormat, Callable[[bytes, Collection[str], str], Outcomes]] = {
    ReportFormat.GO: _go,
    ReportFormat.CARGO: _cargo,
    ReportFormat.JEST: _jest,
    ReportFormat.JUNIT: _junit,
    ReportFormat.TAP: _tap,
}
