"""Rows with columns of their own: R2E-Gym, Multi-SWE-bench and SWE-bench Pro."""

import re
from collections.abc import Mapping, Sequence

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import ReportFormat
from farm.core.test_frameworks import FRAMEWORKS
from farm.grading.diff.patch import render_patch
from farm.task_import.draft import Command, Commands, ImportDraft, are_pytest_ids, expected
from farm.task_import.fields import Fields, RowError, checked_image, literal, out_of_columns
from farm.task_import.test_commands import REPORTED, command_of
from farm.tasks.sdist.release_pair import is_test
from farm.tasks.unified_diff import UnifiedDiffError, parse_patch

R2E_TESTS = "r2e_tests"
R2E_COMMAND = (
    "py=.venv/bin/python; [ -x $py ] || py=python3; "
    "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' $py -W ignore -m pytest -rA " + " ".join(REPORTED)
)
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
_SUMMARY = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S.*?)(?: - .*)?$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\\u001b\[\d+m")
_FILE = re.compile(r"(?:r2e_tests/)?([A-Za-z0-9_][A-Za-z0-9_./-]{0,200})")

_GO = Command(FRAMEWORKS[ReportFormat.GO].command, ReportFormat.GO)
_SUFFIXES = {".go": _GO, ".rs": Command(FRAMEWORKS[ReportFormat.CARGO].command, ReportFormat.CARGO)}
_PRO_LINES = {"python": Command("pytest -rA"), "go": _GO}


def r2e(row: Fields, commands: Commands) -> ImportDraft:
    """R2E-Gym: the tests come with the results of both commits; the gold patch is made of the commit's own files.

    What its harness compares whole, tests that must go on failing included, counts here as far as it must pass.
    """
    repo, commit = row.word("repo_name", "repo"), row.commit("commit_hash")
    results = Fields(row.mapping("execution_result_content"))
    tests = _hidden_tests(results)
    before, after = (_outcomes(results.text(key, default="")) for key in _STDOUT)
    wanted = {_bare(name) for name, status in row.mapping("expected_output_json").items() if status == "PASSED"}
    passed = [test for test, status in after.items() if status == "PASSED" and _bare(test.partition("::")[2]) in wanted]
    if not passed or not before:
        raise RowError(
            "execution_result_content", "does not say which tests passed before and after", "leave the row out"
        )
    chosen = commands.of(repo)
    command = Command(R2E_COMMAND) if chosen is None else Command(command_of("", chosen.line, "pytest"))
    ids = expected(
        [test for test in passed if before.get(test) != "PASSED"],
        [test for test in passed if before.get(test) == "PASSED"],
        "pytest",
    )
    statement = row.text("problem_statement")
    inner = _ISSUE.search(statement)
    instruction = (inner[1] if inner else statement).strip()
    if not instruction:
        raise RowError("problem_statement", "says nothing of what is wanted", "leave the row out")
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
            *(f"/{name}" for name in (R2E_TESTS, "run_tests.sh", "expected_test_output.json")),
            *(f"/testbed/{name}" for name in (R2E_TESTS, "run_tests.sh", "expected_test_output.json")),
            *(f"/root/{name}" for name in (R2E_TESTS, "run_tests.sh", "expected_test_output.json")),
        ),
        left_out=ids.left_out,
        facts={"repo": repo, "commit": commit},
    )


_STDOUT = ("old_commit_res_stdout", "new_commit_res_stdout")


def multiswe(row: Fields, commands: Commands) -> ImportDraft:
    """Multi-SWE-bench: tests to mend are those that pass with the fix and not without; its images hold both patches."""
    org, name = row.word("org"), row.word("repo")
    number = row.word("number")
    test_patch = row.patch("test_patch")
    line = commands.of(f"{org}/{name}") or _command_of_suffix(test_patch, f"{org}/{name}")
    fail = [test for key in ("f2p_tests", "s2p_tests", "n2p_tests") for test in _outcomes_by_name(row, key)]
    fail = fail or _outcomes_by_name(row, "fixed_tests")
    ids = expected(fail, _outcomes_by_name(row, "p2p_tests"), line.report)
    issues = [Fields(issue) for issue in row.objects("resolved_issues")]
    texts = [f"# {issue.text('title', default='')}\n\n{issue.text('body', default='')}".strip() for issue in issues]
    instruction = "\n\n".join(texts) or "\n\n".join((row.text("title", default=""), row.text("body", default="")))
    if not instruction.strip(" #\n"):
        raise RowError("resolved_issues", "says nothing of what is wanted", "leave the row out")
    base = Fields(row.mapping("base"))
    return ImportDraft(
        id=f"{org}__{name}-{number}"[:128],
        image=checked_image("org", f"mswebench/{org}_m_{name}:pr-{number}".lower()),
        workspace=f"/home/{name}",
        instruction=instruction,
        solution=row.patch("fix_patch"),
        command=Command(command_of("--test-command", line.line, line.report), line.report),
        fail_to_pass=ids.fail_to_pass,
        pass_to_pass=ids.pass_to_pass,
        test_patch=test_patch,
        commit=base.commit("sha"),
        removed=("/home/fix.patch", "/home/test.patch", "/home/fix-run.sh", "/home/test-run.sh"),
        left_out=ids.left_out,
        facts={"repo": f"{org}/{name}", "base_commit": base.commit("sha")},
    )


def swebenchpro(row: Fields, commands: Commands) -> ImportDraft:
    """SWE-bench Pro: lists are written as Python literals; requirements and interface are part of what is asked."""
    id_ = row.word("instance_id")
    owner, name = row.repo("repo")
    fail, keep = row.strings("fail_to_pass", "FAIL_TO_PASS"), row.strings("pass_to_pass", "PASS_TO_PASS", default=())
    language = row.text("repo_language", default="", limit=64).lower()
    line = commands.of(f"{owner}/{name}") or _PRO_LINES.get(language)
    if line is None or (line.report == "pytest" and not are_pytest_ids(fail)):
        raise RowError(
            "repo_language",
            f"the scripts that run the tests of {owner}/{name} ({language or 'unknown'}) are not in the row",
            f'name the command: --test-command with --report, or ["{owner}/{name}"] in the file of --commands',
        )
    ids = expected(fail, keep, line.report)
    tag = row.word("dockerhub_tag")
    parts = [("", "problem_statement"), ("Requirements", "requirements"), ("New interfaces", "interface")]
    texts = [(title, _unwrapped(row.text(key, default=""))) for title, key in parts]
    instruction = "\n\n".join(f"## {title}\n\n{text}" if title else text for title, text in texts if text.strip())
    if not instruction.strip():
        raise RowError("problem_statement", "says nothing of what is wanted", "leave the row out")
    return ImportDraft(
        id=id_,
        image=f"jefzda/sweap-images:{tag}",
        workspace="/app",
        instruction=instruction,
        solution=row.patch("patch"),
        command=Command(command_of("--test-command", line.line, line.report), line.report),
        fail_to_pass=ids.fail_to_pass,
        pass_to_pass=ids.pass_to_pass,
        test_patch=row.patch("test_patch"),
        commit=row.commit("base_commit"),
        left_out=ids.left_out,
        facts={"repo": f"{owner}/{name}", "base_commit": row.commit("base_commit")},
    )


def _hidden_tests(results: Fields) -> Mapping[str, bytes]:
    names, codes = results.texts("test_file_names"), results.texts("test_file_codes")
    if len(names) != len(codes):
        raise RowError("test_file_codes", "are not as many as test_file_names")
    tests: dict[str, bytes] = {f"{R2E_TESTS}/__init__.py": b""}
    for name, code in zip(names, codes, strict=True):
        match = _FILE.fullmatch(name)
        if match is None or any(part in ("", ".", "..") for part in match[1].split("/")):
            raise RowError("test_file_names", f"{name[:100]!r} is no path")
        tests[f"{R2E_TESTS}/{match[1]}"] = code.encode()
    for path in tests:
        if inside := next((other for other in tests if other.startswith(f"{path}/")), None):
            raise RowError("test_file_names", f"{inside[:100]!r} is below {path[:100]!r}, which is a file")
    return tests


def _outcomes(log: str) -> dict[str, str]:
    """Ids and outcomes of pytest's short summary; the log of a run is all that the row has of it."""
    _, _, summary = _COLOUR.sub("", log).rpartition("short test summary info")
    found = {}
    for match in _SUMMARY.finditer(summary):
        path, colons, name = match[2].partition("::")
        if colons:
            found[f"{R2E_TESTS}/{path.removeprefix(f'{R2E_TESTS}/')}::{name}"] = match[1]
    return found


def _bare(name: str) -> str:
    """A test's name as ``expected_output_json`` has it: without its file, dots between class and method."""
    return _COLOUR.sub("", name).split(" - ")[0].replace("::", ".")


def _commit_patch(commit: Fields) -> bytes:
    """The files of the commit that are no tests, as a patch."""
    old: dict[str, FileChange] = {}
    files: dict[str, FileChange] = {}
    for diff in map(Fields, commit.objects("file_diffs")):
        header = Fields(diff.mapping("header"))
        path = _path(Fields(header.mapping("file")).text("path", limit=4096))
        index = Fields(diff.mapping("index_line", default={}))
        modes = header.text("misc_line", default=""), index.text("mode", default="")
        if any(mode.endswith(("120000", "160000")) for mode in modes):
            raise RowError("parsed_commit_content", f"{path} is a symlink or a submodule", "leave the row out")
        before, after = diff.text("old_file_content", default=""), diff.text("new_file_content", default="")
        side = Fields(diff.mapping("minus_file", default={})).text("path", default="/dev/null", limit=4096)
        was = path if side == "/dev/null" else _path(side.removeprefix("a/"))
        if is_test(path) or (before == after and was == path):
            continue
        if was != path:
            files.setdefault(was, FileChange(was, ChangeKind.DELETE))
        if before:
            old[was] = FileChange(was, ChangeKind.WRITE, before.encode())
        kind = ChangeKind.WRITE if after else ChangeKind.DELETE
        files[path] = FileChange(path, kind, after.encode())
    patch = render_patch(Change(tuple(files[path] for path in sorted(files))), old.get).encode()
    if not patch:
        raise RowError("parsed_commit_content", "changes nothing but tests", "leave the row out")
    return patch


def _path(name: str) -> str:
    try:
        (patch,) = parse_patch(f"--- /dev/null\n+++ b/{name}\n".encode())
    except (UnifiedDiffError, ValueError):
        raise RowError("parsed_commit_content", f"{name[:100]!r} is no path in the repository") from None
    if patch.new is None or patch.new != name:
        raise RowError("parsed_commit_content", f"{name[:100]!r} is no path in the repository")
    return name


def _outcomes_by_name(row: Fields, key: str) -> list[str]:
    """The tests of ``{name: {run, test, fix}}``. Columnar copies have ``{name: [...], run: [...], ...}``, or all rows'
    tests as keys in each row, null where they are another's."""
    found = row.mapping(key, default={})
    listed = out_of_columns(found)
    if isinstance(listed, list) and "name" in found:
        return list(Fields({key: found["name"]}).strings(key))
    tests = {name: outcomes for name, outcomes in found.items() if outcomes is not None}
    if not all(isinstance(outcomes, dict) for outcomes in tests.values()):
        raise RowError(key, "holds no outcomes (run, test and fix) by the tests' names", "is the row of this format?")
    return list(tests)


def _command_of_suffix(test_patch: bytes, repo: str) -> Command:
    paths: Sequence[str] = [patch.new for patch in parse_patch(test_patch) if patch.new]
    for suffix, command in _SUFFIXES.items():
        if any(path.endswith(suffix) for path in paths):
            return command
    raise RowError(
        "test_patch",
        f"the command that runs the tests of {repo} is in its image alone",
        f'name it: --test-command with --report, or ["{repo}"] in the file of --commands',
    )


def _unwrapped(text: str) -> str:
    """Some texts of the data set are written as a string within a string."""
    if len(text) > 1 and text.startswith('"') and text.endswith('"'):
        try:
            inner = literal("", text)
        except RowError:
            return text
        return inner if isinstance(inner, str) else text
    return text
