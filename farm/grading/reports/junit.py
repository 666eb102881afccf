"""Parser of JUnit XML as hostile input: the code under test may have written the report."""

from collections.abc import Callable, Collection, Iterable, Mapping
from xml.parsers import expat

from farm.grading.errors import ReportError
from farm.grading.reports.outcome import MAX_REPORT_BYTES, MAX_TESTS, CaseOutcome, worse

MAX_DEPTH = 32

_CHILDREN = {"skipped": CaseOutcome.SKIPPED, "failure": CaseOutcome.FAILED, "error": CaseOutcome.ERROR}

IdOfCase = Callable[[str, str], str | None]
"""Return the test id for a ``classname`` and a ``name``; None skips the test."""


def parse_junit(report: bytes, name: IdOfCase = "{}::{}".format) -> Mapping[str, CaseOutcome]:
    """Return the outcome of each test by its id; the worse one if an id occurs twice. ``name`` makes the ids.

    Raises ReportError if the report is too large, is not well-formed, or declares a document type.
    """
    if len(report) > MAX_REPORT_BYTES:
        raise ReportError(f"the report is too large: it has more than {MAX_REPORT_BYTES} bytes")
    reader = _Reader(name)
    try:
        reader.parser.Parse(report, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise ReportError(f"the report is not XML: {error}") from None
    if not reader.has_suite:
        raise ReportError("the report contains no test suite")
    return reader.outcomes


def junit_name(node_id: str) -> tuple[str, str]:
    """Return the ``classname`` and ``name`` that pytest reports for a node id."""
    path, bracket, parameters = node_id.partition("[")
    file, *names = path.split("::")
    *classes, name = (file.removesuffix(".py").replace("/", "."), *names)
    return ".".join(classes), f"{name}{bracket}{parameters}"


def node_ids(files: Collection[str], expected: Iterable[str] = ()) -> IdOfCase:
    """Return the inverse of ``junit_name`` for tests of ``files``; it skips tests of other files.

    A project's own collectors may use class names with a dot, so that the inverse is not unique. Then it returns the id
    in ``expected``, if there is one.
    """
    expected_ids = {junit_name(test): test for test in expected}
    modules = {file.removesuffix(".py").replace("/", "."): file for file in files}
    longest = max(map(len, modules), default=0)

    def node_id(classname: str, name: str) -> str | None:
        if (classname, name) in expected_ids:
            return expected_ids[classname, name]
        end = len(classname) if len(classname) <= longest else classname.rfind(".", 0, longest + 1)
        while end >= 0 and classname[:end] not in modules:
            end = classname.rfind(".", 0, end)
        if end < 0:
            return None
        return f"{modules[classname[:end]]}{classname[end:].replace('.', '::')}::{name}"

    return node_id


class _Reader:
    def __init__(self, name: IdOfCase) -> None:
        self.outcomes: dict[str, CaseOutcome] = {}
        self.has_suite = False
        self._id_of_case = name
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
            raise ReportError(f"the report is nested too deeply: more than {MAX_DEPTH} levels")
        if name == "testsuite":
            self.has_suite = True
        elif name == "testcase":
            self._tests += 1
            if self._tests > MAX_TESTS:
                raise ReportError(f"the report is too large: it has more than {MAX_TESTS} tests")
            self._test = self._id_of_case(attributes.get("classname", ""), attributes.get("name", ""))
            self._outcome = CaseOutcome.PASSED
        elif name in _CHILDREN:
            self._outcome = worse(self._outcome, _CHILDREN[name])

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name == "testcase" and self._test is not None:
            self.outcomes[self._test] = worse(self.outcomes.get(self._test, CaseOutcome.PASSED), self._outcome)
            self._test = None
