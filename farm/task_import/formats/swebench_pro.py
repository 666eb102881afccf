"""Rows of SWE-bench Pro, whose lists are Python literals and whose test scripts are not in the row."""

from farm.core.task import ReportFormat
from farm.core.test_frameworks import FRAMEWORKS
from farm.task_import.draft import Command, Commands, ImportDraft, are_pytest_ids, expected_tests
from farm.task_import.fields import Fields, RowError, parse_literal
from farm.task_import.test_commands import reporting_command

_COMMANDS_BY_LANGUAGE = {
    "python": Command("pytest -rA"),
    "go": Command(FRAMEWORKS[ReportFormat.GO].command, ReportFormat.GO),
}


def swebenchpro(row: Fields, commands: Commands) -> ImportDraft:
    """Return the draft of a row. The requirements and the new interfaces are part of the instruction."""
    id_ = row.word("instance_id")
    owner, name = row.repo("repo")
    fail, keep = row.strings("fail_to_pass", "FAIL_TO_PASS"), row.strings("pass_to_pass", "PASS_TO_PASS", default=())
    language = row.text("repo_language", default="", limit=64).lower()
    command = commands.of(f"{owner}/{name}") or _COMMANDS_BY_LANGUAGE.get(language)
    if command is None or (command.report == "pytest" and not are_pytest_ids(fail)):
        raise RowError(
            "repo_language",
            f"the scripts that run the tests of {owner}/{name} ({language or 'unknown'}) are not in the row",
            f'name the command: --test-command with --report, or ["{owner}/{name}"] in the file of --commands',
        )
    ids = expected_tests(fail, keep, command.report)
    tag = row.word("dockerhub_tag")
    parts = [("", "problem_statement"), ("Requirements", "requirements"), ("New interfaces", "interface")]
    texts = [(title, _unquote(row.text(key, default=""))) for title, key in parts]
    instruction = "\n\n".join(f"## {title}\n\n{text}" if title else text for title, text in texts if text.strip())
    if not instruction.strip():
        raise RowError("problem_statement", "is empty", "leave the row out")
    return ImportDraft(
        id=id_,
        image=f"jefzda/sweap-images:{tag}",
        workspace="/app",
        instruction=instruction,
        solution=row.patch("patch"),
        command=Command(reporting_command("--test-command", command.line, command.report), command.report),
        fail_to_pass=ids.fail_to_pass,
        pass_to_pass=ids.pass_to_pass,
        test_patch=row.patch("test_patch"),
        commit=row.commit("base_commit"),
        left_out=ids.left_out,
        facts={"repo": f"{owner}/{name}", "base_commit": row.commit("base_commit")},
    )


def _unquote(text: str) -> str:
    """Return the inner string of a text that is written as a string literal, else the text itself."""
    if len(text) > 1 and text.startswith('"') and text.endswith('"'):
        try:
            inner = parse_literal("", text)
        except RowError:
            return text
        return inner if isinstance(inner, str) else text
    return text
