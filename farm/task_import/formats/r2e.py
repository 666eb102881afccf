"""Rows of R2E-Gym: the tests with their results before and after, and the files of the commit that solves the task."""

import re
from collections.abc import Mapping

from farm.core.change import Change, ChangeKind, FileChange
from farm.grading.diff.patch import render_patch
from farm.task_import.draft import Command, Commands, ImportDraft, expected_tests
from farm.task_import.fields import Fields, RowError
from farm.task_import.test_commands import REPORT_OPTIONS, reporting_command
from farm.tasks.sdist.release_pair import is_test
from farm.tasks.unified_diff import UnifiedDiffError, parse_patch

TESTS_DIRECTORY = "r2e_tests"
TEST_COMMAND = (
    "py=.venv/bin/python; [ -x $py ] || py=python3; "
    "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' $py -W ignore -m pytest -rA " + " ".join(REPORT_OPTIONS)
)
_STDOUT = ("old_commit_res_stdout", "new_commit_res_stdout")
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
_SUMMARY = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S.*?)(?: - .*)?$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\\u001b\[\d+m")
_FILE = re.compile(r"(?:r2e_tests/)?([A-Za-z0-9_][A-Za-z0-9_./-]{0,200})")


def r2e(row: Fields, commands: Commands) -> ImportDraft:
    """Return the draft of a row. The tests decide as far as the row expects them to pass."""
    repo, commit = row.word("repo_name", "repo"), row.commit("commit_hash")
    results = Fields(row.mapping("execution_result_content"))
    tests = _hidden_tests(results)
    before, after = (_parse_outcomes(results.text(key, default="")) for key in _STDOUT)
    expected_names = {
        _short_name(name) for name, status in row.mapping("expected_output_json").items() if status == "PASSED"
    }
    passed = [
        test
        for test, status in after.items()
        if status == "PASSED" and _short_name(test.partition("::")[2]) in expected_names
    ]
    if not passed or not before:
        raise RowError(
            "execution_result_content", "does not say which tests passed before and after", "leave the row out"
        )
    user_command = commands.of(repo)
    command = (
        Command(TEST_COMMAND) if user_command is None else Command(reporting_command("", user_command.line, "pytest"))
    )
    ids = expected_tests(
        [test for test in passed if before.get(test) != "PASSED"],
        [test for test in passed if before.get(test) == "PASSED"],
        "pytest",
    )
    statement = row.text("problem_statement")
    inner = _ISSUE.search(statement)
    instruction = (inner[1] if inner else statement).strip()
    if not instruction:
        raise RowError("problem_statement", "is empty", "leave the row out")
    return ImportDraft(
        id=f"{repo}__{commit}"[:128],
        image=row.image("docker_image", "image_name"),
        workspace="/testbed",
        instruction=instruction,
        solution=_commit_patch(Fields(row.mapping("parsed_commit_content"))),
        command=command,
        fail_to_pass=ids.fail_to_pass,
        pass_to_pass=ids.pass_to_pass,
        tests=tests,
        removed=(
            *(f"/{name}" for name in (TESTS_DIRECTORY, "run_tests.sh", "expected_test_output.json")),
            *(f"/testbed/{name}" for name in (TESTS_DIRECTORY, "run_tests.sh", "expected_test_output.json")),
            *(f"/root/{name}" for name in (TESTS_DIRECTORY, "run_tests.sh", "expected_test_output.json")),
        ),
        left_out=ids.left_out,
        facts={"repo": repo, "commit": commit},
    )


def _hidden_tests(results: Fields) -> Mapping[str, bytes]:
    """Return the test files by path in the workspace."""
    names, codes = results.texts("test_file_names"), results.texts("test_file_codes")
    if len(names) != len(codes):
        raise RowError("test_file_codes", "has another length than test_file_names")
    tests: dict[str, bytes] = {f"{TESTS_DIRECTORY}/__init__.py": b""}
    for name, code in zip(names, codes, strict=True):
        match = _FILE.fullmatch(name)
        if match is None or any(part in ("", ".", "..") for part in match[1].split("/")):
            raise RowError("test_file_names", f"{name[:100]!r} is not a path")
        tests[f"{TESTS_DIRECTORY}/{match[1]}"] = code.encode()
    for path in tests:
        if inside := next((other for other in tests if other.startswith(f"{path}/")), None):
            raise RowError("test_file_names", f"{inside[:100]!r} is below {path[:100]!r}, which is a file")
    return tests


def _parse_outcomes(log: str) -> dict[str, str]:
    """Return the outcomes by test id from pytest's short summary, which is all that the row has of a run."""
    _, _, summary = _COLOUR.sub("", log).rpartition("short test summary info")
    outcomes = {}
    for match in _SUMMARY.finditer(summary):
        path, colons, name = match[2].partition("::")
        if colons:
            outcomes[f"{TESTS_DIRECTORY}/{path.removeprefix(f'{TESTS_DIRECTORY}/')}::{name}"] = match[1]
    return outcomes


def _short_name(name: str) -> str:
    """Return a test's name as in ``expected_output_json``: without its file, with dots between class and method."""
    return _COLOUR.sub("", name).split(" - ")[0].replace("::", ".")


def _commit_patch(commit: Fields) -> bytes:
    """Return the commit's files, without tests, as a patch."""
    old: dict[str, FileChange] = {}
    files: dict[str, FileChange] = {}
    for diff in map(Fields, commit.objects("file_diffs")):
        header = Fields(diff.mapping("header"))
        path = _checked_path(Fields(header.mapping("file")).text("path", limit=4096))
        index = Fields(diff.mapping("index_line", default={}))
        modes = header.text("misc_line", default=""), index.text("mode", default="")
        if any(mode.endswith(("120000", "160000")) for mode in modes):
            raise RowError("parsed_commit_content", f"{path} is a symlink or a submodule", "leave the row out")
        before, after = diff.text("old_file_content", default=""), diff.text("new_file_content", default="")
        side = Fields(diff.mapping("minus_file", default={})).text("path", default="/dev/null", limit=4096)
        old_path = path if side == "/dev/null" else _checked_path(side.removeprefix("a/"))
        if is_test(path) or (before == after and old_path == path):
            continue
        if old_path != path:
            files.setdefault(old_path, FileChange(old_path, ChangeKind.DELETE))
        if before:
            old[old_path] = FileChange(old_path, ChangeKind.WRITE, before.encode())
        kind = ChangeKind.WRITE if after else ChangeKind.DELETE
        files[path] = FileChange(path, kind, after.encode())
    patch = render_patch(Change(tuple(files[path] for path in sorted(files))), old.get).encode()
    if not patch:
        raise RowError("parsed_commit_content", "changes only tests", "leave the row out")
    return patch


def _checked_path(name: str) -> str:
    """Return ``name``. Raises RowError unless it is a path in the repository."""
    try:
        (patch,) = parse_patch(f"--- /dev/null\n+++ b/{name}\n".encode())
    except (UnifiedDiffError, ValueError):
        raise RowError("parsed_commit_content", f"{name[:100]!r} is not a path in the repository") from None
    if patch.new is None or patch.new != name:
        raise RowError("parsed_commit_content", f"{name[:100]!r} is not a path in the repository")
    return name
