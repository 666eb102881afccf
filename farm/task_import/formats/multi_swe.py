"""Rows of Multi-SWE-bench, whose images hold both the solution and the tests as patches."""

from collections.abc import Sequence

from farm.core.task import ReportFormat
from farm.core.test_frameworks import FRAMEWORKS
from farm.task_import.draft import Command, Commands, ImportDraft, expected_tests
from farm.task_import.fields import Fields, RowError, checked_image, list_of_columns
from farm.task_import.test_commands import reporting_command
from farm.tasks.unified_diff import parse_patch

_COMMANDS_BY_SUFFIX = {
    ".go": Command(FRAMEWORKS[ReportFormat.GO].command, ReportFormat.GO),
    ".rs": Command(FRAMEWORKS[ReportFormat.CARGO].command, ReportFormat.CARGO),
}


def multiswe(row: Fields, commands: Commands) -> ImportDraft:
    """Return the draft of a row. Tests that pass with the fix and not without it are fail_to_pass."""
    org, name = row.word("org"), row.word("repo")
    number = row.word("number")
    test_patch = row.patch("test_patch")
    command = commands.of(f"{org}/{name}") or _default_command(test_patch, f"{org}/{name}")
    fail = [test for key in ("f2p_tests", "s2p_tests", "n2p_tests") for test in _test_names(row, key)]
    fail = fail or _test_names(row, "fixed_tests")
    ids = expected_tests(fail, _test_names(row, "p2p_tests"), command.report)
    issues = [Fields(issue) for issue in row.objects("resolved_issues")]
    texts = [f"# {issue.text('title', default='')}\n\n{issue.text('body', default='')}".strip() for issue in issues]
    instruction = "\n\n".join(texts) or "\n\n".join((row.text("title", default=""), row.text("body", default="")))
    if not instruction.strip(" #\n"):
        raise RowError("resolved_issues", "has no text", "leave the row out")
    base = Fields(row.mapping("base"))
    return ImportDraft(
        id=f"{org}__{name}-{number}"[:128],
        image=checked_image("org", f"mswebench/{org}_m_{name}:pr-{number}".lower()),
        workspace=f"/home/{name}",
        instruction=instruction,
        solution=row.patch("fix_patch"),
        command=Command(reporting_command("--test-command", command.line, command.report), command.report),
        fail_to_pass=ids.fail_to_pass,
        pass_to_pass=ids.pass_to_pass,
        test_patch=test_patch,
        commit=base.commit("sha"),
        removed=("/home/fix.patch", "/home/test.patch", "/home/fix-run.sh", "/home/test-run.sh"),
        left_out=ids.left_out,
        facts={"repo": f"{org}/{name}", "base_commit": base.commit("sha")},
    )


def _test_names(row: Fields, key: str) -> list[str]:
    """Return the tests of ``{name: {run, test, fix}}``.

    Columnar copies have ``{name: [...], run: [...], ...}`` instead, or in each row the tests of all rows, with null for
    those of other rows.
    """
    value = row.mapping(key, default={})
    columns = list_of_columns(value)
    if isinstance(columns, list) and "name" in value:
        return list(Fields({key: value["name"]}).strings(key))
    tests = {name: outcomes for name, outcomes in value.items() if outcomes is not None}
    if not all(isinstance(outcomes, dict) for outcomes in tests.values()):
        raise RowError(
            key, "holds no outcomes (run, test and fix) by the tests' names", "check that the row has this format"
        )
    return list(tests)


def _default_command(test_patch: bytes, repo: str) -> Command:
    """Return the test command by the file suffix in the test patch. Raises RowError if no suffix is supported."""
    paths: Sequence[str] = [patch.new for patch in parse_patch(test_patch) if patch.new]
    for suffix, command in _COMMANDS_BY_SUFFIX.items():
        if any(path.endswith(suffix) for path in paths):
            return command
    raise RowError(
        "test_patch",
        f"the row has no command for the tests of {repo}; only its image has one",
        f'name the command: --test-command with --report, or ["{repo}"] in the file of --commands',
    )
