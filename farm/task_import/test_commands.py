"""Convert test commands of data sets into commands that write a report."""

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
ACTIVATE_CONDA = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi; "
"""Activate the environment with the packages in images of SWE-bench and similar data sets, if it exists."""

REPORT_OPTIONS = ("--continue-on-collection-errors", "--junitxml={report}", "{files}")

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
    """Return a plain pytest command with its options, and with the farm's report and files instead of its own.

    None if it is anything else, for example several commands or a wrapper around pytest.
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
    options = _kept_options(words[start:])
    # The value of a variable is quoted; the name must not be.
    program = [_quoted_assignment(word) if _ASSIGNMENT.fullmatch(word) else shlex.quote(word) for word in words[:start]]
    quoted_options = [shlex.quote(option).replace("{", "").replace("}", "") for option in options]
    return prelude + " ".join([*program, *quoted_options, *REPORT_OPTIONS])


def reporting_command(key: str, command: str | Sequence[str], report: str, *, prelude: str = "") -> str:
    """Return the command of a task that writes a report. Raises RowError, about ``key``, if there is none."""
    line = command if isinstance(command, str) else " && ".join(command)
    if report == ReportFormat.PYTEST:
        result = pytest_line(line.strip(), prelude=prelude)
    else:
        result = _framework_command(line, ReportFormat(report))
        result = result and prelude + result
    if result is None:
        fault = f"{line[:200]!r} is not a plain {report} command, so it writes no report"
        raise RowError(key, fault, "name one with --test-command, with {report} and {files} in it")
    return result


def _framework_command(line: str, report: ReportFormat) -> str | None:
    """Return the framework's own command in place of the row's, with the crate features that the row chooses."""
    if "{report}" in line or report is ReportFormat.EXIT_CODE:
        return line
    program = _PROGRAMS.get(report)
    if program is None or not program.search(line):
        return None
    command = VITEST if "vitest" in line else FRAMEWORKS[report].command
    if report is ReportFormat.CARGO:
        return command.replace("{files}", " ".join([*_FEATURES.findall(line), "{files}"]))
    return command


def eval_script_command(script: str) -> Command | None:
    """Return the pytest command of a SWE-bench evaluation script with its exported variables, or None if it has none.

    The script is never run: the image has what it installs.
    """
    output = _TEST_OUTPUT.search(script)
    lines = [line.strip() for line in (output[1] if output else "").splitlines() if line.strip()]
    lines = [line for line in lines if not _STATUS.fullmatch(line)]
    exports = "".join(f"{line}; " for line in _EXPORT.findall(script))
    line = pytest_line(lines[0], prelude=ACTIVATE_CONDA + exports) if len(lines) == 1 else None
    return None if line is None else Command(line)


def _program_end(words: Sequence[str]) -> int | None:
    """Return the number of words before pytest's own arguments, or None if the command is not pytest."""
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


def _kept_options(words: Sequence[str]) -> list[str]:
    """Return the options without paths, without options that stop early, and without those that move the report."""
    options: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        name = word.partition("=")[0]
        index += 1
        if name in _DROPPED_WITH_VALUE:
            index += "=" not in word
        elif word in _TAKES_VALUE:
            value = words[index : index + 1]
            options += [word, *value] if value and value != ["no:junitxml"] else []
            index += 1
        elif word.startswith("-") and word not in _DROPPED and word != "--":
            options.append(word)
    return options


def _quoted_assignment(word: str) -> str:
    name, _, value = word.partition("=")
    return f"{name}={shlex.quote(value)}"
