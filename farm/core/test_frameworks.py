"""Test ids of each test framework, and how a test command selects tests.

An id is a test container, two colons and a name. The container is the unit that can be run separately:

| report | an id | its parts |
|---|---|---|
| pytest | ``tests/test_a.py::TestB::test_c[0]`` | pytest's node id |
| unittest | ``tests/test_a.py::TestB::test_c`` | the file from which the test is loaded, class and method |
| go | ``example.com/module/part::TestA/case`` | the package's import path, as in ``go test -json`` |
| cargo | ``tests/api.rs::group::case``, ``src/lib.rs::tests::case`` | the target's source file, as in ``cargo test`` |
| jest | ``src/sum.test.js::sum adds`` | the file and the full name; the same for Vitest |
| junit | ``pkg.ClassTest::case`` | the ``classname`` and ``name`` of JUnit XML from any program |
| tap | ``::the description`` | Test Anything Protocol; a script has one container, which is empty |

Data sets name Go and Rust tests without a container. An empty container means all packages or targets; the worst
outcome of the name counts.
"""

import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from shlex import quote

from farm.core.task import ReportFormat, Verifier

PYTEST_COMMAND = "python3 -m pytest -q -o addopts= --continue-on-collection-errors --junitxml={report} {files}"


@dataclass(frozen=True, slots=True)
class Framework:
    """The conventions of one test framework."""

    command: str
    """The default test command; "" means that a task must have one, which then may omit ``{files}``."""
    in_files: tuple[str, ...]
    """The suffixes of test containers if they are files of the workspace; empty if they are not."""
    words: Callable[[str], str] = quote
    """Return the words of a command line that select a test container."""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The placeholders that a test command must contain."""
        return ("{report}", "{files}") if self.command else ("{report}",)


_CARGO_OPTIONS = {"tests": "--test", "benches": "--bench", "examples": "--example", "bin": "--bin"}


def _cargo_words(container: str) -> str:
    """Return the options of ``cargo test`` that select a target."""
    if not container:
        return ""
    directory, name = posixpath.split(container)
    option = _CARGO_OPTIONS.get(posixpath.basename(directory))
    if option is not None:
        return f"{option} {quote(name.removesuffix('.rs'))}"
    return "--bins" if name == "main.rs" else "--lib"


def _go_words(container: str) -> str:
    return quote(container) if container else "./..."


FRAMEWORKS = {
    ReportFormat.PYTEST: Framework(PYTEST_COMMAND, (".py",)),
    ReportFormat.UNITTEST: Framework("python3 {runner} {report} {files}", (".py",)),
    ReportFormat.GO: Framework("go test -json {files} > {report}", (), _go_words),
    ReportFormat.CARGO: Framework(
        "cargo test --offline --no-fail-fast {files} > {report} 2>&1", (".rs",), _cargo_words
    ),
    ReportFormat.JEST: Framework(
        "npx --no-install jest --ci --json --outputFile={report} {files}",
        (".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".mts", ".cts"),
    ),
    ReportFormat.JUNIT: Framework("", ()),
    ReportFormat.TAP: Framework("", ()),
}
"""The frameworks whose reports name tests."""


def container_of_test(test: str) -> str:
    return test.partition("::")[0]


def without_parameters(test: str) -> str:
    """Return ``tests/test_a.py::TestB::test_c`` for ``tests/test_a.py::TestB::test_c[0]``."""
    path, colons, name = test.partition("::")
    return f"{path}{colons}{name.split('[', 1)[0]}"


def containers_of_tests(tests: Iterable[str]) -> list[str]:
    return sorted({container_of_test(test) for test in tests})


def is_python(verifier: Verifier) -> bool:
    """Return True if the verifier's tests are functions in Python files."""
    return verifier.report in FRAMEWORKS and FRAMEWORKS[verifier.report].in_files == (".py",)


def is_test_path(path: str) -> bool:
    """Return True if a path is named like a test file."""
    return _TEST_PATH.search(path) is not None


def owned_files(verifier: Verifier) -> frozenset[str]:
    """Return the files of expected tests that the agent's change must not alter.

    A file that is not named like a test, such as a module with doctests, belongs to the agent if it has only
    pass-to-pass tests.
    """
    if verifier.report not in FRAMEWORKS or not FRAMEWORKS[verifier.report].in_files:
        return frozenset()
    pass_to_pass_files = filter(is_test_path, containers_of_tests(verifier.pass_to_pass))
    return frozenset((*containers_of_tests(verifier.fail_to_pass), *pass_to_pass_files)) - {""}


_TEST_PATH = re.compile(
    r"(^|/)(__tests__|([^/]*[_-])?tests?([_-][^/]*)?|benches)/|(^|[._/-])(tests?|spec)\.\w+$|(^|/)(test_[^/]*|conftest)\.py$",
    re.IGNORECASE,
)


def invalid_test_id_reason(test: str, report: ReportFormat) -> str | None:
    """Return the reason why ``test`` is not a valid id for a report format; None if it is valid."""
    container, colons, name = test.partition("::")
    framework = FRAMEWORKS[report]
    valid = bool(colons and name) and "\0" not in test and "\n" not in test
    if valid and not container:
        valid = report in _CONTAINER_OPTIONAL
    elif valid and framework.in_files:
        normalised = posixpath.normpath(container) == container and not container.startswith(("/", "../", "./"))
        valid = normalised and container.endswith(framework.in_files)
    elif valid:
        valid = report is not ReportFormat.TAP and not container.startswith("-")
    return None if valid else f"{test!r} is not a test id of a {report.value} report such as {_EXAMPLES[report]}"


_CONTAINER_OPTIONAL = (ReportFormat.GO, ReportFormat.CARGO, ReportFormat.TAP)
_EXAMPLES = {
    ReportFormat.PYTEST: "tests/test_a.py::test_b",
    ReportFormat.UNITTEST: "tests/test_a.py::TestB::test_c",
    ReportFormat.GO: "example.com/module/part::TestA",
    ReportFormat.CARGO: "tests/api.rs::case",
    ReportFormat.JEST: "src/sum.test.js::sum adds",
    ReportFormat.JUNIT: "pkg.ClassTest::case",
    ReportFormat.TAP: "::the description",
}
