"""Reports what lines of the change do while tests run; in the sandbox, with nothing but the standard library.

Python loads it as ``sitecustomize``, before anything of the workspace, in every process of the test command. The grader
writes ``SETTINGS`` into this text, and the text of ``tripwire_watches`` in the place of its import. Findings go at once
into a FIFO that a process outside the tests reads. All that the hook uses is held by closures, because code under test
may replace what modules hold. Any Python from 3.6 on; before 3.8 there are no audit hooks, and the tripwire only says
so.
"""

import atexit
import os
import posixpath
import sys
from _thread import get_ident
from contextlib import suppress
from itertools import count
from typing import Any

from farm.grading.tripwire_watches import Bound, plain, watch_lines, watch_runner, watch_signals, watch_threads

SETTINGS: Any = None
MOST_FINDINGS = 100
"""Findings of one kind."""
TOOLS = (
    " inspect linecache tokenize pathlib io runpy subprocess os shutil glob fnmatch codecs ast contextlib threading "
    "dis functools posixpath genericpath weakref copy tempfile pkgutil importlib fileinput traceback concurrent "
    "multiprocessing signal "
)
"""Modules of the standard library that act for their caller: what they do is the caller's doing."""
QUIET = " get_code exec_module format_exception format_exc print_exception print_exc getframeinfo "
"""Functions of those that read frames and source for an end of their own."""
EVERY = 256


def install(settings: Any) -> None:
    getframe, getpid, write, fstat, stat = sys._getframe, os.getpid, os.write, os.fstat, os.stat
    open_file, getcwd, normpath = os.open, os.getcwd, posixpath.normpath
    modules, kind_of, text_of = sys.modules, type, str
    function_kind = type(install)
    bound_kind = type(Bound().method)
    home, fifo, nonce, report = settings["home"], settings["fifo"], settings["nonce"], settings["report"]
    workspace = settings["workspace"]
    changed = dict(settings["changed"])
    tests = frozenset(settings["tests"])
    report_home, stdlib = posixpath.dirname(report), posixpath.dirname(os.__file__)
    own = os.urandom(8).hex()  # names of the tripwire's own events
    identity: Any = []  # of what was opened: device and inode
    starters: Any = {}  # by the identity of a thread's object: the line of the change that started it

    def open_fifo() -> int:
        return open_file(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    with suppress(OSError):
        channel = [open_fifo()]
        identity.append(fstat(channel[0])[1:3])
    if not identity:
        return

    said: Any = {}  # by process: a counter of the lines that it wrote

    def send(kind: str, path: str = "", line: int = 0, what: str = "") -> None:
        number = next(said.setdefault(getpid(), count(1)))
        clean = " ".join(what.split())[:200] if kind != "goodbye" else text_of(number)
        text = "\t".join([nonce, text_of(getpid()), kind, path.replace("\t", " ")[-300:], text_of(line), clean])
        data = text.replace("\n", " ").encode("utf-8", "replace") + b"\n"
        try:
            if fstat(channel[0])[1:3] != identity[0]:
                raise OSError
            write(channel[0], data)
        except OSError:
            try:
                channel[0] = open_fifo()
                write(channel[0], data)
            except OSError:
                pass

    if not hasattr(sys, "addaudithook"):
        return
    words = " ".join(getattr(sys, "orig_argv", sys.argv))
    send("hello", what="main" if report in words else "other")

    busy: Any = set()  # threads in which the hook runs
    sent: Any = set()
    made: Any = set()  # names under which lines of the change compiled code
    known: Any = {}
    counter = [0]
    held_from: Any = []
    kept: Any = []
    test_files: Any = set()
    test_names: Any = set()
    for path in settings["holders"]:
        with suppress(OSError):
            test_files.add(stat(path)[1:3])
            test_names.add(posixpath.basename(path))

    def place_of(name: Any) -> Any:
        place = known.get(name)
        if place is None:
            path = name if name.startswith(("/", "<")) else normpath(getcwd() + "/" + name)
            parts = path[len(stdlib) + 1 :].split("/") if path.startswith(stdlib + "/") else []
            if path in tests:
                place = "test"
            elif path in changed:
                place = "changed"
            elif path.startswith("<frozen "):
                place = "tool"
            elif path.startswith("<"):
                place = "dynamic"
            elif path.startswith(workspace + "/") and "-packages/" not in path:
                place = "workspace"
            elif parts and f" {parts[0].split('.')[0]} " in TOOLS:
                place = "tool"
            elif path.startswith((stdlib + "/", home + "/", report_home + "/")) or "-packages/" in path:
                place = "other"
            else:
                place = "foreign"
            known[name] = place
        return place

    def is_changed(name: str, line: int, foreign: bool = False) -> bool:
        """``foreign``: a file that belongs to no package counts as changed, for a change may have written it."""
        if name in made or (foreign and place_of(name) == "foreign"):
            return True
        if place_of(name) != "changed":
            return False
        ranges = changed[name if name.startswith("/") else normpath(getcwd() + "/" + name)]
        return ranges is None or any(first <= line <= last for first, last in ranges)

    def culprit(frame: Any, through_workspace: bool, ignored: Any = "") -> Any:
        """The line of the change that the event is by: file, line and whether a test runs it; or None."""
        found, last, depth = None, None, 0
        while frame is not None and depth < 400:
            name, line = frame.f_code.co_filename, frame.f_lineno
            place = place_of(name)
            if place == "test":
                return found and (found[0], found[1], True)
            if found is None:
                if is_changed(name, line or 0):
                    found = (name, line or 0, False)
                elif place == "tool":
                    if f" {frame.f_code.co_name} " in ignored and not asks_itself(frame):
                        return None
                elif place in ("other", "foreign") or (place in ("workspace", "changed") and not through_workspace):
                    return None
            last, frame, depth = frame, frame.f_back, depth + 1
        if found is None and starters and last is not None and last.f_code.co_name == "_bootstrap":
            return starters.get(id(last.f_locals.get("self")))
        return found

    def asks_itself(frame: Any) -> bool:
        """Return True if a loader reads a module's code for a line of the change, and not to import the module."""
        by = frame.f_back
        return frame.f_code.co_name == "get_code" and by is not None and place_of(by.f_code.co_filename) != "tool"

    def started(event: str, args: Any, frame: Any) -> None:
        thread = args[0].__self__ if kind_of(args[0]) is bound_kind else None
        by = culprit(frame.f_back, False)  # without the wrapper
        if by and thread is not None:
            starters[id(thread)] = by
            kept.append(thread)  # so that no other object gets its identity

    def handled(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame.f_back, False) if callable(args[0]) else None
        if by:
            finding("frames", by, "a signal handler gets a frame")

    def looked(event: str, args: Any, frame: Any) -> None:
        name = plain(args[0])
        if place_of(frame.f_back.f_code.co_filename) == "tool":  # linecache itself
            return
        by = culprit(frame.f_back, False)
        if by and (not name or name in tests):
            finding("test_files", by, "the lines of a test file in linecache.cache")

    def finding(kind: str, by: Any, what: str) -> None:
        key = (kind, by[0], by[1])
        if key not in sent and sum(one[0] == kind for one in sent) < MOST_FINDINGS:
            sent.add(key)
            send(kind, by[0], by[1], what)

    def path_of(value: Any) -> Any:
        value = plain(value)
        if not value:
            return ""
        return value if value.startswith("/") else normpath(getcwd() + "/" + value)

    def touches(path: Any) -> Any:
        """The component by which it counts that the change opens ``path``."""
        if path.startswith((home, report_home)):
            return "report"
        try:
            if path and stat(path)[1:3] in test_files and path not in changed:
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
        by = culprit(frame, True, QUIET)
        kind = by and touches(path)
        if kind == "test_files" and (passes(frame, "/traceback.py") or (by[2] and names_itself(frame))):
            kind = "frames"  # it shows the line of a frame, or may have been given the file by the test
        if kind:
            finding(kind, by, event + " of " + path)

    def names_itself(frame: Any) -> bool:
        """Return True if the test that runs names its own file."""
        while frame is not None and place_of(frame.f_code.co_filename) != "test":
            frame = frame.f_back
        return frame is not None and "__file__" in frame.f_code.co_names

    def passes(frame: Any, module: str) -> bool:
        while frame is not None and not frame.f_code.co_filename.endswith(module):
            frame = frame.f_back
        return frame is not None

    def results(frame: Any) -> None:
        """Send how many tests failed, as the runner itself counts when it writes the report."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.endswith("/_pytest/junitxml.py") and frame.f_code.co_name == "pytest_sessionfinish":
                stats = frame.f_locals["self"].stats
                send("results", what=text_of(stats.get("failure", 0) + stats.get("error", 0)))
                return
            if name == report + ".py" and frame.f_code.co_name == "main":
                cases = frame.f_locals["result"].cases.values()
                bad = sum(child.tag in ("failure", "error") for case in cases for child in case)
                send("results", what=text_of(bad))
                return
            frame = frame.f_back

    def frames(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, False, QUIET)
        if by:
            finding("frames", by, event)

    def is_test_function(value: Any) -> bool:
        code = value.__code__ if kind_of(value) is function_kind else None
        return code is not None and place_of(code.co_filename) == "test" and code.co_name.startswith("test")

    def attribute(event: str, args: Any, frame: Any) -> None:
        name = plain(args[1]) if len(args) > 1 else ""
        if name == "__code__" and is_test_function(args[0]):
            writes = event == "object.__setattr__"
            # inspect and functools ask for it when a decorator asks what kind of function it decorates.
            by = culprit(frame, True) if writes or place_of(frame.f_code.co_filename) != "tool" else None
            if by:
                finding("test_code" if writes else "frames", by, event + " __code__ of " + args[0].__name__)
        elif name in ("tb_frame", "gi_frame", "cr_frame", "ag_frame"):
            by = culprit(frame, False, QUIET)
            if by:
                finding("frames", by, event + " " + name)

    def referents(event: str, args: Any, frame: Any) -> None:
        if any(is_test_function(one) for one in args):
            frames(event, args, frame)

    def hidden(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, True)
        if by:
            finding("disguise", by, event)

    def compiled(event: str, args: Any, frame: Any) -> None:
        name = plain(args[1]) if len(args) > 1 else ""
        if not name:
            return
        by = culprit(frame, False, " get_code source_to_code exec_module parse literal_eval ")
        if by:
            own = name in tests or name in changed
            if own or name.startswith((stdlib + "/", "<frozen ")) or place_of(name) == "tool":
                finding("disguise", by, event + " as " + name)
            made.add(name)

    def unmarshalled(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, False, " get_code _compile_bytecode exec_module load_module ")
        if by:
            finding("disguise", by, event)

    def native(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, False)
        if by:
            finding("native", by, event)

    def imported(event: str, args: Any, frame: Any) -> None:
        path = plain(args[1]) if len(args) > 1 else ""
        if path in changed:
            finding("native", (path, 0), "import of " + path)

    def executed(event: str, args: Any, frame: Any) -> None:
        if not held_from and place_of(args[0].co_filename) in ("changed", "workspace", "test"):
            held_from.append(True)
            hold()
            if "linecache" in modules:
                watch_lines(modules["linecache"], own + "lines")

    def process(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, True)
        if by is None:
            return
        words: Any = args[1:2] if event == "subprocess.Popen" else args[:1]
        listed: Any = words[0] if words and kind_of(words[0]) in (list, tuple) else words
        line = " ".join([plain(word) for word in listed])
        alone = any(option in line.split() for option in ("-I", "-S", "-E", "-Es", "-IS"))
        told = any(word in line for word in (home, report_home, "/proc/", "junit", "test"))
        if not by[2] or alone or told:  # what a test asks for is often a process
            finding("processes", by, event + " " + line)

    def locks(event: str, args: Any, frame: Any) -> None:
        by = culprit(frame, False)
        if by and not by[2]:
            finding("locks", by, event)

    hold, check = watch_runner(place_of, is_changed, finding, report, tests)

    handlers: Any = {
        "object.__getattr__": attribute,
        "object.__setattr__": attribute,
        "gc.get_referents": referents,
        "sys.addaudithook": hidden,
        "import": imported,
        "exec": executed,
        own + "signal": handled,
        own + "thread": started,
        own + "lines": looked,
    }
    files = "open os.listdir os.scandir os.rename os.remove os.truncate shutil.copyfile"
    looks = (
        "sys._getframe sys._current_frames sys._current_exceptions sys.settrace sys.setprofile "
        "sys.monitoring.register_callback gc.get_objects gc.get_referrers"
    )
    starts = "subprocess.Popen os.system os.exec os.posix_spawn os.spawn os.kill os.fork os.forkpty"
    handlers.update(dict.fromkeys(files.split(), opened))
    handlers.update(dict.fromkeys(looks.split(), frames))
    handlers.update(dict.fromkeys(starts.split(), process))
    handlers.update(dict.fromkeys(("marshal.loads", "marshal.load"), unmarshalled))
    handlers.update({"compile": compiled, "code.__new__": compiled, "fcntl.flock": locks, "fcntl.lockf": locks})
    for name in ("dlopen", "dlsym", "cast", "string_at"):
        handlers["ctypes." + name] = native

    def hook(event: str, args: Any) -> None:
        handler = handlers.get(event)
        if handler is None:
            return
        thread = get_ident()
        if thread in busy:
            return
        busy.add(thread)
        try:
            counter[0] += 1
            if counter[0] % EVERY == 0:
                check(full=False)
            handler(event, args, getframe(1))
        except Exception:  # noqa: S110 - an audit hook that raises would change what the tests do
            pass
        finally:
            busy.discard(thread)

    def goodbye() -> None:
        thread = get_ident()
        busy.add(thread)
        try:
            check(full=True)
        except Exception as error:  # as above
            send("error", what=repr(error))
        send("goodbye")

    watch_signals(own + "signal")
    watch_threads(own + "thread")
    atexit.register(goodbye)
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
        install(SETTINGS)
    finally:
        chain()
