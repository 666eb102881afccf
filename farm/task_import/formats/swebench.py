"""Rows of SWE-bench 4.x and 5.x, and of the data sets with its columns: SWE-Gym, SWE-smith, SWE-rebench and its V2.

A row of 4.x has no test command, because the tables of its harness have it. A row of 5.x has its evaluation script and
its image.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote

from farm.task_import.draft import Command, Commands, ImportDraft, are_pytest_ids, expected_tests
from farm.task_import.fields import Fields, RowError, checked_image
from farm.task_import.test_commands import ACTIVATE_CONDA, eval_script_command, pytest_line, reporting_command
from farm.task_import.test_runners import DJANGO, DJANGO_COMMAND, SYMPY, SYMPY_CLASS, SYMPY_COMMAND
from farm.tasks.unified_diff import parse_patch

TESTBED = "/testbed"
_UNITTEST = re.compile(r"(\w+) \(([\w.]+)\)")
_FILE = re.compile(r"[^\s:()]+\.(?!py::)\w+::")
_FAIL = ("FAIL_TO_PASS", "fail_to_pass")
_PASS = ("PASS_TO_PASS", "pass_to_pass")
_IMAGES = ("image_name", "docker_image", "image")
_PARSERS = {
    "pytest": "pytest",
    "gotest": "go",
    "go_test": "go",
    "cargo": "cargo",
    "jest": "jest",
    "vitest": "jest",
    "maven": "junit",
    "gradle": "junit",
    "phpunit": "junit",
    "junit": "junit",
    "tap": "tap",
    "unittest": "unittest",
    "django": "unittest",
}
"""Words in the names of log parsers, with the report that the same framework can write."""


@dataclass(frozen=True, slots=True)
class _Tests:
    """The tests of a row: the command, the test ids, and the files that the command needs in the workspace."""

    command: Command
    fail_to_pass: Sequence[str]
    pass_to_pass: Sequence[str]
    files: Mapping[str, bytes] = field(default_factory=dict)


def swebench(row: Fields, commands: Commands) -> ImportDraft:
    """Return the draft of a row of SWE-bench.

    The default image has the namespace of the harness, which writes ``_1776_`` for two underscores because such a name
    cannot be pushed.
    """
    id_ = row.word("instance_id")
    default_image = f"swebench/sweb.eval.x86_64.{id_.lower().replace('__', '_1776_')}:latest"
    return _draft(row, id_, image=_image_of_row(row, default_image), tests=_tests_of_row(row, commands))


def swegym(row: Fields, commands: Commands) -> ImportDraft:
    """Return the draft of a row of SWE-Gym."""
    id_ = row.word("instance_id")
    default_image = f"xingyaoww/sweb.eval.x86_64.{id_.lower().replace('__', '_s_')}:latest"
    return _draft(row, id_, image=_image_of_row(row, default_image), tests=_tests_of_row(row, commands))


def swesmith(row: Fields, commands: Commands) -> ImportDraft:
    """Return the draft of a row of SWE-smith, whose image holds the fixed repository and whose patch is the bug."""
    id_ = row.word("instance_id")
    bug = row.patch("patch")
    tests_of_row = _tests_of_row(row, commands)
    ids = expected_tests(tests_of_row.fail_to_pass, tests_of_row.pass_to_pass, tests_of_row.command.report)
    mirror = id_.rsplit(".", 1)[0]
    image_name = row.text(*_IMAGES, default=f"jyangballin/swesmith.x86_64.{mirror.lower()}").replace("__", "_1776_")
    owner_known = "/" in image_name
    image = checked_image("image_name", image_name if owner_known else f"jyangballin/{image_name}")
    return ImportDraft(
        id=id_,
        image=_tagged(image),
        workspace=TESTBED,
        instruction=_checked_instruction(row.text("problem_statement", default=""), id_),
        solution=bug,
        reverse_solution=True,
        bug=bug,
        command=tests_of_row.command,
        tests=tests_of_row.files,
        fail_to_pass=ids.fail_to_pass,
        pass_to_pass=ids.pass_to_pass,
        left_out=ids.left_out,
        facts={"source": "swesmith", "repo": row.text("repo", default=mirror, limit=1024)},
    )


def rebench(row: Fields, commands: Commands) -> ImportDraft:
    """Return the draft of a row of SWE-rebench or its V2.

    The row has its image and, in ``install_config``, its test command.
    """
    id_ = row.word("instance_id")
    _, name = row.repo("repo")
    config = Fields(row.mapping("install_config"))
    conda = "swerebench/" in row.text(*_IMAGES, limit=1024)  # images of the first version are like SWE-bench's
    report = report_of_parser(config.text("log_parser", default="pytest", limit=1024))
    user_command = commands.of("/".join(row.repo("repo")), row.text("version", default="", limit=256))
    if user_command is not None:
        line, report = user_command.line, user_command.report
    else:
        line = " && ".join(_one_or_more(config, "test_cmd"))
    line_with_report = reporting_command(
        "install_config.test_cmd", line, report, prelude=ACTIVATE_CONDA if conda else ""
    )
    tests = _Tests(Command(line_with_report, report), row.strings(*_FAIL), row.strings(*_PASS, default=()))
    draft = _draft(row, id_, image=row.image(*_IMAGES), tests=tests)
    return draft if conda else replace(draft, workspace=f"/{name}", commit=row.commit("base_commit"))


def report_of_parser(name: str) -> str:
    """Return the report that replaces a log parser. Raises RowError if there is none."""
    reports = [report for word, report in _PARSERS.items() if word in name.lower()]
    if not reports:
        raise RowError(
            "install_config.log_parser",
            f"no report replaces what {name[:100]!r} reads",
            "name --test-command and --report",
        )
    return reports[0]


def _draft(row: Fields, id_: str, *, image: str, tests: _Tests) -> ImportDraft:
    ids = expected_tests(tests.fail_to_pass, tests.pass_to_pass, tests.command.report)
    return ImportDraft(
        id=id_,
        image=_tagged(image),
        workspace=TESTBED,
        instruction=_checked_instruction(row.text("problem_statement"), id_),
        solution=row.patch("patch"),
        command=tests.command,
        fail_to_pass=ids.fail_to_pass,
        pass_to_pass=ids.pass_to_pass,
        test_patch=row.patch("test_patch"),
        tests=tests.files,
        left_out=ids.left_out,
        facts={
            "repo": row.text("repo", default="", limit=1024),
            "base_commit": row.text("base_commit", default="", limit=1024),
        },
    )


def _tests_of_row(row: Fields, commands: Commands) -> _Tests:
    """Return how to run the tests: by the user's command, by the row's script, or by the kind of its test ids.

    Raises RowError if none of these gives a command that writes a report.
    """
    repo, version = row.text("repo", default="", limit=1024), row.text("version", default="", limit=256)
    fail, keep = row.strings(*_FAIL), row.strings(*_PASS, default=())
    user_command = commands.of(repo, version)
    if user_command is not None:
        line = reporting_command("--test-command", user_command.line, user_command.report, prelude=ACTIVATE_CONDA)
        return _Tests(Command(line, user_command.report), fail, keep)
    if are_pytest_ids(fail):  # other ids of pass_to_pass are left out and reported
        script_command = eval_script_command(row.text("eval_script", default=""))
        return _Tests(script_command or Command(pytest_line("pytest -rA", prelude=ACTIVATE_CONDA) or ""), fail, keep)
    if repo == "django/django":
        line = f"{ACTIVATE_CONDA}{DJANGO_COMMAND} {' '.join(_django_labels(row))}"
        return _Tests(Command(line, "junit"), [*map(_django_id, fail)], [*map(_django_id, keep)], DJANGO)
    if repo == "sympy/sympy":
        line = f"{ACTIVATE_CONDA}{SYMPY_COMMAND} {' '.join(map(quote, _patched_tests(row)))}"
        ids = [[f"{SYMPY_CLASS}::{test}" for test in tests] for tests in (fail, keep)]
        return _Tests(Command(line, "junit"), ids[0], ids[1], SYMPY)
    example = next(test for test in fail if not are_pytest_ids([test]))
    if _FILE.match(example):
        fault = f"{example[:100]!r} is in a file that is not a Python module, where pytest ids do not name tests"
        raise RowError("FAIL_TO_PASS", fault, "leave the row out, or name --test-command with another --report")
    pinned_repo = f"{repo}@{version}" if version else repo
    raise RowError(
        "FAIL_TO_PASS",
        f"{example[:100]!r} is not a pytest id, and {pinned_repo or 'the row'} has a test runner of its own",
        f'name the command: --test-command with --report, or ["{pinned_repo}"] in the file of --commands',
    )


def _django_id(test: str) -> str:
    """Return ``pkg.tests.ClassTest::test_a`` for ``test_a (pkg.tests.ClassTest)``. A docstring is returned as it is."""
    match = _UNITTEST.fullmatch(test)
    return f"{match[2].removesuffix(f'.{match[1]}')}::{match[1]}" if match else test


def _django_labels(row: Fields) -> Sequence[str]:
    """Return the test modules that the patch touches, as Django's runner names them."""
    modules = (path.removeprefix("tests/").removesuffix(".py") for path in _patched_tests(row))
    labels = dict.fromkeys(module.replace("/", ".") for module in modules)
    return [label for label in labels if all(part.isidentifier() for part in label.split("."))]


def _patched_tests(row: Fields) -> Sequence[str]:
    paths = (patch.new for patch in parse_patch(row.patch("test_patch")))
    return [path for path in paths if path and path.endswith(".py")]


def _image_of_row(row: Fields, default: str) -> str:
    return checked_image(_IMAGES[0], row.text(*_IMAGES, default=default, limit=1024))


def _tagged(image: str) -> str:
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"


def _one_or_more(fields: Fields, key: str) -> tuple[str, ...]:
    try:
        return (fields.text(key),)
    except RowError:
        return fields.texts(key)


def _checked_instruction(text: str, id_: str) -> str:
    if not text.strip():
        raise RowError("problem_statement", f"{id_} has no text", "leave the row out")
    return text
