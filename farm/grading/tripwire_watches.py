"""Watches of the tripwire beside the events of Python; they run in the sandbox, as part of ``tripwire_inside``."""

import gc
import sys
from typing import Any

BUILTINS = " __import__ all any compile eval exec getattr isinstance len open repr setattr sorted type "
"""The builtins that a test runner or an assertion depends on."""

OVERRIDDEN = ("test", "run", "debug", "_call", "__call__", "assert", "fail", "setUp", "tearDown", "setup", "teardown")
"""How the names of methods begin that decide what a test does."""


class Bound:
    """Has a method, whose kind is of use."""

    def method(self) -> None: ...


def plain(value: Any) -> str:
    """Return a text as it is, and "" for every other object: its methods would run inside the hook."""
    if type(value) is bytes:
        return bytes.decode(value, "utf-8", "replace")
    return value if type(value) is str else ""


def watch_runner(place_of: Any, is_changed: Any, finding: Any, report: str, tests: Any) -> Any:
    """Return two functions: ``hold`` keeps what the test runner's functions are, ``check`` finds what replaced them."""
    all_objects, modules, kind_of, entries_of = gc.get_objects, sys.modules, type, vars
    function_kind = type(watch_runner)
    bound_kind = type(Bound().method)
    partials: Any = []
    held: Any = {}  # functions of the runner, as they were before code of the workspace ran

    def code_of(value: Any) -> Any:
        for _ in range(4):
            kind = kind_of(value)
            if kind in (bound_kind, classmethod, staticmethod):
                value = value.__func__
            elif kind is property:
                value = value.fget
            elif kind in partials:
                value = value.func
            else:
                break
        if is_class(value):
            value = next((one for one in entries_of(value).values() if kind_of(one) is function_kind), None)
        elif kind_of(value) is not function_kind:
            found = (entries_of(kind).get("__call__") for kind in kind_of(value).__mro__)
            value = next((one for one in found if one is not None), None)
        return value.__code__ if kind_of(value) is function_kind else None

    def is_class(value: Any) -> bool:
        return type in kind_of(value).__mro__

    def of_change(value: Any, depth: int = 0) -> Any:
        """Return the file and a line of the change that made ``value``, or what it holds; None if it did not."""
        code = code_of(value)
        if code is not None:
            lines = [line for _, _, line in code.co_lines() if line] if hasattr(code, "co_lines") else []
            for line in (code.co_firstlineno, *lines):
                if is_changed(code.co_filename, line, True):
                    return code.co_filename, line
        if depth > 2:
            return None
        if kind_of(value) is not function_kind:
            return None if is_class(value) else of_change(kind_of(value), depth + 1)
        found = [of_change(cell.cell_contents, depth + 1) for cell in value.__closure__ or () if not is_empty(cell)]
        return next((one for one in found if one), None)

    def runner() -> Any:
        for name, module in list(modules.items()):
            head = name.partition(".")[0]
            if head in ("_pytest", "pytest", "pluggy", "unittest", "builtins") or getattr(module, "__file__", "") == (
                report + ".py"
            ):
                for key, value in list(entries_of(module).items()):
                    if head == "builtins" and f" {key} " not in BUILTINS:
                        continue
                    yield (name, key), value
                    if head == "builtins" or not is_class(value):
                        continue
                    if plain(entries_of(value).get("__module__")).partition(".")[0] == head:
                        for inner, method in list(entries_of(value).items()):
                            yield (name, key, inner), method

    def hold() -> None:
        from functools import partial, partialmethod

        partials.extend((partial, partialmethod))
        held.update(runner())

    def check(full: bool) -> None:
        """Find what the change put in the place of functions of the test runner."""
        for key, value in runner() if held else ():
            if held.get(key) is not value and (key in held or key[0] != "builtins"):
                by = of_change(value)
                if by:
                    finding("runner", by, ".".join(key) + " was replaced")
        if not full:
            return
        plugins = []
        for one in all_objects():
            kind = kind_of(one)
            if kind.__name__ == "HookImpl" and kind.__module__.startswith("pluggy"):
                plugins.append(one)
            elif kind.__module__ == "_pytest.python" and kind.__name__ == "Function":
                for key, value in list(entries_of(one).items()):
                    by = of_change(value) if key in ("_obj", "runtest", "setup", "ihook") else None
                    if by:  # a decorator of the package may stand around a test
                        finding("frames" if wraps_test(value) else "runner", by, "a test was replaced")
        for one in plugins:
            by = of_change(one.function)
            if by:  # a module may be a plug-in that the command names
                counts = "frames" if kind_of(one.plugin) is kind_of(sys) else "runner"
                finding(counts, by, "a hook of the test runner was registered: " + one.function.__name__)
        for name in tests:
            module = next((one for one in list(modules.values()) if getattr(one, "__file__", None) == name), None)
            for key, value in list(entries_of(module).items()) if module is not None else ():
                by = of_change(value) if key.startswith("test") else None
                if by:
                    finding("frames" if wraps_test(value) else "runner", by, key + " was replaced")
                by = of_change(value) if key.startswith("pytest_") else None
                if by:
                    finding("frames", by, key + " stands in a test module")
                own = is_class(value) and place_of(getattr(module, "__file__", "")) == "test"
                for inner, method in list(entries_of(value).items()) if own else ():
                    by = of_change(method) if inner.startswith(OVERRIDDEN) else None
                    if by:
                        finding("frames", by, inner + " stands in a class of tests")

    def wraps_test(value: Any, depth: int = 0) -> bool:
        """Return True if a function was made around one of a test file, as decorators do."""
        if kind_of(value) in (bound_kind, classmethod, staticmethod):
            value = value.__func__
        if kind_of(value) is not function_kind:
            return False
        if place_of(value.__code__.co_filename) == "test":
            return True
        cells = value.__closure__ or ()
        inner = [value.__dict__.get("__wrapped__")]
        inner += [cell.cell_contents for cell in cells if not is_empty(cell)]
        return depth < 3 and any(wraps_test(one, depth + 1) for one in inner if one is not None)

    def is_empty(cell: Any) -> bool:
        try:
            return cell.cell_contents is cell
        except ValueError:
            return True

    return hold, check


def watch_signals(event: str) -> None:
    """Report the handler of a signal as an event: a handler gets the frame that it interrupts."""
    module: Any = __import__("_signal")
    set_handler, audit = module.signal, sys.audit

    def signal(number: Any, handler: Any) -> Any:
        audit(event, handler)
        return set_handler(number, handler)

    signal.__doc__, signal.__module__ = set_handler.__doc__, set_handler.__module__
    module.signal = signal


def watch_threads(event: str) -> None:
    """Report the function of each new thread as an event; Python has one from 3.12 on."""
    module: Any = __import__("_thread")
    start, audit = module.start_new_thread, sys.audit

    def start_new_thread(function: Any, *args: Any, **kwargs: Any) -> Any:
        audit(event, function)
        return start(function, *args, **kwargs)

    start_new_thread.__doc__, start_new_thread.__module__ = start.__doc__, start.__module__
    module.start_new_thread = start_new_thread
    threading = sys.modules.get("threading")
    if threading is not None and getattr(threading, "_start_new_thread", None) is start:
        threading._start_new_thread = start_new_thread  # type: ignore[attr-defined]  # typeshed leaves it out


def watch_lines(linecache: Any, event: str) -> None:
    """Report each look into ``linecache.cache``, which holds what was shown of a frame, as an event with a file's name.

    The wrappers hold nothing of the hook's, because code under test can read what a function holds.
    """
    audit = sys.audit

    class Lines(dict):  # type: ignore[type-arg]  # Pythons before 3.9 have no other
        def __getitem__(self, name: Any) -> Any:
            audit(event, name)
            return dict.__getitem__(self, name)

        def get(self, name: Any, default: Any = None) -> Any:
            audit(event, name)
            return dict.get(self, name, default)

        def __iter__(self) -> Any:
            return dict.__iter__(self)

        def items(self) -> Any:
            audit(event, "")
            return dict.items(self)

        def values(self) -> Any:
            audit(event, "")
            return dict.values(self)

    linecache.cache = Lines(linecache.cache)
