"""JUnit XML, read as what it is: bytes that the code under test could have written."""

from collections.abc import Callable, Collection, Iterable, Mapping
from xml.parsers import expat

from farm.grading.errors import ReportError
from farm.grading.reports.outcome import MAX_REPORT_BYTES, MAX_TESTS, CaseOutcome, worse

MAX_DEPTH = 32

_CHILDREN = {"skipped": CaseOutcome.SKIPPED, "failure": CaseOutcome.FAILED, "error": CaseOutcome.ERROR}

Name = Callable[[str, str], str | None]
"""The id of a test with this ``classname`` and ``name``; None: it is passed over."""


def parse_junit(report: bytes, name: Name = "{}::{}".format) -> Mapping[str, CaseOutcome]:
    """The outcome of each test by its id; where an id occurs twice, the worse one.

    Raises ReportError for what is not a well-formed report without a document type, or is too big.
    """
    if len(report) > MAX_REPORT_BYTES:
        raise ReportError(f"the report holds more than {MAX_REPORT_BYTES} bytes")
    reader = _Reader(name)
    try:
        reader.parser.Parse(report, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise ReportError(f"the report is not XML: {error}") from None
    if not reader.seen_suite:
        raise ReportError("the report holds no test suite")
    return reader.outcomes


def junit_name(node_id: str) -> tuple[str, str]:
    """The ``classname`` and ``name`` that pytest gives the test of a node id."""
    path, bracket, parameters = node_id.partition("[")
    file, *names = path.split("::")
    *classes, name = (file.removesuffix(".py").replace("/", "."), *names)
    return ".".join(classes), f"{name}{bracket}{parameters}"


def node_ids(files: Collection[str], expected: Iterable[str] = ()) -> Name:
    """The way back from what ``junit_name`` gives. Tests of other files are passed over.

    The way is not unique where the name of a class, as collectors of a project's own give it, has a dot in it: among
    ``expected`` are the ids of those that matter.
    """
    known = {junit_name(test): test for test in expected}
    modules = {file.removesuffix(".py").replace("/", "."): file for file in files}
    longest = max(map(len, modules), default=0)

    def node_id(classname: str, name: str) -> str | None:
        if (classname, name) in known:
            return known[classname, name]
        end = len(classname) if len(classname) <= longest else classname.rfind(".", 0, longest + 1)
        while end >= 0 and classname[:end] not in modules:
            end = classname.rfind(".", 0, end)
        if end < 0:
            return None
        return f"{modules[classname[:end]]}{classname[end:].replace('.', '::')}::{name}"

    return node_id


class _Reader:
    def __init__(self, name: Name) -> None:
        self.outcomes: dict[str, CaseOutcome] = {}
        self.seen_suite = False
        self._name = name
        self._depth = 0
        self._tests = 0
        self._test: str | None = None
        self._outcome = CaseOutcome.PASSED
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
            self._test = self._name(attributes.get("classname", ""), attributes.get("name", ""))
            self._outcome = CaseOutcome.PASSED
        elif name in _CHILDREN:
            self._outcome = worse(self._outcome, _CHILDREN[name])

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name == "testcase" and self._test is not None:
            self.outcomes[self._test] = worse(self.outcomes.get(self._test, CaseOutcome.PASSED), self._outcome)
            self._test = None
