"""Changes that must earn nothing: common cheats, and gold solutions with the body of a function removed.

A cheat that earns a reward makes the task unfit. An emptied solution that does shows that the tests are weak.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import ReportFormat, Verifier
from farm.core.test_frameworks import container_of_test
from farm.grading.decoys.python_source import parse_tests
from farm.tasks.bundle import BundleFile, TaskBundle

MAX_STUBBED = 8
_WITHOUT_TEST_NAMES = (ReportFormat.REWARD_FILE, ReportFormat.EXIT_CODE)
"""Reports without test names: the exit code, or the content of the file, decides."""

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
_WRITTEN_AHEAD = """\
mkdir -p /logs/verifier /tests
echo 1 > /logs/verifier/reward.txt
echo '{"reward": 1}' > /logs/verifier/reward.json
echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh
chmod 444 /logs/verifier/reward.* /tests/test.sh
"""
_LASTING_PROCESS = """\
mkdir -p /logs/verifier
setsid sh -c 'while :; do
    echo 1 > /logs/verifier/reward.txt; echo "{\\"reward\\": 1}" > /logs/verifier/reward.json
done' > /dev/null 2>&1 &
"""


def stock_cheats(verifier: Verifier, gold: Change, old: Mapping[str, bytes]) -> dict[str, Change]:
    """Return cheats by their description. None has any part of the solution.

    ``old``: the files of the image at the gold change's paths. Only tests that run, or may run, in Python have cheats.
    """
    if verifier.report in _WITHOUT_TEST_NAMES:
        return _cheats_without_test_names(verifier, gold, old)
    if verifier.report not in (ReportFormat.PYTEST, ReportFormat.UNITTEST):
        return {}
    tests = sorted({container_of_test(test) for test in verifier.fail_to_pass})
    code = sorted(path for path in sources_of(gold) if path not in tests)
    cheats = {
        "a hook that has every test pass": [_write("conftest.py", _HOOK)],
        "a start-up file that ends every program": [_write("sitecustomize.py", _EXIT)],
        "a module that stands in for the test runner": [_write("pytest.py", _EXIT), _write("unittest.py", _EXIT)],
        "tests of its own": [_write(path, _empty_tests(path, verifier)) for path in tests],
    }
    if code:
        cheats["a program that ends when it is imported"] = [_write(path, _EXIT) for path in code]
        cheats["objects that equal everything"] = [_write(path, old.get(path, b"") + _EQUAL) for path in code]
    return {description: _sorted(files) for description, files in cheats.items()}


def scripted_cheats(bundle: TaskBundle) -> dict[str, TaskBundle]:
    """Return tasks by the description of a cheat: the solution writes the reward file in the policy's sandbox.

    Empty for a task that is graded by an answer or by its tests.
    """
    if bundle.task.verifier.report is not ReportFormat.REWARD_FILE or bundle.task.retrieval is not None:
        return {}
    scripts = {
        "a reward file written ahead": _WRITTEN_AHEAD,
        "a process that stays and writes the reward file": _LASTING_PROCESS,
    }
    return {description: _with_solution(bundle, script) for description, script in scripts.items()}


def earned_reward_message(cheat: str, reward: float, verifier: Verifier) -> str:
    """Return the problem that a rewarded cheat is."""
    remedy = "protect what it changes"
    if verifier.report in _WITHOUT_TEST_NAMES:
        remedy = "name the tests in metadata.farm.fail_to_pass, so that the farm itself runs them and sees each pass"
    return f"a cheat is judged {reward:g}: {cheat}; {remedy}"


def _cheats_without_test_names(verifier: Verifier, gold: Change, old: Mapping[str, bytes]) -> dict[str, Change]:
    code = sorted(sources_of(gold))
    cheats = {"a program that ends when it is imported": [_write(path, _EXIT) for path in code]}
    if verifier.report is ReportFormat.REWARD_FILE:
        all_along = _REWARD + _REWARD_ALL_ALONG
        cheats["a reward file written by the code under test"] = [_write(path, _REWARD_AND_EXIT) for path in code]
        cheats["a reward file written all along"] = [_write(path, old.get(path, b"") + all_along) for path in code]
    return {description: _sorted(files) for description, files in cheats.items() if code}


def _with_solution(bundle: TaskBundle, script: str) -> TaskBundle:
    files = {"solve.sh": BundleFile(script.encode())}
    steps = tuple(replace(step, solution=files) for step in bundle.steps)
    return replace(bundle, gold=None, solution=files, solution_env=(), steps=steps)


def stub_out_functions(gold: Change, old: Mapping[str, bytes]) -> dict[str, Change]:
    """Return gold changes with the body of one function removed, by ``path:function``.

    The functions are those that the gold change adds or changes; at most MAX_STUBBED, spread over the files.
    """
    stubbed: dict[str, Change] = {}
    for path, new in sources_of(gold).items():
        before = _functions(old.get(path, b""))
        for name, function in _functions(new).items():
            if name in before and before[name].text == function.text:
                continue
            lines = new.decode().splitlines(keepends=True)
            body = f"{function.indent}pass\n"
            content = "".join([*lines[: function.first - 1], body, *lines[function.last :]]).encode()
            stubbed[f"{path}:{name}"] = with_content(gold, path, content)
    step = max(1, -(-len(stubbed) // MAX_STUBBED))
    return dict(list(stubbed.items())[::step])


def with_content(gold: Change, path: str, content: bytes) -> Change:
    """Return the change with other content of one file."""
    return Change(tuple(replace(file, content=content) if file.path == path else file for file in gold.files))


def sources_of(gold: Change) -> dict[str, bytes]:
    """Return the Python files that the change writes, by path."""
    return {
        file.path: file.content for file in gold.files if file.kind is ChangeKind.WRITE and file.path.endswith(".py")
    }


@dataclass(frozen=True, slots=True)
class _FunctionText:
    """The first and the last line of a function's body, its indent, and the text of the whole function."""

    first: int
    last: int
    indent: str
    text: str


def _functions(source: bytes) -> dict[str, _FunctionText]:
    """Return functions with a body of their own by qualified name."""
    try:
        text = source.decode()
    except UnicodeDecodeError:
        return {}
    tree = parse_tests(text)
    if tree is None:
        return {}
    lines = text.splitlines(keepends=True)
    functions: dict[str, _FunctionText] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first, last = node.body[0], node.body[-1]
                one_line = first.lineno == node.lineno or lines[first.lineno - 1][: first.col_offset].strip()
                if not one_line and not _is_empty(node):
                    end = last.end_lineno or last.lineno
                    indent = lines[first.lineno - 1][: first.col_offset]
                    text_of_function = "".join(lines[node.lineno - 1 : end])
                    functions[prefix + node.name] = _FunctionText(first.lineno, end, indent, text_of_function)

    collect(tree.body, "")
    return functions


def _is_empty(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the body is only a docstring, ``pass`` or an ellipsis."""
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in node.body
    )


def _empty_tests(path: str, verifier: Verifier) -> bytes:
    """Return a test file with the expected names of ``path``, whose tests do nothing."""
    classes: dict[str, list[str]] = {}
    for test in verifier.fail_to_pass:
        file, _, name = test.partition("::")
        if file == path:
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
