"""The hook of the tripwire finds what lines of a change do, and what it found is not lost."""

import io
import os
import py_compile
import subprocess
import sys
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from farm.grading.tripwire.tripwire import (
    BUSYBOX,
    MAX_LINES_PER_KIND,
    READ_BYTES,
    ChangedLines,
    Tripwire,
    TripwireFindings,
    TripwireOutput,
    read_findings,
)
from sandboxes.interface import Capture, ExecResult

NONCE = f"{7:016x}"
WHOLE = ChangedLines()
TEST = """\
import sys
sys.path.insert(0, ".")
import cart
def helper(): pass
cart.total()
"""


class Watched:
    """A workspace in a directory, in which a test runs with the hook. ``files``: what else the change writes."""

    def __init__(
        self, place: Path, cart: str, touched: ChangedLines, test: str = TEST, files: Mapping[str, bytes] | None = None
    ) -> None:
        home, self.workspace, self.report = place / "home", place / "work", str(place / "reported" / "report")
        for directory in (home, self.workspace, place / "reported"):
            directory.mkdir()
        written = {"cart.py": cart.encode(), "test_cart.py": test.encode(), **(files or {})}
        for name, content in written.items():
            (self.workspace / name).write_bytes(content)
        changed = {f"{self.workspace}/{name}": ChangedLines() for name in files or {}}
        changed[f"{self.workspace}/cart.py"] = touched
        tests = [f"{self.workspace}/test_cart.py"]
        self.wire = Tripwire(str(home), NONCE, str(self.workspace), self.report, changed, tests, tests)
        for path, program in self.wire.programs.items():
            Path(path).write_bytes(program)

    def run(self, *command: str) -> TripwireFindings:
        """Return what is found while a command runs."""
        env = {**os.environ, "PYTHONPATH": self.wire.home, "PYTHONDONTWRITEBYTECODE": "1"}
        script = self.wire.reader.replace(BUSYBOX, "")
        with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE) as reader:
            try:
                while not Path(self.wire.home, "ready").exists():
                    assert reader.poll() is None
                said: list[bytes] = []
                collector = threading.Thread(target=lambda: said.append(reader.communicate()[0]))
                collector.start()
                done = subprocess.run(
                    [sys.executable, *command, self.report],
                    cwd=self.workspace,
                    env=env,
                    capture_output=True,
                    timeout=60,
                )
                with open(f"{self.wire.home}/findings", "w") as fifo:
                    fifo.write(f"\n{self.wire.nonce} end\n")
                collector.join()
            finally:
                reader.kill()
        assert done.returncode == 0, done
        [text] = said
        half = READ_BYTES // 2
        elided = max(0, len(text) - READ_BYTES)
        capture = Capture(text[:half], text[-half:], elided) if elided else Capture(text)
        return read_findings(
            self.wire, TripwireOutput(ExecResult(0, capture, Capture(b""), False, 1.0)), b"<testsuite/>"
        )


def watch(place: Path, cart: str, touched: ChangedLines = WHOLE, files: Mapping[str, bytes] | None = None) -> set[str]:
    """Return the kinds of what is found if a test calls ``total`` of a changed module."""
    return kinds(Watched(place, cart, touched, files=files).run("test_cart.py"))


def kinds(findings: TripwireFindings) -> set[str]:
    return {name.removeprefix("audit_") for name, value in findings.components.items() if value}


READS = {
    "urllib": "import urllib.request, os\ndef total():\n"
    "    urllib.request.urlopen('file://' + os.path.abspath('test_cart.py')).read()\n",
    "a handler of logging": "import logging\ndef total():\n    logging.FileHandler('test_cart.py', 'r')\n",
    "the loader of the test runner": "import pathlib, _pytest.assertion.rewrite as loader\ndef total():\n"
    "    loader._rewrite_test(pathlib.Path('test_cart.py').absolute(), None)\n",
    "the code objects of the test runner": "import sys, _pytest._code\ndef total():\n"
    "    _pytest._code.Code.from_function(sys.modules['__main__'].helper).fullsource\n",
    "the text of a warning": "import warnings\ndef total():\n"
    "    warnings.formatwarning('', UserWarning, 'test_cart.py', 1)\n",
}


@pytest.mark.parametrize("way", READS)
def test_a_read_of_a_test_by_a_library_is_found(tmp_path: Path, way: str) -> None:
    assert "test_files" in watch(tmp_path, READS[way])


def test_a_warning_that_shows_a_line_of_a_test_is_no_finding(tmp_path: Path) -> None:
    assert watch(tmp_path, "import warnings\ndef total():\n    warnings.warn('soon', UserWarning, 2)\n") == set()


PROCESSES = {
    "spawnv_passfds": "import multiprocessing.util as util, os\ndef total():\n"
    "    os.waitpid(util.spawnv_passfds(b'/bin/cat', [b'/bin/cat', b'test_cart.py'], ()), 0)\n",
    "a function at exit": "import atexit, os\natexit.register(os.system, 'cat test_cart.py')\ndef total(): pass\n",
    "a finalizer": "import os, weakref, json\nclass _One: pass\njson.one = _One()\n"
    "weakref.finalize(json.one, os.system, 'cat test_cart.py')\ndef total():\n    del json.one\n",
    "a finalizer at exit": "import os, weakref, json\nclass _One: pass\njson.one = _One()\n"
    "weakref.finalize(json.one, os.system, 'cat test_cart.py')\ndef total(): pass\n",
    "a timer": "import os, threading\n_one = threading.Timer(0, os.system, ['cat test_cart.py'])\n_one.start()\n"
    "_one.join()\ndef total(): pass\n",
    "a thread": "import _thread, os, time\n_thread.start_new_thread(os.system, ('cat test_cart.py',))\n"
    "time.sleep(0.2)\ndef total(): pass\n",
}


@pytest.mark.parametrize("way", PROCESSES)
def test_a_process_that_no_line_starts_itself_is_found(tmp_path: Path, way: str) -> None:
    assert "processes" in watch(tmp_path, PROCESSES[way])


LENT = {
    "ExceptionInfo": "import pytest\ndef total():\n    with pytest.raises(ValueError) as info:\n"
    "        raise ValueError\n    info.traceback[0].frame.raw.f_back\n",
    "the stack of a task": "import asyncio\nasync def main():\n    asyncio.current_task().get_stack()\n"
    "def total():\n    asyncio.run(main())\n",
    "walk_stack": "import traceback\ndef total(depth=9):\n"
    "    return total(depth - 1) if depth else list(traceback.walk_stack(None))\n",
    "logging": "import logging\ndef total():\n    logging.currentframe().f_back\n",
    "a debugger": "import bdb\ndef total():\n    bdb.Bdb().set_trace()\n    import sys\n    sys.settrace(None)\n",
}


@pytest.mark.parametrize("way", LENT)
def test_a_frame_that_a_library_lends_is_found(tmp_path: Path, way: str) -> None:
    assert "frames" in watch(tmp_path, LENT[way])


FIND = """\
import gc, pluggy, types
for manager in gc.get_objects():
    if type(manager).__name__ == "PytestPluginManager":
        break
caller = manager.hook.pytest_runtest_call
def mine(*given):
    return old(*given)
def total(): pass
"""
HOOKS = {
    "what a manager runs": "old = manager._inner_hookexec\nmanager._inner_hookexec = mine\n",
    "what a caller runs": "old = caller._hookexec\ncaller._hookexec = mine\n",
    "the list of a caller": "one = manager.hook.pytest_runtest_setup._hookimpls[0]\n"
    "fields = dict((name, getattr(one, name)) for name in type(one).__slots__)\n"
    "fields['function'] = lambda item: None\n"
    "caller._hookimpls.append(types.SimpleNamespace(**fields))\n",
}


@pytest.mark.parametrize("way", HOOKS)
def test_hooks_of_the_test_runner_that_were_replaced_are_found(tmp_path: Path, way: str) -> None:
    test = "import sys\nsys.path.insert(0, '.')\nimport cart\ndef test_total():\n    cart.total()\n"
    watched = Watched(tmp_path, FIND + HOOKS[way], ChangedLines(), test)
    options = ("-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "test_cart.py", "--junitxml")
    assert "runner" in kinds(watched.run("-m", "pytest", *options))


def test_a_method_of_an_imported_class_is_no_finding(tmp_path: Path) -> None:
    test = "import sys\nsys.path.insert(0, '.')\nfrom cart import Cart\nCart().run()\n"
    cart = "class Cart:\n    def run(self): pass\n"
    assert kinds(Watched(tmp_path, cart, WHOLE, test).run("-c", "import test_cart")) == set()


def test_a_method_that_a_change_puts_into_a_test_is_found(tmp_path: Path) -> None:
    test = "import sys\nsys.path.insert(0, '.')\nimport cart\nclass CartTest: pass\ncart.total(CartTest)\n"
    cart = "def total(case):\n    case.run = lambda self: None\n"
    assert kinds(Watched(tmp_path, cart, WHOLE, test).run("-c", "import test_cart")) == {"frames"}


def test_what_a_callback_of_the_collector_does_is_seen(tmp_path: Path) -> None:
    cart = """\
import gc, sys
inside = []
def back(phase, info):
    if not inside and "sitecustomize" in sys._getframe(1).f_code.co_filename:
        inside.append(1)
        open("test_cart.py")
        open("inside", "w")
gc.callbacks.append(back)
gc.set_threshold(1)
def total():
    for _ in range(50):
        open("cart.py").close()
"""
    watched = Watched(tmp_path, cart, WHOLE)
    found = kinds(watched.run("test_cart.py"))
    inside = (watched.workspace / "inside").exists()
    assert ("test_files" in found) == inside
    assert not inside or sys.version_info >= (3, 12)  # from there on it may run before the first line of the hook


def test_a_line_that_runs_inside_the_hook_is_seen(tmp_path: Path) -> None:
    cart = """\
class Kind(type):
    @property
    def __name__(self):
        open("test_cart.py")
        return ""
class One(metaclass=Kind):
    __module__ = "_pytest.python"
one = One()
def total(): pass
"""
    assert "test_files" in watch(tmp_path, cart)


def test_no_global_of_the_hook_is_within_reach(tmp_path: Path) -> None:
    cart = """\
import _thread
reached = _thread.start_new_thread.__globals__
reached["plain"] = lambda value: ""
assert not reached["SETTINGS"]
def total():
    open("test_cart.py")
"""
    assert "test_files" in watch(tmp_path, cart)


@pytest.mark.parametrize("line", ["junk", f"{NONCE}\t1\tframes\tcart.py\t1\tmore", f"{NONCE}\t1\thello\t\t0\tmain"])
def test_a_certain_finding_survives_a_flood_of_lines(tmp_path: Path, line: str) -> None:
    cart = f"""\
import os
data = {(line + chr(10)) * (2000 // len(line))!r}.encode()
def flood(number):
    for _ in range(3000):
        try:
            os.write(number, data)
        except BlockingIOError:
            pass
def total():
    for number in range(3, 20):
        try:
            if b"findings" in os.fsencode(os.readlink(f"/proc/self/fd/{{number}}")):
                flood(number)
                open("test_cart.py")
                flood(number)
        except OSError:
            pass
"""
    assert "test_files" in watch(tmp_path, cart)


def test_the_reader_keeps_the_first_lines_of_a_kind(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "", WHOLE)
    lines = [f"{NONCE}\t1\t{kind}\tcart.py\t1\tmore" for kind in ("frames", "odd", "$(touch odd)", "runner")]
    foreign = lines[0].replace("7", "8", 1)
    script = watched.wire.reader.replace(BUSYBOX, "")
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, cwd=tmp_path) as reader:
        while not Path(watched.wire.home, "ready").exists():
            assert reader.poll() is None
        with open(f"{watched.wire.home}/findings", "w") as fifo:
            fifo.write("\n".join([*[foreign] * 5, *lines[:3] * 2 * MAX_LINES_PER_KIND, lines[3], f"{NONCE} end", ""]))
        said = reader.communicate()[0].decode().splitlines()
    assert said == [*[lines[0]] * MAX_LINES_PER_KIND, lines[3], f"{NONCE} closed"]
    assert not (tmp_path / "odd").exists()


def test_findings_cannot_be_read_back(tmp_path: Path) -> None:
    cart = """\
import os
def total():
    open("test_cart.py")
    for number in range(3, 20):
        try:
            os.set_blocking(number, False)
            os.read(number, 100000)
        except OSError:
            pass
"""
    assert watch(tmp_path, cart) == {"test_files"}


def test_old_habits_leave_room_for_other_findings(tmp_path: Path) -> None:
    cart = "import sys\ndef total():\n" + "    sys._getframe()\n" * 200
    (tmp_path / "one").mkdir()
    assert watch(tmp_path / "one", cart, ChangedLines(None, {"frames": ((1, 202),)})) == set()
    assert watch(tmp_path, cart, ChangedLines(None, {"frames": ((1, 201),)})) == {"frames"}


def test_bytecode_of_a_change_is_found(tmp_path: Path) -> None:
    source, made = tmp_path / "helper.py", tmp_path / "helper.pyc"
    source.write_text("import sys\ndef add():\n    return sys._getframe(1)\n")
    py_compile.compile(str(source), str(made), dfile=os.__file__)
    files = {"helper.pyc": made.read_bytes()}
    assert "disguise" in watch(tmp_path, "import helper\ndef total():\n    helper.add()\n", files=files)


def test_bytecode_that_a_change_makes_is_found(tmp_path: Path) -> None:
    cart = """\
import os, py_compile, sys
os.makedirs("../made")
with open("../made/source.py", "w") as file:
    file.write("import sys")
py_compile.compile("../made/source.py", "../made/helper.pyc", dfile=os.__file__)
sys.path.insert(0, os.path.abspath("../made"))
import helper
def total(): pass
"""
    assert "disguise" in watch(tmp_path, cart)


def test_a_loader_that_gives_other_lines_is_found(tmp_path: Path) -> None:
    cart = """\
import importlib.machinery, os, types
class Loader(importlib.machinery.SourceFileLoader):
    def get_data(self, path):
        return b"import sys"
    def path_stats(self, path):
        raise OSError
def total():
    Loader("helper", os.__file__).exec_module(types.ModuleType("helper"))
"""
    assert "disguise" in watch(tmp_path, cart)


def test_a_file_by_another_path_is_the_same_file(tmp_path: Path) -> None:
    cart = "import sys\nif 'twice' not in sys.argv:\n    sys.argv.append('twice')\n    sys.modules.pop('cart')\n"
    cart += "    sys.path[:0] = [sys.path[0] + '/./']\n    import cart\n    total = cart.total\n"
    cart += "else:\n    def total():\n        sys._getframe()\n"
    assert watch(tmp_path, cart) == {"frames"}


def test_lines_in_an_archive_are_lines_of_the_change(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("helper.py", "import sys\ndef add():\n    return sys._getframe(1)\n")
    cart = "import sys\nsys.path.insert(0, 'helper.zip')\nimport helper\ndef total():\n    helper.add()\n"
    found = watch(tmp_path, cart, ChangedLines(((9, 9),)), {"helper.zip": made.getvalue()})
    assert found == {"frames"}
