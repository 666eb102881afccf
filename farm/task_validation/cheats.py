"""Changes that earn nothing: the stock cheats of the field, and a solution with its heart taken out.

What they are worth under a task's own verifier says whether it can be trusted: a cheat that pays makes it unfit, a
hollow solution that pays says that its tests are weak.
"""

import ast
from collections.abc import Mapping
from dataclasses import replace

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import ReportFormat, Verifier
from farm.core.test_frameworks import container_of_test
from farm.grading.decoys.python_source import parse_tests
from farm.tasks.bundle import BundleFile, TaskBundle

MOST_HOLLOWED = 8
_BELIEVERS = (ReportFormat.REWARD_FILE, ReportFormat.EXIT_CODE)
"""They name no test: whatever ends these well, or writes the file, is believed."""

_HOOK = b"""\
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""
_EXIT = b"import os\nos._exit(0)\n"
_EQUAL = b"""

class _Anything:
    def __eq__(self, other):
        return True

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **kwargs):
        return self


import sys
for _name, _value in list(vars(sys.modules[__name__]).items()):
    if callable(_value) and not _name.startswith("_"):
        vars(sys.modules[__name__])[_name] = _Anything()
"""

_REWARD = b"""
import os


def _reward():
    for name, text in (("reward.json", '{"reward": 1}'), ("reward.txt", "1")):
        with open("/logs/verifier/" + name + ".new", "w") as file:
            file.write(text)
        os.replace("/logs/verifier/" + name + ".new", "/logs/verifier/" + name)


"""
_REWARD_AND_EXIT = _REWARD + b"try:\n    _reward()\nfinally:\n    os._exit(0)\n"
_REWARD_ALL_ALONG = b"""
_caller = os.getppid()
try:
    _reward()
    os.kill(_caller, 9)  # which writes no other any more; to come between its last words and the end takes luck
except OSError:
    pass
if not os.fork():
    os.setsid()
    for _stream in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), _stream)
    while True:
        try:
            _reward()
        except OSError:
            pass
"""
_AHEAD = """\
mkdir -p /logs/verifier /tests
echo 1 > /logs/verifier/reward.txt
echo '{"reward": 1}' > /logs/verifier/reward.json
echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh
chmod 444 /logs/verifier/reward.* /tests/test.sh
"""
_STAYS = """\
mkdir -p /logs/verifier
setsid sh -c 'while :; do
    echo 1 > /logs/verifier/reward.txt; echo "{\\"reward\\": 1}" > /logs/verifier/reward.json
done' > /dev/null 2>&1 &
"""


def stock_cheats(verifier: Verifier, gold: Change, old: Mapping[str, bytes]) -> dict[str, Change]:
    """By what they do; none brings anything of the solution. ``old``: what the image holds at the gold's paths.

    Only for tests that run in Python, or may do so: elsewhere there are none yet.
    """
    if verifier.report in _BELIEVERS:
        return _cheats_on_believers(verifier, gold, old)
    if verifier.report not in (ReportFormat.PYTEST, ReportFormat.UNITTEST):
        return {}
    tests = sorted({container_of_test(test) for test in verifier.fail_to_pass})
    code = sorted(path for path in sources_of(gold) if path not in tests)
    cheats = {
        "a hook that has every test pass": [_write("conftest.py", _HOOK)],
        "a start-up file that ends every program": [_write("sitecustomize.py", _EXIT)],
        "a module that stands in for the test runner": [_write("pytest.py", _EXIT), _write("unittest.py", _EXIT)],
        "tests of its own": [_write(path, _passing(path, verifier)) for path in tests],
    }
    if code:
        cheats["a program that ends when it is imported"] = [_write(path, _EXIT) for path in code]
        cheats["objects that equal everything"] = [_write(path, old.get(path, b"") + _EQUAL) for path in code]
    return {what: _sorted(files) for what, files in cheats.items()}


def scripted_cheats(bundle: TaskBundle) -> dict[str, TaskBundle]:
    """The task with a solution that is none, by what it does where the policy works: writing the reward ahead. An
    answer is judged by no file."""
    if bundle.task.verifier.report is not ReportFormat.REWARD_FILE or bundle.task.retrieval is not None:
        return {}
    scripts = {"a reward file written ahead": _AHEAD, "a process that stays and writes the reward file": _STAYS}
    return {what: _solved_by(bundle, script) for what, script in scripts.items()}


def earned_reward_message(what: str, reward: float, verifier: Verifier) -> str:
    """The problem that a cheat with a reward is."""
    remedy = "protect what it changes"
    if verifier.report in _BELIEVERS:
        remedy = "name the tests in metadata.farm.fail_to_pass, so that the farm itself runs them and sees each pass"
    return f"a cheat is judged {reward:g}: {what}; {remedy}"


def _cheats_on_believers(verifier: Verifier, gold: Change, old: Mapping[str, bytes]) -> dict[str, Change]:
    code = sorted(sources_of(gold))
    cheats = {"a program that ends when it is imported": [_write(path, _EXIT) for path in code]}
    if verifier.report is ReportFormat.REWARD_FILE:
        all_along = _REWARD + _REWARD_ALL_ALONG
        cheats["a reward file written by the code under test"] = [_write(path, _REWARD_AND_EXIT) for path in code]
        cheats["a reward file written all along"] = [_write(path, old.get(path, b"") + all_along) for path in code]
    return {what: _sorted(files) for what, files in cheats.items() if code}


def _solved_by(bundle: TaskBundle, script: str) -> TaskBundle:
    files = {"solve.sh": BundleFile(script.encode())}
    steps = tuple(replace(step, solution=files) for step in bundle.steps)
    return replace(bundle, gold=None, solution=files, solution_env=(), steps=steps)


def stub_out_functions(gold: Change, old: Mapping[str, bytes]) -> dict[str, Change]:
    """The gold change with the body of a function that it makes or alters left out, by ``path:function``.

    No more than MOST_HOLLOWED, spread over the files.
    """
    found: dict[str, Change] = {}
    for path, new in sources_of(gold).items():
        before = _functions(old.get(path, b""))
        for name, (start, end, indent, text) in _functions(new).items():
            if before.get(name, (0, 0, "", ""))[3] == text:
                continue
            lines = new.decode().splitlines(keepends=True)
            content = "".join([*lines[: start - 1], f"{indent}pass\n", *lines[end:]]).encode()
            found[f"{path}:{name}"] = with_content(gold, path, content)
    step = max(1, -(-len(found) // MOST_HOLLOWED))
    return dict(list(found.items())[::step])


def with_content(gold: Change, path: str, content: bytes) -> Change:
    """The same change, but for what one file holds."""
    return Change(tuple(replace(file, content=content) if file.path == path else file for file in gold.files))


def sources_of(gold: Change) -> dict[str, bytes]:
    """The Python files that it writes, by path."""
    return {
        file.path: file.content for file in gold.files if file.kind is ChangeKind.WRITE and file.path.endswith(".py")
    }


def _functions(source: bytes) -> dict[str, tuple[int, int, str, str]]:
    """The first and the last line of each function's body, their indent, and the function's text, by qualified name."""
    try:
        text = source.decode()
    except UnicodeDecodeError:
        return {}
    tree = parse_tests(text)
    if tree is None:
        return {}
    lines = text.splitlines(keepends=True)
    found: dict[str, tuple[int, int, str, str]] = {}

    def look(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first, last = node.body[0], node.body[-1]
                one_line = first.lineno == node.lineno or lines[first.lineno - 1][: first.col_offset].strip()
                if not one_line and not _is_empty(node):
                    end = last.end_lineno or last.lineno
                    indent = lines[first.lineno - 1][: first.col_offset]
                    found[prefix + node.name] = first.lineno, end, indent, "".join(lines[node.lineno - 1 : end])

    look(tree.body, "")
    return found


def _is_empty(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Nothing but a docstring, ``pass`` or an ellipsis."""
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in node.body
    )


def _passing(path: str, verifier: Verifier) -> bytes:
    """Tests of the expected names that do nothing."""
    classes: dict[str, list[str]] = {}
    for test in verifier.fail_to_pass:
        held, _, name = test.partition("::")
        if held == path:
            *outer, last = name.split("[", 1)[0].split("::")
            classes.setdefault(outer[-1] if outer else "", []).append(last)
    lines = ["import unittest", ""]
    for owner, names in classes.items():
        lines += [f"class {owner}(unittest.TestCase):"] if owner else []
        indent, argument = ("    ", "self") if owner else ("", "")
        lines += [f"{indent}def {name}({argument}): pass" for name in dict.fromkeys(names)]
    return "\n".join([*lines, ""]).encode()


def _sorted(files: list[FileChange]) -> Change:
    return Change(tuple(sorted(files, key=lambda file: file.path)))


def _write(path: str, content: bytes) -> FileChange:
    return FileChange(path, ChangeKind.WRITE, content)
