"""Reports what lines of the change do while tests run; in the sandbox, with nothing but the standard library.

Python loads it as ``sitecustomize``, before anything of the workspace, in every process of the test command. The grader
writes ``SETTINGS`` into this text, and puts the text of the modules that it imports before it. Findings go at once into
a FIFO that a process outside the tests reads. All that the hook uses is held by closures, because code under test
may replace what modules hold. Any Python from 3.6 on; before 3.8 there are no audit hooks, and the tripwire only says
so.
"""

import atexit
import gc
import os
import posixpath
import sys
from _thread import get_ident
from contextlib import suppress
from typing import Any

from farm.grading.tripwire.channel import open_channel
from farm.grading.tripwire.library import (
    MEMORY,
    OTHERS_ARE_PUBLIC,
    UNWATCHED_MODULES,
    apart,
    follow_library,
    follow_tests,
    watch_memory,
)
from farm.grading.tripwire.lines import FAR, LOADERS, NEAR, PACKAGE, QUIET, follow_lines
from farm.grading.tripwire.watches import (
    follow_runner,
    plain,
    watch_calls,
    watch_finalizers,
    watch_lines,
    watch_phases,
    watch_signals,
)

SETTINGS: Any = None
MOST_FINDINGS = 50
"""Findings of one kind."""
OWN_EVENTS = frozenset({"sys._getframe", "object.__getattr__", "gc.get_objects"})
"""Events of the hook itself."""
EVERY = 256


def install(settings: Any) -> None:
    getframe, stat, modules, kind_of, text_of = sys._getframe, os.stat, sys.modules, type, str
    function_kind = type(install)
    is_collecting, collect, stop_collecting = gc.isenabled, gc.enable, gc.disable
    home, report = settings["home"], settings["report"]
    changed, excused = dict(settings["changed"]), dict(settings["excused"])
    tests = frozenset(settings["tests"])
    report_home, stdlib = posixpath.dirname(report), posixpath.dirname(os.__file__)
    here = f"{home}/sitecustomize.py"
    own = os.urandom(8).hex()  # for names of events
    made, place_of, path_of, is_changed, holds, culprit, passes, started = follow_lines(settings, own)
    channel = open_channel(settings)
    if channel is None:
        return
    send, identity = channel
    if not hasattr(sys, "addaudithook"):
        return
    words = " ".join(getattr(sys, "orig_argv", sys.argv))
    send("hello", what="main" if report in words else "other")

    busy: Any = set()  # threads in which the hook runs
    sent: Any = set()
    counter = [0]
    held_from: Any = []
    awaited: Any = []  # one entry as long as ctypes is imported and not watched
    observed: Any = []
    phases: Any = {}  # by test: the phases that pytest made a report of, and whether each raised
    test_files: Any = set()
    test_names: Any = set()
    for path in settings["holders"]:
        with suppress(OSError):
            test_files.add(stat(path)[1:3])
            test_names.add(posixpath.basename(path))

    def handled(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, NEAR) if callable(args[0]) else None
        if by:
            finding("frames", by, "a signal handler gets a frame")

    def looked(event: str, args: Any, frame: Any) -> None:
        name = plain(args[0])
        if place_of(frame.f_back.f_code.co_filename) == "tool":  # linecache itself
            return
        by = culprit(frame, NEAR)
        if by and (not name or name in tests):
            finding("test_files", by, "the lines of a test file in linecache.cache")

    def finding(kind: str, by: Any, what: str) -> None:
        key = (kind, by[0], by[1])
        if holds(excused.get(path_of(by[0]), {}).get(kind, ()), by[1]):
            return
        if key not in sent and sum(one[0] == kind for one in sent) < MOST_FINDINGS:
            sent.add(key)
            send(kind, by[0], by[1], what)

    def touches(path: Any) -> Any:
        """The component by which it counts that the change opens ``path``."""
        if path.startswith((home, report_home)):
            return "report"
        try:
            known = stat(path)[1:3] if path else None
            if known == identity:
                return "report"
            if known in test_files and path not in changed:
                return "test_files"
        except OSError:
            if path.rpartition("/")[2] in test_names:  # it may be relative to an open directory
                return "test_files"
        if path.startswith("/proc/") and path.rpartition("/")[2] in ("cmdline", "environ", "mem", "maps"):
            return "frames"
        return ""

    def opened(event: str, args: Any, frame: Any) -> None:
        path = path_of(args[0]) if args else ""
        if path == report and event == "open":
            results(frame)
            check(full=True)
        kind = touches(path)
        shows = kind == "test_files" and passes(frame, "/traceback.py")  # the line of a frame
        by = culprit(frame, PACKAGE if shows or kind == "frames" else FAR, QUIET) if kind else None
        if by is None:
            return
        if passes(frame, "/pluggy/") or shows or (kind == "test_files" and by[2] and names_itself(frame)):
            kind = "frames"  # by the test runner that it calls; or it may have been given the file by the test
        finding(kind, by, event + " of " + path)

    def names_itself(frame: Any) -> bool:
        """Return True if the test that runs names its own file."""
        while frame is not None and place_of(frame.f_code.co_filename) != "test":
            frame = frame.f_back
        return frame is not None and "__file__" in frame.f_code.co_names

    def results(frame: Any) -> None:
        """Send how many tests failed, as the runner itself counts when it writes the report."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.endswith("/_pytest/junitxml.py") and frame.f_code.co_name == "pytest_sessionfinish":
                stats = frame.f_locals["self"].stats
                send("results", what=text_of(stats.get("failure", 0) + stats.get("error", 0)))
                if observed:
                    send("raised", what=text_of(sum(sum(one.values()) for one in phases.values())))
                return
            if name == report + ".py" and frame.f_code.co_name == "main":
                cases = frame.f_locals["result"].cases.values()
                bad = sum(child.tag in ("failure", "error") for case in cases for child in case)
                send("results", what=text_of(bad))
                return
            frame = frame.f_back

    def phase(event: str, args: Any, frame: Any) -> None:
        test, when = plain(args[0]), plain(args[1])
        if when == "setup":  # of another try, if there was one
            phases[test] = {}
        phases.setdefault(test, {})[when] = args[2] is True
        check_test(args[3])
        check_library(full=False)

    def frames(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, NEAR, QUIET)
        if by:
            finding("frames", by, event)

    def is_test_function(value: Any) -> bool:
        code = value.__code__ if kind_of(value) is function_kind else None
        return code is not None and place_of(code.co_filename) == "test" and code.co_name.startswith("test")

    def attribute(event: str, args: Any, frame: Any) -> None:
        name = plain(args[1]) if len(args) > 1 else ""
        if event == "object.__setattr__" and is_runner_function(args[0]):
            by = culprit(frame, PACKAGE)
            if by:
                finding("test_code", by, event + " " + name + " of " + args[0].__name__)
        if name == "__code__" and is_test_function(args[0]):
            writes = event == "object.__setattr__"
            # inspect and functools ask for it when a decorator asks what kind of function it decorates.
            by = culprit(frame, PACKAGE) if writes or place_of(frame.f_code.co_filename) != "tool" else None
            if by:
                finding("test_code" if writes else "frames", by, event + " __code__ of " + args[0].__name__)
        elif name in ("tb_frame", "gi_frame", "cr_frame", "ag_frame"):
            by = culprit(frame, NEAR, QUIET)
            if by:
                finding("frames", by, event + " " + name)

    def is_runner_function(value: Any) -> bool:
        name = value.__code__.co_filename if kind_of(value) is function_kind else ""
        return "/_pytest/" in name or "/pluggy/" in name

    def referents(event: str, args: Any, frame: Any) -> None:
        if any(is_test_function(one) for one in args):
            frames(event, args, frame)

    def hidden(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, PACKAGE)
        if by:
            finding("disguise", by, event)

    def compiled(event: str, args: Any, frame: Any) -> None:
        name = plain(args[1]) if len(args) > 1 else ""
        if event == "code.__new__" and bytecode_of(frame):  # before 3.10 marshal has no event
            unmarshalled(event, args, frame)
            return
        if not name:
            return
        by = culprit(frame, NEAR, LOADERS + "parse literal_eval ")
        if by:
            if name.startswith(stdlib + "/") or place_of(name) in ("test", "changed", "tool"):
                finding("disguise", by, event + " as " + name)
            made.add(name)

    def bytecode_of(frame: Any) -> Any:
        """Return the file whose bytecode a loader reads; "" if none does."""
        told = frame.f_locals if frame is not None and place_of(frame.f_code.co_filename) == "tool" else {}
        return path_of(told.get("bytecode_path") or told.get("fullpath"))

    def unmarshalled(event: str, args: Any, frame: Any) -> None:
        path = bytecode_of(frame)
        place = place_of(path)
        if place == "changed":  # what it says of its lines cannot be checked
            finding("disguise", (path, 0), "bytecode without its source was loaded")
        by = culprit(frame, NEAR, "" if place == "foreign" else LOADERS)
        if by:
            finding("disguise", by, event)

    def native(event: str, args: Any, frame: Any) -> None:
        while frame is not None and frame.f_code.co_filename.startswith((here, stdlib + "/ctypes/")):
            frame = frame.f_back
        by = culprit(frame, NEAR)
        if by:
            finding("native", by, event.replace(own, ""))

    def interpreter(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, PACKAGE)
        if by:
            finding("silent" if OTHERS_ARE_PUBLIC else "disguise", by, "a second interpreter, which has no tripwire")

    def imported(event: str, args: Any, frame: Any) -> None:
        path = path_of(args[1]) if len(args) > 1 else ""
        if place_of(path) == "changed":
            finding("native", (path, 0), "import of " + path)
        if args[0] == "_ctypes":
            awaited.append(True)
        if f" {plain(args[0])} " in UNWATCHED_MODULES:
            native("import of " + args[0], args, frame)

    def executed(event: str, args: Any, frame: Any) -> None:
        if not held_from and place_of(args[0].co_filename) in ("changed", "workspace", "test"):
            held_from.append(True)
            if "_pytest.reports" in modules:
                watch_phases(modules["_pytest.reports"], own + "phase")
                observed.append(True)
            hold()
            if "linecache" in modules:
                watch_lines(modules["linecache"], own + "lines")
            watch_finalizers(own + "finalizer")

    def process(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, PACKAGE)
        if by is None:
            return
        words: Any = args[1:2] if event == "subprocess.Popen" else args[:1]
        listed: Any = words[0] if words and kind_of(words[0]) in (list, tuple) else words
        line = " ".join([plain(word) for word in listed])
        alone = any(option in line.split() for option in ("-I", "-S", "-E", "-Es", "-IS"))
        told = any(word in line for word in (home, report_home, "/proc/", "junit", "test"))
        if not by[2] or alone or told:  # what a test asks for is often a process
            finding("processes", by, event.replace(own, "") + " " + line)

    def locks(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, NEAR)
        if by and not by[2]:
            finding("locks", by, event)

    hold, check_runner, of_change = follow_runner(place_of, is_changed, finding, report, tests)
    check_library, check_test = follow_library(stdlib, of_change, finding), follow_tests(of_change, finding)

    def check(full: bool) -> None:
        check_runner(full)
        if held_from:
            check_library(full)

    handlers: Any = {
        "object.__getattr__": attribute,
        "object.__setattr__": attribute,
        "gc.get_referents": referents,
        "sys.addaudithook": hidden,
        "cpython.PyInterpreterState_New": interpreter,
        "import": imported,
        "exec": executed,
        own + "signal": handled,
        own + "thread": started,
        own + "exit": started,
        own + "finalizer": started,
        own + "fork": process,
        own + "lines": looked,
        own + "memory": native,
        own + "phase": phase,
    }
    files = "open os.listdir os.scandir os.rename os.remove os.truncate shutil.copyfile"
    looks = (
        "sys._getframe sys._current_frames sys._current_exceptions sys.settrace sys.setprofile "
        "sys.monitoring.register_callback gc.get_objects gc.get_referrers"
    )
    starts = "subprocess.Popen os.system os.exec os.posix_spawn os.spawn os.kill os.fork os.forkpty"
    for names, watcher in ((files, opened), (looks, frames), (starts, process)):
        handlers.update(dict.fromkeys(names.split(), watcher))
    handlers.update(dict.fromkeys(("marshal.loads", "marshal.load"), unmarshalled))
    handlers.update(dict.fromkeys(("_thread.start_new_thread", "_thread.start_joinable_thread"), started))
    handlers.update({"compile": compiled, "code.__new__": compiled, "fcntl.flock": locks, "fcntl.lockf": locks})
    handlers.update({"ctypes." + name: native for name in MEMORY.split()})

    def hook(event: str, args: Any) -> None:
        if awaited and watch_memory(own + "memory"):
            awaited.clear()
        handler = handlers.get(event)
        if handler is None:
            return
        thread = get_ident()
        nested, collects = thread in busy, is_collecting()
        if nested and event in OWN_EVENTS:
            return
        busy.add(thread)
        stop_collecting()  # its callbacks would run inside the hook
        try:
            frame = caller()
            if nested and not intrudes(frame):
                return
            counter[0] += 1
            if counter[0] % EVERY == 0:
                check(full=False)
            handler(event, args, frame)
        except Exception:  # noqa: S110 - an audit hook that raises would change what the tests do
            pass
        finally:
            if not nested:
                busy.discard(thread)
            if collects:
                collect()

    def caller() -> Any:
        """Return the frame that an event is by; None if there is none, as for a function of C at exit."""
        try:
            return getframe(2)
        except ValueError:
            return None

    def intrudes(frame: Any) -> bool:
        """Return True if a line of the change runs inside the hook, as a signal handler may."""
        while frame is not None and (frame.f_code.co_filename != here or frame.f_code.co_name == "call"):
            if is_changed(frame.f_code.co_filename, frame.f_lineno or 0, True):
                return True
            frame = frame.f_back
        return False

    def goodbye() -> None:
        busy.add(get_ident())
        stop_collecting()
        try:
            check(full=True)
        except Exception as error:  # as above
            send("error", what=repr(error))
        send("goodbye")

    atexit.register(goodbye)
    watch_signals(own + "signal")
    for event, module, function, user in (
        ("thread", "_thread", "start_new_thread", "threading"),
        ("fork", "_posixsubprocess", "fork_exec", "subprocess"),
        ("exit", "atexit", "register", ""),
    ):
        watch_calls(own + event, module, function, user)
    sys.addaudithook(hook)


def chain() -> None:
    """Load the ``sitecustomize`` that this one stands before, and leave no trace on the path of modules."""
    own = sys.modules.pop(__name__)
    sys.path[:] = [path for path in sys.path if path != SETTINGS["home"]]
    with suppress(ImportError):
        __import__("sitecustomize")
    sys.modules.setdefault(__name__, type(own)(__name__))


if __name__ == "sitecustomize":
    try:
        apart(install)(SETTINGS)
    finally:
        chain()
        SETTINGS.clear()
