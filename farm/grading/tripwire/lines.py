"""Find the line of the change that an event is by; in the sandbox, as part of ``inside``."""

import os
import posixpath
import sys
from typing import Any

from farm.grading.tripwire.watches import BoundMethod, plain

TOOLS = (
    " inspect linecache tokenize pathlib io runpy subprocess os shutil glob fnmatch codecs ast contextlib threading "
    "dis functools posixpath genericpath weakref copy tempfile pkgutil importlib fileinput traceback concurrent "
    "multiprocessing signal "
)
"""Modules of the standard library that act for their caller: what they do is the caller's doing."""
QUIET = " get_code exec_module format_exception format_exc print_exception print_exc getframeinfo _showwarnmsg "
"""Functions of libraries that read frames and source for an end of their own."""
LOADERS = " get_code exec_module load_module "
"""Functions that make a module's code in order to import it."""
LENDERS = " <lambda> currentframe set_trace get_stack _task_get_stack "
"""Functions of other libraries that give their caller a frame."""
NEAR = " other foreign workspace changed "
PACKAGE = " other foreign "
FAR = ""
"""Places whose frames end the search for the line of the change that an event is by."""


def follow_lines(settings: Any, own: str) -> Any:
    """Return the functions that tell places, lines and frames apart.

    ``own``: how names of the tripwire's own events begin. ``made``, the first of what is returned, is a set of names
    under which lines of the change compiled code.
    """
    modules, kind_of, entries_of, getcwd, normpath = sys.modules, type, vars, os.getcwd, posixpath.normpath
    function_kind, bound_kind = type(follow_lines), type(BoundMethod().method)
    home, workspace, report_home = settings["home"], settings["workspace"], posixpath.dirname(settings["report"])
    changed, tests, stdlib = dict(settings["changed"]), frozenset(settings["tests"]), posixpath.dirname(os.__file__)
    machinery: Any = modules["_frozen_importlib_external"]
    loaders = {id(one) for one in (machinery.SourceFileLoader, machinery.SourcelessFileLoader)}
    made: Any = set()
    known: Any = {}
    starters: Any = {}  # by the identity of a thread's or finalizer's object: the line of the change that made it
    kept: Any = []
    late: Any = []  # lines of the change by which functions run without a frame that is known

    def place_of(name: Any) -> Any:
        place = known.get(name)
        if place is None:
            path = name if name.startswith("<") else path_of(name)
            parts = path[len(stdlib) + 1 :].split("/") if path.startswith(stdlib + "/") else []
            if path in tests:
                place = "test"
            elif in_change(path):
                place = "changed"
            elif path.startswith("<frozen "):
                place = "tool"
            elif path.startswith("<"):
                place = "dynamic"
            elif path.startswith(workspace + "/") and "-packages/" not in path:
                place = "workspace"
            elif (parts and f" {parts[0].split('.')[0]} " in TOOLS) or "-packages/_pytest/_code/" in path:
                place = "tool"
            elif path.startswith(home + "/"):
                place = "tool"  # the functions that stand before those of other modules
            elif path.startswith((stdlib + "/", report_home + "/")) or "-packages/" in path:
                place = "other"
            else:
                place = "foreign"
            known[name] = place
        return place

    def in_change(path: Any) -> bool:
        """Return True for a file of the change and for what is in an archive or behind a link of it."""
        while path and path not in changed:
            path = path.rpartition("/")[0]
        return bool(path)

    def is_changed(name: str, line: int, foreign: bool = False) -> bool:
        """``foreign``: a file that belongs to no package counts as changed, for a change may have written it."""
        if name in made or (foreign and place_of(name) == "foreign"):
            return True
        if place_of(name) != "changed":
            return False
        ranges = changed.get(path_of(name))
        return ranges is None or holds(ranges, line)

    def holds(ranges: Any, line: int) -> bool:
        return any(first <= line <= last for first, last in ranges)

    def culprit(frame: Any, ends: str, ignored: str = "") -> Any:
        """The line of the change that the event is by: file, line and whether a test runs it; or None."""
        found, depth, only_tools = None, 0, True
        while frame is not None and depth < 400:
            code, line = frame.f_code, frame.f_lineno or 0
            place, function = place_of(code.co_filename), f" {code.co_name} "
            if place == "test":
                return found and (found[0], found[1], True)
            if found is None:
                if is_changed(code.co_filename, line):
                    found = (code.co_filename, line, False)
                elif place in ("tool", "other") and function in ignored:
                    if not asks_itself(frame):
                        return None
                    ignored = ""
                elif f" {place} " in ends and not (place == "other" and function in LENDERS):
                    return None
                elif place == "tool" and starters and function in (" _bootstrap ", " __call__ "):
                    starter = starters.get(id(frame.f_locals.get("self")))
                    if starter or function == " _bootstrap ":
                        return starter
            only_tools = only_tools and place == "tool"
            frame, depth = frame.f_back, depth + 1
        return late[0] if late and only_tools else found

    def asks_itself(frame: Any) -> bool:
        """Return True if a loader makes code for a line of the change, or is none of Python's own."""
        by, loader = frame.f_back, frame.f_locals.get("self")
        if frame.f_code.co_name != "get_code" or by is None:
            return False
        replaced = id(kind_of(loader)) not in loaders or any(callable(one) for one in entries_of(loader).values())
        return replaced or place_of(by.f_code.co_filename) != "tool"

    def runs_lines(called: Any) -> bool:
        """Return True for a function whose own frame shows whose it is."""
        return kind_of(called) is function_kind and place_of(called.__code__.co_filename) not in ("tool", "other")

    def path_of(value: Any) -> Any:
        value = plain(value)
        if not value:
            return ""
        if value.startswith("/") and "/." not in value and "//" not in value:
            return value
        return normpath(value if value.startswith("/") else getcwd() + "/" + value)

    def passes(frame: Any, part: str) -> bool:
        """Return True if a frame of a file stands between the event and the line of the change."""
        while frame is not None and not is_changed(frame.f_code.co_filename, frame.f_lineno or 0):
            if part in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False

    def started(event: str, args: Any, frame: Any) -> None:
        """Keep the line of the change by which a function runs later: in a thread, at exit, by a finalizer."""
        called, owner = args[0], None
        by = culprit(frame, NEAR)
        if by is None or runs_lines(called):
            return
        if event == own + "finalizer":
            owner = args[1]
        elif event != own + "exit" and kind_of(called) is bound_kind:
            owner = called.__self__
        if owner is None:
            late.append(by)
        else:
            starters[id(owner)] = by
            kept.append(owner)  # so that no other object gets its identity

    return made, place_of, path_of, is_changed, holds, culprit, passes, started
