"""Report whether an edit broke the syntax of a file; a broken file is written all the same.

Python and shell are checked inside the sandbox, by the interpreter that will run the file: the grammar depends on its
version, and a hostile source can attack only a parser inside its own sandbox. JSON and TOML are parsed in this process,
by parsers that recurse no deeper than Python allows; TOML in a thread.
"""

import asyncio
import json
import posixpath
import tomllib
from collections.abc import Callable

from sandboxes.interface import Sandbox
from sandboxes.tools.rendering import printed

MOST_CHARS = 512 * 1024
MOST_TOML_CHARS = 64 * 1024
"""Maximum size of a TOML file that is checked: its parser is slow."""
MOST_TOML_DOTS = 100
"""Maximum dots in a line: the parser takes as many steps for each line below a key of so many parts."""
TIMEOUT_S = 5.0
_SYNTAX_ERROR_EXIT = 7
_LONGEST = 300
_PYTHON = f"""
import sys
try:
    compile(sys.stdin.buffer.read(), "it", "exec", dont_inherit=True)
except SyntaxError as error:
    print("line %s: %s" % (error.lineno, error.msg))
    sys.exit({_SYNTAX_ERROR_EXIT})
"""
_SHELL = "/.farm/bin/bash"
_SHELL_SYNTAX_ERROR_EXIT = 2


async def new_syntax_error(sandbox: Sandbox, path: str, before: str | None, after: str) -> str | None:
    """Return the syntax error of ``after`` if ``before`` had none; None if there is no new error or it cannot be
    checked.

    ``before`` is None if the file is new.
    """
    error = await _syntax_error(sandbox, path, after)
    if error is None or before is None or await _syntax_error(sandbox, path, before) is None:
        return error
    return None


async def _syntax_error(sandbox: Sandbox, path: str, text: str) -> str | None:
    if len(text) > MOST_CHARS:
        return None
    match posixpath.splitext(path)[1]:
        case ".py" | ".pyi":
            return await _run_checker(
                sandbox, ("python3", "-I", "-S", "-W", "ignore", "-c", _PYTHON), text, _SYNTAX_ERROR_EXIT
            )
        case ".sh" | ".bash":
            return await _run_checker(sandbox, (_SHELL, "-n"), text, _SHELL_SYNTAX_ERROR_EXIT)
        case ".json":
            return _parse_error(_json, text)
        case ".toml" if len(text) <= MOST_TOML_CHARS and _most_dots(text) <= MOST_TOML_DOTS:
            return await asyncio.to_thread(_parse_error, tomllib.loads, text)
        case _:
            return None


async def _run_checker(sandbox: Sandbox, argv: tuple[str, ...], text: str, error_exit: int) -> str | None:
    """Run a checker on ``text`` and return the first line of its output if its exit code is ``faulty``."""
    outcome = await sandbox.exec(
        argv,
        stdin=text.encode("utf-8", "surrogateescape"),
        timeout_s=TIMEOUT_S,
        output_limit=4 * _LONGEST,
        merge_stderr=True,
        login=True,
    )
    output = printed(outcome.stdout.head).strip().removeprefix(f"{_SHELL}: ")
    return output.splitlines()[0][:_LONGEST] if output and outcome.exit_code == error_exit else None


def _most_dots(text: str) -> int:
    return max(line.count(".") for line in text.split("\n"))


def _json(text: str) -> object:
    return json.loads(text, parse_int=str)  # numbers of any length are JSON


def _parse_error(parse: Callable[[str], object], text: str) -> str | None:
    try:
        parse(text.removeprefix("\ufeff"))
    except (RecursionError, MemoryError):
        return None
    except ValueError as error:
        return str(error).encode("utf-8", "backslashreplace").decode()[:_LONGEST]
    return None
