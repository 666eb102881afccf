"""Whether an edit broke a file's syntax: told, never a reason to refuse it.

Python and shell are judged inside the sandbox, by the interpreter that will run the file: another version of Python
has another grammar, and a source made to strike at a parser strikes at nobody else. JSON and TOML are parsed here, by
parsers that recurse no deeper than Python allows.
"""

import json
import posixpath
import tomllib
from collections.abc import Callable

from sandboxes.interface import Sandbox
from sandboxes.tools.rendering import printed

MOST_CHARS = 512 * 1024
MOST_TOML_CHARS = 64 * 1024
"""Its parser is slow, and everybody waits for it."""
MOST_TOML_DOTS = 100
"""The most in a line: a key of so many parts costs the parser as many steps on each line below it."""
TIMEOUT_S = 5.0
_FAULTY = 7
_LONGEST = 300
_PYTHON = f"""
import sys
try:
    compile(sys.stdin.buffer.read(), "it", "exec", dont_inherit=True)
except SyntaxError as error:
    print("line %s: %s" % (error.lineno, error.msg))
    sys.exit({_FAULTY})
"""
_SHELL = "/.farm/bin/bash"
_SHELL_FAULTY = 2


async def fault_brought_in(sandbox: Sandbox, path: str, before: str | None, after: str) -> str | None:
    """What is wrong with a file's syntax after an edit, where nothing was before it (None: there was no such file).

    None where all is well, and where nobody can tell.
    """
    fault = await _fault(sandbox, path, after)
    if fault is None or before is None or await _fault(sandbox, path, before) is None:
        return fault
    return None


async def _fault(sandbox: Sandbox, path: str, text: str) -> str | None:
    if len(text) > MOST_CHARS:
        return None
    match posixpath.splitext(path)[1]:
        case ".py" | ".pyi":
            return await _judged(sandbox, ("python3", "-I", "-S", "-W", "ignore", "-c", _PYTHON), text, _FAULTY)
        case ".sh" | ".bash":
            return await _judged(sandbox, (_SHELL, "-n"), text, _SHELL_FAULTY)
        case ".json":
            return _parsed(_json, text)
        case ".toml" if len(text) <= MOST_TOML_CHARS and _most_dots(text) <= MOST_TOML_DOTS:
            return _parsed(tomllib.loads, text)
        case _:
            return None


async def _judged(sandbox: Sandbox, argv: tuple[str, ...], text: str, faulty: int) -> str | None:
    """The first line that a program says of ``text``, where its exit code is ``faulty``."""
    outcome = await sandbox.exec(
        argv,
        stdin=text.encode("utf-8", "surrogateescape"),
        timeout_s=TIMEOUT_S,
        output_limit=4 * _LONGEST,
        merge_stderr=True,
        login=True,
    )
    said = printed(outcome.stdout.head).strip().removeprefix(f"{_SHELL}: ")
    return said.splitlines()[0][:_LONGEST] if said and outcome.exit_code == faulty else None


def _most_dots(text: str) -> int:
    return max(line.count(".") for line in text.split("\n"))


def _json(text: str) -> object:
    return json.loads(text, parse_int=str)  # numbers of any length are JSON


def _parsed(parse: Callable[[str], object], text: str) -> str | None:
    try:
        parse(text.removeprefix("\ufeff"))
    except (RecursionError, MemoryError):
        return None
    except ValueError as error:
        return str(error).encode("utf-8", "backslashreplace").decode()[:_LONGEST]
    return None
