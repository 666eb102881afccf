"""Rows of SWE-bench, 4.x and 5.x, and of what shares its columns: SWE-Gym, SWE-smith, SWE-rebench and its V2.

A row of 4.x leaves the test command to tables of its harness; one of 5.x brings its evaluation script and its image.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote

from farm.task_import.draft import Command, Commands, ImportDraft, are_pytest_ids, expected
from farm.task_import.fields import Fields, RowError, checked_image
from farm.task_import.test_commands import CONDA, command_of, from_eval_script, pytest_line
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
"""Words in the names of log parsers, and the report that the same framework can write."""


@dataclass(frozen=True, slots=True)
class _Tests:
    """How the tests of a row are run: the command, the files that it needs in the workspace, and the ids."""

    command: Command
    fail_to_pass: Sequence[str]
    pass_to_pass: Sequence[str]
    files: Mapping[str, bytes] = field(default_factory=dict)


def swebench(row: Fields, commands: Commands) -> ImportDraft:
    id_ = row.word("instance_id")
    # The default namespace of the harness; a name with two underscores cannot be pushed.
    named = f"swebench/sweb.eval.x86_64.{id_.lower().replace('__', '_1776_')}:latest"
    return _issue(row, id_, image=_image(row, named), tests=_by_ids(row, commands))


def swegym(row: Fields, commands: Commands) -> ImportDraft:
    id_ = row.word("instance_id")
    named = f"xingyaoww/sweb.eval.x86_64.{id_.lower().replace('__', '_s_')}:latest"
    return _issue(row, id_, image=_image(row, named), tests=_by_ids(row, commands))


def swesmith(row: Fields, commands: Commands) -> ImportDraft:
    """Offline: the image holds the repository without the bug, and the row's patch is the bug."""
    id_ = row.word("instance_id")
    bug = row.patch("patch")
    run = _by_ids(row, commands)
    tests = expected(run.fail_to_pass, run.pass_to_pass, run.command.report)
    mirror = id_.rsplit(".", 1)[0]
    named = row.text(*_IMAGES, default=f"jyangballin/swesmith.x86_64.{mirror.lower()}").replace("__", "_1776_")
    owner_known = "/" in named
    image = checked_image("image_name", named if owner_known else f"jyangballin/{named}")
    return ImportDraft(
        id=id_,
        image=_tagged(image),
        workspace=TESTBED,
        instruction=_stated(row.text("problem_statement", default=""), id_),
        solution=bug,
        reverse_solution=True,
        bug=bug,
        command=run.command,
        tests=run.files,
        fail_to_pass=tests.fail_to_pass,
        pass_to_pass=tests.pass_to_pass,
        left_out=tests.left_out,
        facts={"source": "swesmith", "repo": row.text("repo", default=mirror, limit=1024)},
    )


def rebench(row: Fields, commands: Commands) -> ImportDraft:
    """SWE-rebench and its V2: the row brings its image and, in ``install_config``, its test command."""
    id_ = row.word("instance_id")
    _, name = row.repo("repo")
    config = Fields(row.mapping("install_config"))
    conda = "swerebench/" in row.text(*_IMAGES, limit=1024)  # the first version's images are those of SWE-bench's kind
    report = report_of_parser(config.text("log_parser", default="pytest", limit=1024))
    chosen = commands.of("/".join(row.repo("repo")), row.text("version", default="", limit=256))
    if chosen is not None:
        line, report = chosen.line, chosen.report
    else:
        line = " && ".join(_one_or_more(config, "test_cmd"))
    made = command_of("install_config.test_cmd", line, report, prelude=CONDA if conda else "")
    tests = _Tests(Command(made, report), row.strings(*_FAIL), row.strings(*_PASS, default=()))
    draft = _issue(row, id_, image=row.image(*_IMAGES), tests=tests)
    return draft if conda else replace(draft, workspace=f"/{name}", commit=row.commit("base_commit"))


def report_of_parser(name: str) -> str:
    found = [report for word, report in _PARSERS.items() if word in name.lower()]
    if not found:
        raise RowError(
            "install_config.log_parser",
            f"what {name[:100]!r} reads no report replaces",
            "name --test-command and --report",
        )
    return found[0]


def _issue(row: Fields, id_: str, *, image: str, tests: _Tests) -> ImportDraft:
    ids = expected(tests.fail_to_pass, tests.pass_to_pass, tests.command.report)
    return ImportDraft(
        id=id_,
        image=_tagged(image),
        workspace=TESTBED,
        instruction=_stated(row.text("problem_statement"), id_),
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


def _by_ids(row: Fields, commands: Commands) -> _Tests:
    """What the user names, what the row's script runs, or what its ids tell."""
    repo, version = row.text("repo", default="", limit=1024), row.text("version", default="", limit=256)
    fail, keep = row.strings(*_FAIL), row.strings(*_PASS, default=())
    chosen = commands.of(repo, version)
    if chosen is not None:
        line = command_of("--test-command", chosen.line, chosen.report, prelude=CONDA)
        return _Tests(Command(line, chosen.report), fail, keep)
    if are_pytest_ids(fail):  # what else there is to keep is left out, and told
        scripted = from_eval_script(row.text("eval_script", default=""))
        return _Tests(scripted or Command(pytest_line("pytest -rA", prelude=CONDA) or ""), fail, keep)
    if repo == "django/django":
        line = f"{CONDA}{DJANGO_COMMAND} {' '.join(_django_labels(row))}"
        return _Tests(Command(line, "junit"), [*map(_django_id, fail)], [*map(_django_id, keep)], DJANGO)
    if repo == "sympy/sympy":
        line = f"{CONDA}{SYMPY_COMMAND} {' '.join(map(quote, _patched_tests(row)))}"
        named = [[f"{SYMPY_CLASS}::{test}" for test in tests] for tests in (fail, keep)]
        return _Tests(Command(line, "junit"), named[0], named[1], SYMPY)
    example = next(test for test in fail if not are_pytest_ids([test]))
    if _FILE.match(example):
        what = f"{example[:100]!r} is a test to mend in a file that is no Python module, where none can be told"
        raise RowError("FAIL_TO_PASS", what, "leave the row out, or name --test-command with another --report")
    where = f"{repo}@{version}" if version else repo
    raise RowError(
        "FAIL_TO_PASS",
        f"{example[:100]!r} is no pytest id, and the tests of {where or 'the row'} are run by a tool of their own",
        f'name the command: --test-command with --report, or ["{where}"] in the file of --commands',
    )


def _django_id(test: str) -> str:
    """``pkg.tests.ClassTest::test_a`` of ``test_a (pkg.tests.ClassTest)``; a docstring stays what it is, and no id."""
    match = _UNITTEST.fullmatch(test)
    return f"{match[2].removesuffix(f'.{match[1]}')}::{match[1]}" if match else test


def _django_labels(row: Fields) -> Sequence[str]:
    """The test modules that the patch touches, as Django's runner names them."""
    modules = (path.removeprefix("tests/").removesuffix(".py") for path in _patched_tests(row))
    labels = dict.fromkeys(module.replace("/", ".") for module in modules)
    return [label for label in labels if all(part.isidentifier() for part in label.split("."))]


def _patched_tests(row: Fields) -> Sequence[str]:
    paths = (patch.new for patch in parse_patch(row.patch("test_patch")))
    return [path for path in paths if path and path.endswith(".py")]


def _image(row: Fields, default: str) -> str:
    return checked_image(_IMAGES[0], row.text(*_IMAGES, default=default, limit=1024))


def _tagged(image: str) -> str:
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"


def _one_or_more(fields: Fields, key: str) -> tuple[str, ...]:
    try:
        return (fields.text(key),)
    except RowError:
        return fields.texts(key)


def _stated(text: str, id_: str) -> str:
    if not text.strip():
        raise RowError("problem_statement", f"{id_} says nothing of what is wanted", "leave the row out")
    return text
