"""A small shell for the fake sandbox: lists, ``&&``, ``||``, ``&``, subshells, redirections, variables.

It has no pipes, globs, word splitting, functions or loops. Unsupported syntax ends with status 2, as bad syntax does in
a real shell.
"""

import asyncio
import errno
import posixpath
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sandboxes.errors import PathError
from sandboxes.interface import FileKind
from sandboxes.testing.files import FakeFiles, refuse
from sandboxes.testing.programs import PROGRAMS, FakeProcess, Program, Streams

__all__ = ["NOT_FOUND", "FakeProcess", "FakeShell", "Processes", "Program", "ShellExit", "ShellSyntax", "Streams"]

NOT_FOUND = 127
SYNTAX = 2
_TOKEN = re.compile(
    r"(?P<space>[ \t]+|\\\n)|(?P<op>&&|\|\||[0-9]*>&[0-9]|[0-9]*>>|[0-9]*[<>]|[;&()\n])"
    r"|(?P<word>(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|[^\s;&|<>()'\"\\])+)"
)
_PIECE = re.compile(r"'([^']*)'|\"((?:\\.|[^\"\\])*)\"|\\(.)|([^'\"\\]+)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+|[?$!]))")
_UNKNOWN = re.compile(r"[*?`\[]|^~")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class ShellSyntax(Exception):
    pass


class ShellExit(Exception):
    """The shell ends with this status, by ``exit`` or by a signal."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Processes:
    """The processes of one fake sandbox: process id → task and process tree."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[str, asyncio.Task[int]]] = {}
        self._last = 1

    def new_pid(self) -> int:
        self._last += 1
        return self._last

    def start(self, tree: str, pid: int, work: Coroutine[Any, Any, int]) -> asyncio.Task[int]:
        task = asyncio.create_task(work)
        self._running[pid] = (tree, task)
        task.add_done_callback(lambda _: self._running.pop(pid, None))
        return task

    def find(self, pid: int) -> asyncio.Task[int] | None:
        return self._running[pid][1] if pid in self._running else None

    async def kill(self, tree: str | None = None) -> None:
        """Kill every process of ``tree`` (None: of the sandbox); on return they are dead."""
        tasks = [task for name, task in self._running.values() if tree in (None, name)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class FakeShell:
    """One interpreter with its variables and directory. ``tree`` names the processes that are killed together."""

    def __init__(
        self,
        files: FakeFiles,
        processes: Processes,
        programs: Mapping[str, Program],
        *,
        env: Mapping[str, str],
        cwd: str,
        tree: str,
    ) -> None:
        self.files = files
        self.processes = processes
        self.programs = programs
        self.env = dict(env)
        self.variables: dict[str, str] = {}
        self.cwd = cwd
        self.tree = tree
        self.pid = processes.new_pid()
        self.status = 0
        self.last_job = 0

    async def run(self, text: str, streams: Streams) -> int:
        """Run a script and return the status of its last command. Raises ShellExit if the script ends the shell."""
        try:
            tokens = tokenize(text)
            while tokens:
                self.status = await self._list(tokens, streams)
                if tokens:
                    raise ShellSyntax(f"unexpected {tokens[0]}")
        except ShellSyntax as error:
            streams.err += f"sh: syntax error: {error}\n".encode()
            self.status = SYNTAX
        return self.status

    def check_program(self, name: str) -> None:
        """Check that a program can start. Raises PathError if ``name`` or the working directory is missing."""
        if self.files.node(self.cwd).kind is not FileKind.DIRECTORY:
            raise refuse(errno.ENOTDIR, self.cwd)
        if posixpath.basename(name) not in {"sh", "bash", *PROGRAMS, *self.programs}:
            raise refuse(errno.ENOENT, name)

    async def program(self, argv: Sequence[str], streams: Streams) -> int:
        """Run one program by its name, as ``exec`` does."""
        name = posixpath.basename(argv[0])
        if name in ("sh", "bash") and len(argv) > 2 and argv[1] == "-c":
            try:
                return await self.child().run(argv[2], streams)
            except ShellExit as end:
                return end.status
        found = self.programs.get(name) or PROGRAMS.get(name)
        if found is None:
            streams.err += f"{argv[0]}: not found\n".encode()
            return NOT_FOUND
        try:
            return await found(FakeProcess(argv, self.env, self.cwd, self.files, streams))
        except PathError as error:
            streams.err += f"{name}: {error}\n".encode()
            return 1

    def child(self) -> "FakeShell":
        child = FakeShell(self.files, self.processes, self.programs, env=self.env, cwd=self.cwd, tree=self.tree)
        child.variables = dict(self.variables)
        return child

    async def _list(self, tokens: list[str], streams: Streams) -> int:
        status = self.status
        while tokens and tokens[0] != ")":
            if tokens[0] in (";", "\n"):
                tokens.pop(0)
                continue
            end = _end_of_job(tokens)
            if end is not None:
                self._background(tokens[:end], streams)
                del tokens[: end + 1]
                status = 0
            else:
                status = await self._and_or(tokens, streams)
            self.status = status
        return status

    def _background(self, tokens: list[str], streams: Streams) -> None:
        child = self.child()

        async def job() -> int:
            try:
                return await child._and_or(tokens, streams)
            except ShellExit as end:
                return end.status
            except ShellSyntax:
                return SYNTAX

        self.last_job = child.pid
        self.processes.start(self.tree, child.pid, job())

    async def _and_or(self, tokens: list[str], streams: Streams) -> int:
        status = await self._command(tokens, streams)
        while tokens and tokens[0] in ("&&", "||"):
            wanted = (tokens.pop(0) == "&&") == (status == 0)
            # A skipped command is parsed without being run.
            status = await self._command(tokens, streams) if wanted else _skip(tokens, status)
        return status

    async def _command(self, tokens: list[str], streams: Streams) -> int:
        if tokens and tokens[0] == "(":
            tokens.pop(0)
            try:
                status = await self.child()._list(tokens, streams)
            except ShellExit as end:
                status = end.status
            if not tokens or tokens.pop(0) != ")":
                raise ShellSyntax("a subshell without end")
            return status
        words, redirects = _simple(tokens)
        try:
            with_redirects, flush = self._redirect(redirects, streams)
            status = await self._simple_command([self.expand(word) for word in words], with_redirects)
            flush()
        except PathError as error:
            streams.err += f"sh: {error}\n".encode()
            return 1
        return status

    async def _simple_command(self, argv: list[str], streams: Streams) -> int:
        while argv and (assigned := _ASSIGNMENT.fullmatch(argv[0])):
            if len(argv) > 1:
                raise ShellSyntax("a variable for one command")
            self._assign(assigned[1], assigned[2])
            argv = argv[1:]
        if not argv:
            return 0
        match argv:
            case ["cd", where]:
                there = self.files.resolve(posixpath.join(self.cwd, where))
                if self.files.node(there).kind is not FileKind.DIRECTORY:
                    streams.err += f"sh: cd: {where}: Not a directory\n".encode()
                    return 1
                self.cwd = there
                return 0
            case ["pwd"]:
                streams.out += self.cwd.encode() + b"\n"
                return 0
            case ["export", *names]:
                for name, sign, value in (word.partition("=") for word in names):
                    self.env[name] = value if sign else self.variables.pop(name, "")
                return 0
            case ["exec", first, *rest]:
                raise ShellExit(await self.program([first, *rest], streams))
            case ["exit", *status]:
                raise ShellExit(int(status[0]) if status else self.status)
            case ["kill", *rest]:
                return self._kill(rest, streams)
        return await self.program(argv, streams)

    def _assign(self, name: str, value: str) -> None:
        (self.env if name in self.env else self.variables)[name] = value

    def _kill(self, arguments: Sequence[str], streams: Streams) -> int:
        signal = int(arguments[0][1:]) if arguments[0].startswith("-") else 15
        pid = int(arguments[-1])
        if pid == self.pid:
            raise ShellExit(128 + signal)
        task = self.processes.find(pid)
        if task is None:
            streams.err += f"sh: kill: ({pid}) - No such process\n".encode()
            return 1
        if signal:
            task.cancel()
        return 0

    def expand(self, word: str) -> str:
        pieces = []
        for single, double, escaped, plain in (match.groups() for match in _PIECE.finditer(word)):
            if single is not None or escaped is not None:
                pieces.append(single if single is not None else escaped)
            elif double is not None:
                pieces.append(re.sub(r'\\(["\\$`])', r"\1", self._variables(double)))
            elif _UNKNOWN.search(_VARIABLE.sub("", plain)):
                raise ShellSyntax(f"neither globs nor substitutions: {plain}")
            else:
                pieces.append(self._variables(plain))
        return "".join(pieces)

    def _variables(self, text: str) -> str:
        special = {"?": str(self.status), "$": str(self.pid), "!": str(self.last_job)}
        known = {**self.variables, **self.env, "PWD": self.cwd, **special}
        return _VARIABLE.sub(lambda match: known.get(match[1] or match[2], ""), text)

    def _redirect(self, redirects: list[tuple[str, str]], streams: Streams) -> tuple[Streams, Callable[[], None]]:
        """Return the streams of one command, and a function that writes its output files when it has ended."""
        result = replace(streams)
        writes: list[tuple[str, bytearray]] = []
        for sign, word in redirects:
            path = posixpath.join(self.cwd, self.expand(word)) if word else ""
            match sign:
                case "<":
                    result.stdin = self.files.read(path)
                case "2>&1":
                    result.err = result.out
                case ">&2" | "1>&2":
                    result.out = result.err
                case ">" | ">>" | "1>" | "1>>" | "2>" | "2>>":
                    kept = bytearray(self.files.read(path) if sign.endswith(">>") and self._is_there(path) else b"")
                    self.files.write(path, bytes(kept))
                    writes.append((path, kept))
                    if sign.startswith("2"):
                        result.err = kept
                    else:
                        result.out = kept
                case _:
                    raise ShellSyntax(f"redirection {sign}")

        def flush() -> None:
            for path, kept in writes:
                self.files.write(path, bytes(kept))

        return result, flush

    def _is_there(self, path: str) -> bool:
        try:
            self.files.node(path)
        except PathError:
            return False
        return True


def tokenize(text: str) -> list[str]:
    """Split a script into tokens; words keep their quotes. Raises ShellSyntax."""
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ShellSyntax(f"near {text[at : at + 10]!r}")
        at = match.end()
        if not match["space"]:
            tokens.append(match[0])
    return tokens


def _is_operator(token: str) -> bool:
    return bool(re.fullmatch(r"&&|\|\||[0-9]*>&[0-9]|[0-9]*>>|[0-9]*[<>]|[;&()\n]", token))


def _end_of_job(tokens: Sequence[str]) -> int | None:
    """Return the index of the ``&`` that sends the next commands to the background; None if there is none."""
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        if depth < 0 or (depth == 0 and token in (";", "\n")):
            return None
        if depth == 0 and token == "&":
            return index
    return None


def _simple(tokens: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    words: list[str] = []
    redirects: list[tuple[str, str]] = []
    while tokens and not (_is_operator(tokens[0]) and "<" not in tokens[0] and ">" not in tokens[0]):
        token = tokens.pop(0)
        if not _is_operator(token):
            words.append(token)
        elif "&" in token:
            redirects.append((token, ""))
        elif tokens and not _is_operator(tokens[0]):
            redirects.append((token, tokens.pop(0)))
        else:
            raise ShellSyntax("a redirection to nowhere")
    if not words and not redirects:
        raise ShellSyntax("a command is missing")
    if tokens and tokens[0] == "(":
        raise ShellSyntax("a parenthesis inside a command")
    return words, redirects


def _skip(tokens: list[str], status: int) -> int:
    if tokens and tokens[0] == "(":
        raise ShellSyntax("a subshell after && or ||")
    _simple(tokens)
    return status
