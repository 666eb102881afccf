"""Test commands as data sets write them, made into commands that leave a report."""

import re
import shlex
from collections.abc import Sequence

from farm.core.task import ReportFormat
from farm.core.test_frameworks import FRAMEWORKS
from farm.task_import.draft import Command
from farm.task_import.fields import RowError

VITEST = "npx --no-install vitest run --reporter=json --outputFile={report} {files}"
_PROGRAMS = {
    ReportFormat.GO: re.compile(r"\bgo test\b"),
    ReportFormat.CARGO: re.compile(r"\bcargo test\b"),
    ReportFormat.JEST: re.compile(r"\b(jest|vitest)\b"),
    ReportFormat.UNITTEST: re.compile(r"\bpython[0-9.]* -m unittest\b"),
}
_FEATURES = re.compile(r"--all-features\b|--no-default-features\b|--workspace\b|--all\b|--features[ =][\w,/-]+")
CONDA = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi; "
"""Images of SWE-bench and its kin have their packages in this environment."""

REPORTED = ("--continue-on-collection-errors", "--junitxml={report}", "{files}")

_SHELL = frozenset(";|&<>`$\n\r\\")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_PROGRAM = re.compile(r"(?:\S*/)?(?:pytest|py\.test)")
_PYTHON = re.compile(r"(?:\S*/)?python[0-9.]*")
_TAKES_VALUE = frozenset(
    {
        *("-p", "-o", "-W", "-c", "-k", "-m", "-r", "--tb", "--rootdir", "--confcutdir", "--basetemp", "--import-mode"),
        *("--color", "--timeout", "--ds", "--durations", "--override-ini", "--deselect", "--ignore", "--asyncio-mode"),
    }
)
_DROPPED = frozenset({"-x", "--exitfirst", "--lf", "--ff", "--last-failed", "--failed-first", "--collect-only", "--co"})
_DROPPED_WITH_VALUE = frozenset({"-n", "--numprocesses", "--dist", "--maxfail", "--junitxml", "--junit-xml"})
_TEST_OUTPUT = re.compile(r"^: '>>>>> Start Test Output'$(.*?)^: '>>>>> End Test Output'$", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export [A-Za-z_][A-Za-z0-9_]*=[\w./:@%+=,-]*$", re.MULTILINE)
_STATUS = re.compile(r"^[A-Z_]+=\$\?$")


def pytest_line(command: str, *, prelude: str = "") -> str | None:
    """A plain pytest command with its options, and the farm's report and files in place of its own.

    None for what is no plain pytest command: one that is more than one command, say, or a runner around it.
    """
    if "{report}" in command and "{files}" in command:
        return prelude + command
    if _SHELL.intersection(command) or len(command) > 4096:
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    start = _program_end(words)
    if start is None:
        return None
    options = _options(words[start:])
    # A variable's value is quoted, its name must not be.
    program = [_assigned(word) if _ASSIGNMENT.fullmatch(word) else shlex.quote(word) for word in words[:start]]
    kept = [shlex.quote(option).replace("{", "").replace("}", "") for option in options]
    return prelude + " ".join([*program, *kept, *REPORTED])


def command_of(key: str, command: str | Sequence[str], report: str, *, prelude: str = "") -> str:
    """The command of a task. Raises RowError for one that leaves no report that the farm could read."""
    line = command if isinstance(command, str) else " && ".join(command)
    if report == ReportFormat.PYTEST:
        made = pytest_line(line.strip(), prelude=prelude)
    else:
        made = _reporting(line, ReportFormat(report))
        made = made and prelude + made
    if made is None:
        what = f"{line[:200]!r} is no plain {report} command, and leaves no report"
        raise RowError(key, what, "name one with --test-command, with {report} and {files} in it")
    return made


def _reporting(line: str, report: ReportFormat) -> str | None:
    """The framework's own command in place of the row's, with what chooses features of a crate."""
    if "{report}" in line or report is ReportFormat.EXIT_CODE:
        return line
    program = _PROGRAMS.get(report)
    if program is None or not program.search(line):
        return None
    command = VITEST if "vitest" in line else FRAMEWORKS[report].command
    if report is ReportFormat.CARGO:
        return command.replace("{files}", " ".join([*_FEATURES.findall(line), "{files}"]))
    return command


def from_eval_script(script: str) -> Command | None:
    """The pytest command of an evaluation script of SWE-bench, with the variables it exports; None where it has none.

    The script is read, never run: what it installs is in the image.
    """
    found = _TEST_OUTPUT.search(script)
    lines = [line.strip() for line in (found[1] if found else "").splitlines() if line.strip()]
    lines = [line for line in lines if not _STATUS.fullmatch(line)]
    exports = "".join(f"{line}; " for line in _EXPORT.findall(script))
    made = pytest_line(lines[0], prelude=CONDA + exports) if len(lines) == 1 else None
    return None if made is None else Command(made)


def _program_end(words: Sequence[str]) -> int | None:
    """How many words come before pytest's own."""
    index = 0
    while index < len(words) and _ASSIGNMENT.fullmatch(words[index]):
        index += 1
    if index < len(words) and _PROGRAM.fullmatch(words[index]):
        return index + 1
    if index < len(words) and _PYTHON.fullmatch(words[index]):
        index += 1
        while index < len(words) and words[index].startswith("-") and words[index] != "-m":
            index += 2 if words[index] in ("-W", "-X") else 1
        if words[index : index + 2] in (["-m", "pytest"], ["-m", "py.test"]):
            return index + 2
    return None


def _options(words: Sequence[str]) -> list[str]:
    """Without paths, without what stops early, and without what would write the report elsewhere."""
    kept: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        name = word.partition("=")[0]
        index += 1
        if name in _DROPPED_WITH_VALUE:
            index += "=" not in word
        elif word in _TAKES_VALUE:
            value = words[index : index + 1]
            kept += [word, *value] if value and value != ["no:junitxml"] else []
            index += 1
        elif word.startswith("-") and word not in _DROPPED and word != "--":
            kept.append(word)
    return kept


def _assigned(word: str) -> str:
    name, _, value = word.partition("=")
    return f"{name}={shlex.quote(value)}"
