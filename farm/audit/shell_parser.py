"""A shell script read for what it would run; pure, and no more than a reading.

What is built at run time is not seen: variables, ``eval`` of what a program prints. Quotes are: a word in quotes that
names a command is no command. Takes time linear in the length, whatever the text.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

MOST_CHARS = 16 * 1024
_DEPTH = 3

_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|\\\n)
    |(?P<comment>(?<![^\s;&|()`])\#[^\n]*)
    |(?P<redirect>&>>|&>|\d*(?:>>|>\||>&|<<<|<<-?|<&|<>|>|<))
    |(?P<end>\n|;;|;|&&|\|\||\|&|\||&|\$\(|\(|\)|`)
    |(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|\$(?!\()|[^\s;&|()<>'"\\`$])+)
    |(?P<odd>.)""",
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)|([^'"\\]+)|(.)""", re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\$`\n])')
_INNER = re.compile(r"\$\(([^()]*)\)|`([^`]*)`")
_HEREDOC = re.compile(
    r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?<![^\s;&|()`])\#.*|\(\([^()]{0,200}\)\)|<<<
    |<<(?P<dash>-?)[ \t]*(?:'(?P<single>[^']+)'|"(?P<double>[^"]+)"|(?P<escaped>\\?)(?P<plain>[^\s;&|<>()'"`\\]+))""",
    re.VERBOSE,
)
"""On one line; what is in quotes, a comment or arithmetic opens none."""
_ASSIGNS = re.compile(r"[A-Za-z_]\w*\+?=")

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_WORDS_BEFORE = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "coproc"})
_WRAPPERS = frozenset(
    {
        *("sudo", "env", "nohup", "timeout", "nice", "ionice", "exec", "command", "builtin", "xargs", "stdbuf"),
        *("setsid", "busybox"),
    }
)
_VALUED = {"sudo": ("-u", "-g", "-p", "-h", "-C"), "env": ("-u", "-C"), "timeout": ("-s",), "xargs": ("-I", "-d", "-a")}
"""Options of wrappers that are followed by a value."""
_SAYS = frozenset({"echo", "printf"})


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One command: its program without a path, its other words, unquoted, and the files that it is redirected into and
    from. ``path``: the program as it was written."""

    program: str
    words: tuple[str, ...]
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    path: str = ""

    @property
    def operands(self) -> tuple[str, ...]:
        return tuple(word for word in self.words if not word.startswith("-"))

    @property
    def text(self) -> str:
        files = (*(f"< {path}" for path in self.reads), *(f"> {path}" for path in self.writes))
        return " ".join((self.path or self.program, *self.words, *files))


@dataclass(slots=True)
class Script:
    """``code``: Python that is run on the way, given with ``-c`` or as a heredoc."""

    commands: list[SimpleCommand] = field(default_factory=list)
    code: list[str] = field(default_factory=list)


def read_script(text: str, most: int = MOST_CHARS) -> Script:
    """What is past ``most``, and MOST_CHARS, is not read."""
    found = Script()
    _read(text[: min(most, MOST_CHARS)], found, _DEPTH)
    return found


def read_argv(argv: Sequence[str], most: int = MOST_CHARS) -> Script:
    """The same of one program with its arguments."""
    found = Script()
    words, room = [], min(most, MOST_CHARS)
    for word in argv:
        words.append(word[:room])
        room -= len(words[-1])
    _take(words, _Files(), found, _DEPTH)
    return found


@dataclass(slots=True)
class _Files:
    """What a command is redirected into and from, and what it is given to read."""

    writes: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)

    def add(self, redirect: str, word: str) -> None:
        if redirect == "<<<":
            self.given.append(word)
        elif ">" in redirect:
            self.writes.append(word)
        elif redirect.endswith("<"):
            self.reads.append(word)


def _read(text: str, found: Script, depth: int) -> None:
    if depth <= 0:
        return
    plain, heredocs = _without_heredocs(text)
    before = len(found.commands)
    words: list[str] = []
    files = _Files()
    target: str | None = None
    for kind, raw in _tokens(plain):
        if kind == "redirect":
            target = raw
        elif kind in ("word", "odd"):
            if target is None:
                words.append(raw)
            elif not raw.startswith("&"):
                files.add(target, unquoted(raw))
            target = None
            for inner in _INNER.finditer(raw) if raw[:1] != "'" else ():
                _read(inner[1] or inner[2] or "", found, depth - 1)
        elif kind == "end":
            taken = _take([unquoted(word) for word in words], files, found, depth)
            words, files, target = [], _Files(), None
            if raw == "|" and taken is not None and taken.program in _SAYS:
                files.given.append(" ".join(taken.words).replace("\\n", "\n"))
    _take([unquoted(word) for word in words], files, found, depth)
    programs = {command.program for command in found.commands[before:]}
    for body, expanded in heredocs:
        if programs & SHELLS:
            _read(body, found, depth - 1)
        elif any(program.startswith("python") for program in programs):
            found.code.append(body)
        for inner in _INNER.finditer(body) if expanded else ():
            _read(inner[1] or inner[2] or "", found, depth - 1)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for token in _TOKEN.finditer(text):
        if token.lastgroup != "comment":
            yield token.lastgroup or "", token[0]


def _without_heredocs(text: str) -> tuple[str, list[tuple[str, bool]]]:
    """Each with whether what it holds is expanded."""
    if "<<" not in text:
        return text, []
    kept: list[str] = []
    bodies: list[tuple[str, bool]] = []
    lines = iter(text.split("\n"))
    for line in lines:
        kept.append(line)
        for opened in list(_HEREDOC.finditer(line)):
            end = opened["single"] or opened["double"] or opened["plain"]
            if end is None:
                continue
            body = []
            for inside in lines:
                if (inside.lstrip("\t") if opened["dash"] else inside) == end:
                    break
                body.append(inside)
            bodies.append(("\n".join(body), bool(opened["plain"]) and not opened["escaped"]))
    return "\n".join(kept), bodies


def unquoted(word: str) -> str:
    """As the shell passes it on, but for what it expands."""
    return "".join(
        single or _ESCAPED.sub(r"\1", double or "") or escaped or plain or odd
        for single, double, escaped, plain, odd in _PIECE.findall(word)
    )


def _take(words: Sequence[str], files: _Files, found: Script, depth: int) -> SimpleCommand | None:
    rest = list(_program_first(words))
    if not rest:
        if files.writes or files.reads:
            found.commands.append(SimpleCommand("", (), tuple(files.writes), tuple(files.reads)))
        return None
    program = posixpath.basename(rest[0])
    command = SimpleCommand(program, tuple(rest[1:]), tuple(files.writes), tuple(files.reads), rest[0])
    found.commands.append(command)
    given = _after_c(command.words)
    if program in SHELLS:
        for text in files.given if given is None else [given]:
            _read(text, found, depth - 1)
    elif program == "eval":
        _read(" ".join(command.words), found, depth - 1)
    elif program.startswith("python"):
        found.code += files.given if given is None else [given]
    elif program == "find" and depth > 0:
        at = next((at for at, word in enumerate(rest) if word in ("-exec", "-execdir")), len(rest))
        _take(rest[at + 1 :], _Files(), found, depth - 1)
    return command


def _program_first(words: Sequence[str]) -> Sequence[str]:
    at = 0
    wrapped = ""
    while at < len(words):
        word = words[at]
        name = posixpath.basename(word)
        skips = (
            bool(_ASSIGNS.match(word))
            or name in _WORDS_BEFORE
            or name in _WRAPPERS
            or (wrapped and word.startswith("-"))
            or (at > 0 and words[at - 1] in _VALUED.get(wrapped, ()))
            or (wrapped in ("timeout", "nice", "ionice", "xargs") and word[:1].isdigit())
        )
        if not skips:
            break
        wrapped = name if name in _WRAPPERS else wrapped
        at += 1
    return words[at:]


def _after_c(words: Sequence[str]) -> str | None:
    for option, value in pairwise(words):
        if not option.startswith("-"):
            return None
        if re.fullmatch(r"-[a-zA-Z]*c", option):
            return value
    return None
