"""Find what a change put into the standard library, and name what of it can do without an event; in the sandbox, as
part of ``tripwire_inside``."""

import sys
import time
from typing import Any

from farm.grading.tripwire.watches import plain, watch_calls

SHARE = 50
"""One part of so many of the time of the tests may be spent on this."""
SET_BY_PROGRAMS = frozenset({("warnings", "showwarning"), ("os", "environ", "data")})
"""What the documentation of Python tells programs to replace, and what holds no function."""

UNWATCHED_MODULES = (
    " readline ctypes _ctypes _cffi_backend _testcapi _testinternalcapi _xxsubinterpreters _interpreters "
)
"""Modules that read files or memory, or run code, without an event for each."""
MEMORY = "dlopen dlsym string_at wstring_at PyObj_FromPtr call_function cdata cdata/buffer addressof"
"""Events of ctypes by which code gets at memory."""
OTHERS_ARE_PUBLIC = sys.version_info >= (3, 14)
"""True if the library offers second interpreters to programs, so that honest code may make one."""


def watch_memory(event: str) -> bool:
    """Report each use of the functions of ctypes that have no event; return False as long as they are not there."""
    module: Any = sys.modules.get("ctypes")
    if not hasattr(module, "_cast"):
        return False
    for name in ("_cast", "memmove", "memset"):
        watch_calls(event, "ctypes", name, "")
    return True


def follow_library(stdlib: str, of_change: Any, finding: Any) -> Any:
    """Return a function that finds functions of the change in modules and classes of the library and in ``os.environ``.

    ``of_change`` gives the line of the change that made a value. Without ``full`` the function does nothing if it took
    more than its share of the time.
    """
    modules, kind_of, entries_of, clock = sys.modules, type, vars, time.perf_counter
    function_kind = type(follow_library)
    built_in = frozenset(sys.builtin_module_names) - {"sys", "builtins"}
    samples: Any = ("", b"", 0, 0.0, True, None, (), [], {}, set(), frozenset(), sys, len, str.join, str, int.real)
    dull = {type(one) for one in samples} | {type(object.__init__), type(dict.fromkeys), type(vars(str)["maketrans"])}
    dull -= {type}
    slots = type(vars(Slotted)["slot"])
    clean: Any = set()
    spent, begun = [0.0], clock()

    def is_library(name: Any, module: Any) -> bool:
        if name in built_in:
            return True
        path = plain(entries_of(module).get("__file__")) if kind_of(module) is kind_of(sys) else ""
        head = plain(name).partition(".")[0]
        return path.startswith(stdlib + "/") and "-packages/" not in path and head != "unittest"

    def is_own(value: Any) -> bool:
        """Return True for a function of the library that holds no other."""
        if kind_of(value) is not function_kind or value.__closure__:
            return False
        name = value.__code__.co_filename
        if name not in clean and name.startswith((stdlib + "/", "<frozen ")) and "-packages/" not in name:
            clean.add(name)
        return name in clean

    def look_at(key: Any, value: Any) -> None:
        kind = kind_of(value)
        if kind in dull or kind is slots or is_own(value) or key in SET_BY_PROGRAMS:
            return
        by = of_change(value)
        if by:
            finding("library", by, ".".join(key) + " was replaced")

    def look_over() -> None:
        libraries = {name for name, module in list(modules.items()) if is_library(name, module)}
        for name in libraries:
            for key, value in list(entries_of(modules[name]).items() if name in modules else ()):
                if type not in kind_of(value).__mro__:
                    look_at((name, key), value)
                elif plain(entries_of(value).get("__module__")) == name:
                    for inner, method in list(entries_of(value).items()):
                        look_at((name, key, inner), method)
                elif plain(entries_of(value).get("__module__")) not in libraries:
                    look_at((name, key), value)
        for key, value in list(entries_of(entries_of(modules["os"])["environ"]).items()):
            look_at(("os", "environ", key), value)

    def check_library(full: bool) -> None:
        now = clock()
        if full or spent[0] * SHARE <= now - begun:
            look_over()
            spent[0] += clock() - now

    return check_library


class Slotted:
    """Has a slot, whose kind is of use."""

    __slots__ = ("slot",)
