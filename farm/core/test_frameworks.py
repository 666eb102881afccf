"""How tests of each kind are named and asked for.

An id is a holder, two colons and a name; the holder is what can be run by itself:

| report | an id | of |
|---|---|---|
| pytest | ``tests/test_a.py::TestB::test_c[0]`` | its node id |
| unittest | ``tests/test_a.py::TestB::test_c`` | the file from which the test is loaded |
| go | ``example.com/module/part::TestA/case`` | the package's import path, as ``go test -json`` tells it |
| cargo | ``tests/api.rs::group::case``, ``src/lib.rs::tests::case`` | the target's source, as ``cargo test`` tells it |
| jest | ``src/sum.test.js::sum adds`` | the file and the full name; Vitest's are the same |
| junit | ``pkg.ClassTest::case`` | the ``classname`` and ``name`` of JUnit XML, whoever writes it |
| tap | ``::the description`` | Test Anything Protocol; a script has one holder, which is empty |

Data sets tell Go's and Rust's tests by their names alone: with an empty holder those of all packages or targets are
meant, and the worst of what they did counts.
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
    """``command``: where a task names none; empty: it must, and need not say ``{files}``. ``in_files``: a holder is a
    file of the workspace, and its suffix one of these; empty: it is none. ``words``: how a command line chooses it."""

    command: str
    in_files: tuple[str, ...]
    words: Callable[[str], str] = quote

    @property
    def placeholders(self) -> tuple[str, ...]:
        """What a command must say."""
        return ("{report}", "{files}") if self.command else ("{report}",)


_CARGO_KINDS = {"tests": "--test", "benches": "--bench", "examples": "--example", "bin": "--bin"}


def _cargo_words(holder: str) -> str:
    """The options of ``cargo test`` that choose a target."""
    if not holder:
        return ""
    directory, name = posixpath.split(holder)
    option = _CARGO_KINDS.get(posixpath.basename(directory))
    if option is not None:
        return f"{option} {quote(name.removesuffix('.rs'))}"
    return "--bins" if name == "main.rs" else "--lib"


def _go_words(holder: str) -> str:
    return quote(holder) if holder else "./..."


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
"""Those that name tests."""


def container_of_test(test: str) -> str:
    return test.partition("::")[0]


def without_parameters(test: str) -> str:
    """``tests/test_a.py::TestB::test_c`` of ``tests/test_a.py::TestB::test_c[0]``."""
    path, colons, name = test.partition("::")
    return f"{path}{colons}{name.split('[', 1)[0]}"


def containers_of_tests(tests: Iterable[str]) -> list[str]:
    return sorted({container_of_test(test) for test in tests})


def is_python(verifier: Verifier) -> bool:
    """Whether its tests are functions in files of Python."""
    return verifier.report in FRAMEWORKS and FRAMEWORKS[verifier.report].in_files == (".py",)


def is_test_path(path: str) -> bool:
    """Whether a file is named as tests are."""
    return _TEST_PATH.search(path) is not None


def owned_files(verifier: Verifier) -> frozenset[str]:
    """The files of expected tests that are the verifier's alone. One that is named as no test, such as a module with
    examples in its docstrings, stays the policy's where all that is expected of it holds already."""
    if verifier.report not in FRAMEWORKS or not FRAMEWORKS[verifier.report].in_files:
        return frozenset()
    kept = filter(is_test_path, containers_of_tests(verifier.pass_to_pass))
    return frozenset((*containers_of_tests(verifier.fail_to_pass), *kept)) - {""}


_TEST_PATH = re.compile(
    r"(^|/)(__tests__|([^/]*[_-])?tests?([_-][^/]*)?|benches)/|(^|[._/-])(tests?|spec)\.\w+$|(^|/)(test_[^/]*|conftest)\.py$",
    re.IGNORECASE,
)


def invalid_test_id_reason(test: str, report: ReportFormat) -> str | None:
    """Why this is no id of such a report; None where it is one."""
    held, colons, name = test.partition("::")
    framework = FRAMEWORKS[report]
    right = bool(colons and name) and "\0" not in test and "\n" not in test
    if right and not held:
        right = report in _ANYWHERE
    elif right and framework.in_files:
        plain = posixpath.normpath(held) == held and not held.startswith(("/", "../", "./"))
        right = plain and held.endswith(framework.in_files)
    elif right:
        right = report is not ReportFormat.TAP and not held.startswith("-")
    return None if right else f"{test!r} is no id of a {report.value} report such as {_EXAMPLES[report]}"


_ANYWHERE = (ReportFormat.GO, ReportFormat.CARGO, ReportFormat.TAP)
_EXAMPLES = {
    ReportFormat.PYTEST: "tests/test_a.py::test_b",
    ReportFormat.UNITTEST: "tests/test_a.py::TestB::test_c",
    ReportFormat.GO: "example.com/module/part::TestA",
    ReportFormat.CARGO: "tests/api.rs::case",
    ReportFormat.JEST: "src/sum.test.js::sum adds",
    ReportFormat.JUNIT: "pkg.ClassTest::case",
    ReportFormat.TAP: "::the description",
}
