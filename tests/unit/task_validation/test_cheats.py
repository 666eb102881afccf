"""Changes that a sound task pays nothing for."""

import ast
import threading
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from farm.core.change import ChangeKind
from farm.core.task import ReportFormat
from farm.grading.decoys.python_source import parse_tests
from farm.task_validation.cheats import MAX_STUBBED, scripted_cheats, stock_cheats, stub_out_functions
from tests.support.farm.episode_values import task
from tests.support.farm.grading_values import change, delete, make_verifier, write

OLD = b"""\
class A:
    def same(self):
        return 1

    def changed(self):
        return 2

def one_line(): return 3
"""
NEW = b'''\
class A:
    def same(self):
        return 1

    def changed(self):
        """It is."""
        if self:
            return 3
        return 2

def one_line(): return 4

async def added(
    first,
):
    value = first
    return value

def stub():
    """To come."""
'''


def test_changed_functions_are_stubbed() -> None:
    gold = change(write("src/a.py", NEW), write("notes.txt", b"def x():\n    y\n"), delete("gone.py"))
    made = stub_out_functions(gold, {"src/a.py": OLD})
    assert list(made) == ["src/a.py:A.changed", "src/a.py:added"]
    for name, hollow in made.items():
        files = {file.path: file for file in hollow.files}
        assert set(files) == {"src/a.py", "notes.txt", "gone.py"}
        assert files["notes.txt"].content == b"def x():\n    y\n"
        tree = ast.parse(files["src/a.py"].content)
        function = next(
            node for node in ast.walk(tree) if getattr(node, "name", None) == name.rpartition(":")[2].split(".")[-1]
        )
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        assert [type(node) for node in function.body] == [ast.Pass]
        assert b"def same(self):\n        return 1" in files["src/a.py"].content


def test_number_of_stubbed_functions_is_limited() -> None:
    many = b"".join(b"def f%d():\n    return %d\n" % (number, number) for number in range(100))
    made = stub_out_functions(change(write("a.py", many)), {})
    assert 1 < len(made) <= MAX_STUBBED
    assert int(list(made)[-1].removeprefix("a.py:f")) > 80


@given(st.text(max_size=200))
def test_stubbed_text_is_valid_python(text: str) -> None:
    for hollow in stub_out_functions(change(write("a.py", text.encode("utf-8", "surrogatepass"))), {}).values():
        ast.parse(hollow.files[0].content)


def test_cheats_have_no_part_of_the_solution() -> None:
    verifier = make_verifier(
        fail_to_pass=("tests/test_a.py::test_new[1]", "tests/test_a.py::TestB::test_c"), pass_to_pass=()
    )
    gold = change(write("src/a.py", NEW), write("tests/test_a.py", b"real"))
    cheats = stock_cheats(verifier, gold, {"src/a.py": OLD})
    assert len(cheats) >= 5
    for cheat in cheats.values():
        for file in cheat.files:
            assert file.kind is ChangeKind.WRITE
            ast.parse(file.content)
            assert b"added" not in file.content
    (own,) = cheats["tests of its own"].files
    assert own.path == "tests/test_a.py"
    assert b"def test_new(): pass" in own.content
    assert b"class TestB(unittest.TestCase):\n    def test_c(self): pass" in own.content
    assert stock_cheats(make_verifier(report=ReportFormat.GO), gold, {}) == {}


def test_reward_file_cheats() -> None:
    gold = change(write("src/a.py", NEW), write("notes.txt", b"x"))
    bare = make_verifier(report=ReportFormat.REWARD_FILE, fail_to_pass=(), pass_to_pass=())
    cheats = stock_cheats(bare, gold, {"src/a.py": OLD})
    for what, cheat in cheats.items():
        (file,) = cheat.files
        ast.parse(file.content)
        assert (file.path, b"added" in file.content) == ("src/a.py", False)
        assert (b"reward.json" in file.content) is ("reward file" in what)
    assert len(cheats) == 3
    assert len(stock_cheats(replace(bare, report=ReportFormat.EXIT_CODE), gold, {})) == 1
    assert stock_cheats(bare, change(write("notes.txt", b"x")), {}) == {}
    bundle = task(verifier=bare)
    assert [played.solution.keys() for played in scripted_cheats(bundle).values()] == [{"solve.sh"}] * 2
    assert scripted_cheats(task()) == {}


def test_functions_are_found_while_other_threads_parse() -> None:
    # Python 3.11 counts the depth of all threads' trees together, unless whoever makes one waits for the others.
    deep = ("a = " + "[" * 60 + "]" * 60 + "\n") * 100
    stop = threading.Event()

    def parse() -> None:
        while not stop.is_set():
            parse_tests(deep)

    others = [threading.Thread(target=parse) for _ in range(3)]
    for other in others:
        other.start()
    try:
        for _ in range(10):
            assert list(stub_out_functions(change(write("src/a.py", NEW + deep.encode())), {"src/a.py": OLD})) == [
                *("src/a.py:A.changed", "src/a.py:added")
            ]
    finally:
        stop.set()
        for other in others:
            other.join()
