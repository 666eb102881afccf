"""What an importer makes of a row: all that a task directory is written from."""

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
_BY_NAME = (ReportFormat.GO, ReportFormat.CARGO, ReportFormat.TAP)
"""Whose tests data sets tell by their names alone."""
REPORTS = [report.value for report in ReportFormat if report is not ReportFormat.REWARD_FILE]


@dataclass(frozen=True, slots=True)
class Command:
    """``line`` is the test command as the project writes it, or one with the farm's placeholders."""

    line: str
    report: str = "pytest"


@dataclass(frozen=True, slots=True)
class ImportDraft:
    """One task. Patches are unified diffs of the workspace.

    ``solution`` solves the task, ``reverse_solution`` says that its reverse does; ``bug`` is applied in the build.
    ``test_patch`` and ``tests``, whole files by path in the workspace, are for grading alone. ``commit`` is checked out
    in the build. ``removed``: absolute paths in the image that hold the answer or the tests. ``left_out``: expected ids
    that no report can have. ``facts`` go into ``[metadata]``.
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


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str
    report: str = "pytest"


@dataclass(frozen=True, slots=True)
class Commands:
    """The test commands that the user names: for all rows, or by ``owner/name`` and ``owner/name@version``."""

    everywhere: Command | None = None
    by_repo: Mapping[str, Command] = field(default_factory=dict)

    def of(self, repo: str, version: str = "") -> Command | None:
        return self.by_repo.get(f"{repo}@{version}") or self.by_repo.get(repo) or self.everywhere


def read_commands(path: Path | None, command: str | None, report: str | None) -> Commands:
    """Raises TaskError for a file that cannot be read, and for a report that there is none of."""
    everywhere = None if command is None else _checked("--report", Command(command, report or "pytest"))
    if path is None:
        return Commands(everywhere)
    remedy = 'write ["owner/name"], then command = "…" and report = "…" below it'
    try:
        document = read_toml(path.read_bytes())
        lines = {name: _Line.model_validate(table) for name, table in document.items()}
    except OSError as error:
        raise TaskError(path, error.strerror or str(error), "name a readable file") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise TaskError(path, f"{key}: {first['msg']}", remedy) from None
    except ValueError as error:
        raise TaskError(path, f"not TOML: {error}", remedy) from None
    return Commands(
        everywhere, {name: _checked(path, Command(line.command, line.report)) for name, line in lines.items()}
    )


def _checked(origin: Path | str, command: Command) -> Command:
    if command.report not in REPORTS:
        raise TaskError(origin, f"{command.report!r} is no report", f"choose one of {', '.join(REPORTS)}")
    return command


@dataclass(frozen=True, slots=True)
class Expected:
    """The ids that decide, and those of the row that no report can have."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    left_out: tuple[str, ...]


def expected(fail_to_pass: Iterable[str], pass_to_pass: Iterable[str], report: str) -> Expected:
    """Raises RowError where nothing is left to be mended.

    The ids that data sets have from logs hold a terminal's colours, and end at the first blank; where that is within a
    parameter the test cannot be told from its neighbours.
    """
    holder = "::" if report in _BY_NAME else ""
    fail = tuple(sorted({holder + _COLOUR.sub("", test).strip() for test in fail_to_pass}))
    keep = tuple(sorted({holder + _COLOUR.sub("", test).strip() for test in pass_to_pass}.difference(fail)))
    bad = {test for test in (*fail, *keep) if _is_broken(test, report)}
    mended = tuple(test for test in fail if test not in bad)
    if not mended:
        what = f"none of its {len(fail)} tests can be told from a report" if fail else "no test is to be mended"
        raise RowError("FAIL_TO_PASS", what, "leave the row out")
    return Expected(mended, tuple(test for test in keep if test not in bad), tuple(sorted(bad)))


def _is_broken(test: str, report: str) -> bool:
    if len(test.splitlines()) != 1 or not test.isprintable() or len(test) > 4096 or test != test.strip():
        return True
    if report == "pytest" and "[" in test.rpartition("::")[2] and not test.endswith("]"):
        return True
    kind = ReportFormat(report)
    return kind.names_tests and invalid_test_id_reason(test, kind) is not None


def are_pytest_ids(tests: Iterable[str]) -> bool:
    return all(invalid_test_id_reason(test, ReportFormat.PYTEST) is None for test in tests)
