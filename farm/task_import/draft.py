"""``ImportDraft``, the content of a task directory as read from a row; and the user's test commands."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from farm.core.task import ReportFormat
from farm.core.test_frameworks import invalid_test_id_reason
from farm.core.toml import read_toml
from farm.task_import.fields import RowError
from farm.tasks.errors import TaskError

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NAME_REPORTS = (ReportFormat.GO, ReportFormat.CARGO, ReportFormat.TAP)
"""Reports whose tests the data sets identify by name alone."""
REPORTS = [report.value for report in ReportFormat if report is not ReportFormat.REWARD_FILE]


@dataclass(frozen=True, slots=True)
class Command:
    """A test command: as the project writes it, or with the farm's placeholders ``{report}`` and ``{files}``."""

    line: str
    report: str = "pytest"


@dataclass(frozen=True, slots=True)
class ImportDraft:
    """One task. Patches are unified diffs of the workspace.

    ``solution`` solves the task; with ``reverse_solution`` its reverse does. The build checks out ``commit``, applies
    ``bug``, and removes the absolute paths ``removed``, which hold the answer or the tests. ``test_patch`` and
    ``tests``, whole files by path in the workspace, are for grading alone. ``left_out``: expected test ids that no
    report can have. ``facts`` go into ``[metadata]``.
    """

    id: str
    image: str
    workspace: str
    instruction: str
    solution: bytes
    command: Command
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    reverse_solution: bool = False
    bug: bytes = b""
    test_patch: bytes = b""
    tests: Mapping[str, bytes] = field(default_factory=dict)
    commit: str = ""
    removed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


class _CommandTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str
    report: str = "pytest"


@dataclass(frozen=True, slots=True)
class Commands:
    """The test commands that the user names: for all rows, or by ``owner/name`` and ``owner/name@version``."""

    everywhere: Command | None = None
    by_repo: Mapping[str, Command] = field(default_factory=dict)

    def of(self, repo: str, version: str = "") -> Command | None:
        """Return the command of a repository, the most specific one first."""
        return self.by_repo.get(f"{repo}@{version}") or self.by_repo.get(repo) or self.everywhere


def read_commands(path: Path | None, command: str | None, report: str | None) -> Commands:
    """Read the user's test commands from a file and from the command line.

    Raises TaskError if the file cannot be read or a report format does not exist.
    """
    everywhere = None if command is None else _checked_command("--report", Command(command, report or "pytest"))
    if path is None:
        return Commands(everywhere)
    remedy = 'write ["owner/name"], then command = "…" and report = "…" below it'
    try:
        document = read_toml(path.read_bytes())
        lines = {name: _CommandTable.model_validate(table) for name, table in document.items()}
    except OSError as error:
        raise TaskError(path, error.strerror or str(error), "name a readable file") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise TaskError(path, f"{key}: {first['msg']}", remedy) from None
    except ValueError as error:
        raise TaskError(path, f"not TOML: {error}", remedy) from None
    return Commands(
        everywhere, {name: _checked_command(path, Command(line.command, line.report)) for name, line in lines.items()}
    )


def _checked_command(origin: Path | str, command: Command) -> Command:
    if command.report not in REPORTS:
        raise TaskError(origin, f"{command.report!r} is not a report format", f"choose one of {', '.join(REPORTS)}")
    return command


@dataclass(frozen=True, slots=True)
class ExpectedTests:
    """The expected test ids, and those of the row that are left out because no report can have them."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    left_out: tuple[str, ...]


def expected_tests(fail_to_pass: Iterable[str], pass_to_pass: Iterable[str], report: str) -> ExpectedTests:
    """Sort the test ids of a row. Raises RowError if no usable id of fail_to_pass is left.

    Ids that data sets read from logs can hold terminal colours and end at the first blank. If that blank is within a
    parameter, the test has the same id as its neighbours and is left out.
    """
    prefix = "::" if report in _NAME_REPORTS else ""
    fail = tuple(sorted({prefix + _COLOUR.sub("", test).strip() for test in fail_to_pass}))
    keep = tuple(sorted({prefix + _COLOUR.sub("", test).strip() for test in pass_to_pass}.difference(fail)))
    unusable = {test for test in (*fail, *keep) if _is_broken(test, report)}
    usable = tuple(test for test in fail if test not in unusable)
    if not usable:
        fault = f"none of its {len(fail)} test ids can be in a report" if fail else "names no test"
        raise RowError("FAIL_TO_PASS", fault, "leave the row out")
    return ExpectedTests(usable, tuple(test for test in keep if test not in unusable), tuple(sorted(unusable)))


def _is_broken(test: str, report: str) -> bool:
    """Return whether no report can have the id."""
    if len(test.splitlines()) != 1 or not test.isprintable() or len(test) > 4096 or test != test.strip():
        return True
    if report == "pytest" and "[" in test.rpartition("::")[2] and not test.endswith("]"):
        return True
    kind = ReportFormat(report)
    return kind.names_tests and invalid_test_id_reason(test, kind) is not None


def are_pytest_ids(tests: Iterable[str]) -> bool:
    """Return whether all ids are valid for pytest."""
    return all(invalid_test_id_reason(test, ReportFormat.PYTEST) is None for test in tests)
