"""A pytest JUnit report, read as what it is: bytes that the code under test could have written."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from xml.parsers import expat

from farm.grading.errors import ReportError

MAX_REPORT_BYTES = 64 * 1024 * 1024
MAX_TESTS = 500_000
MAX_DEPTH = 32


class Outcome(StrEnum):
    """What a report says of a test; an expected failure, a skip and a deselection are no pass."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    ERROR = "error"


_WORSE = tuple(Outcome)
_CHILDREN = {"skipped": Outcome.SKIPPED, "failure": Outcome.FAILED, "error": Outcome.ERROR}


def parse_junit(report: bytes, files: Collection[str]) -> Mapping[str, Outcome]:
    """The outcome of each test of ``files``, by node id; where an id occurs twice, the worse one.

    Node ids are made from the class name, which pytest derives from the id itself; a test of any other file is
    passed over. Raises ReportError for what is not a well-formed report without a document type, or is too big.
    """
    if len(report) > MAX_REPORT_BYTES:
        raise ReportError(f"the report holds more than {MAX_REPORT_BYTES} bytes")
    reader = _Reader({file.removesuffix(".py").replace("/", "."): file for file in files})
    try:
        reader.parser.Parse(report, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise ReportError(f"the report is not XML: {error}") from None
    if not reader.seen_suite:
        raise ReportError("the report holds no test suite")
    return reader.outcomes


class _Reader:
    def __init__(self, modules: Mapping[str, str]) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.seen_suite = False
        self._modules = modules
        self._depth = 0
        self._tests = 0
        self._test: str | None = None
        self._outcome = Outcome.PASSED
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end

    def _refuse_doctype(self, *_: object) -> None:
        raise ReportError("the report declares a document type")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ReportError(f"the report is nested more than {MAX_DEPTH} deep")
        if name == "testsuite":
            self.seen_suite = True
        elif name == "testcase":
            self._tests += 1
            if self._tests > MAX_TESTS:
                raise ReportError(f"the report holds more than {MAX_TESTS} tests")
            self._test = self._node_id(attributes.get("classname", ""), attributes.get("name", ""))
            self._outcome = Outcome.PASSED
        elif name in _CHILDREN:
            self._outcome = _worse(self._outcome, _CHILDREN[name])

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name == "testcase" and self._test is not None:
            self.outcomes[self._test] = _worse(self.outcomes.get(self._test, Outcome.PASSED), self._outcome)
            self._test = None

    def _node_id(self, classname: str, name: str) -> str | None:
        module, classes = classname, ""
        while module not in self._modules:
            module, dot, last = module.rpartition(".")
            if not dot:
                return None
            classes = f"::{last}{classes}"
        return f"{self._modules[module]}{classes}::{name}"


def _worse(one: Outcome, other: Outcome) -> Outcome:
    return max(one, other, key=_WORSE.index)
