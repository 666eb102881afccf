"""Parser of shell scripts that returns the commands they would run; pure.

It understands quotes, heredocs, substitutions and wrappers like ``sudo``. It does not see what exists only at run time:
the values of variables, and ``eval`` of a program's output. Takes time linear in the length of any text.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

MAX_PARSED_CHARS = 16 * 1024
_MAX_DEPTH = 3

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
_HEREDOC_START = re.compile(
    r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?<![^\s;&|()`])\#.*|\(\([^()]{0,200}\)\)|<<<
    |<<(?P<dash>-?)[ \t]*(?:'(?P<single>[^']+)'|"(?P<double>[^"]+)"|(?P<escaped>\\?)(?P<plain>[^\s;&|<>()'"`\\]+))""",
    re.VERBOSE,
)
"""The start of a heredoc on a line; quoted texts, comments and arithmetic match first and start none."""
_ASSIGNS = re.compile(r"[A-Za-z_]\w*\+?=")

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_KEYWORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "coproc"})
_WRAPPERS = frozenset(
    {
        *("sudo", "env", "nohup", "timeout", "nice", "ionice", "exec", "command", "builtin", "xargs", "stdbuf"),
        *("setsid", "busybox"),
    }
)
_VALUE_OPTIONS = {
    "sudo": ("-u", "-g", "-p", "-h", "-C"),
    "env": ("-u", "-C"),
    "timeout": ("-s",),
    "xargs": ("-I", "-d", "-a"),
}
"""Options of wrappers that are followed by a value."""
_PRINTERS = frozenset({"echo", "printf"})


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One command: the program's name, its unquoted arguments, and the files of its redirections.

    ``path``: the program as it is written in the script.
    """

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
        redirects = (*(f"< {path}" for path in self.reads), *(f"> {path}" for path in self.writes))
        return " ".join((self.path or self.program, *self.words, *redirects))


@dataclass(slots=True)
class Script:
    """The commands of a script. ``code``: Python code that it runs with ``-c``, from a heredoc or a pipe."""

    commands: list[SimpleCommand] = field(default_factory=list)
    code: list[str] = field(default_factory=list)


def parse_script(text: str, max_chars: int = MAX_PARSED_CHARS) -> Script:
    """Parse a shell script, up to ``max_chars`` and MAX_PARSED_CHARS characters."""
    script = Script()
    _parse(text[: min(max_chars, MAX_PARSED_CHARS)], script, _MAX_DEPTH)
    return script


def parse_argv(argv: Sequence[str], max_chars: int = MAX_PARSED_CHARS) -> Script:
    """Parse a program with its arguments, with the same limits as ``parse_script``."""
    script = Script()
    words, chars_left = [], min(max_chars, MAX_PARSED_CHARS)
    for word in argv:
        words.append(word[:chars_left])
        chars_left -= len(words[-1])
    _add_command(words, _Redirects(), script, _MAX_DEPTH)
    return script


@dataclass(slots=True)
class _Redirects:
    """The redirections of a command: files it writes and reads, and texts on its standard input."""

    writes: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def add(self, redirect: str, word: str) -> None:
        if redirect == "<<<":
            self.inputs.append(word)
        elif ">" in redirect:
            self.writes.append(word)
        elif redirect.endswith("<"):
            self.reads.append(word)


def _parse(text: str, script: Script, depth: int) -> None:
    if depth <= 0:
        return
    plain, heredocs = _without_heredocs(text)
    before = len(script.commands)
    words: list[str] = []
    redirects = _Redirects()
    target: str | None = None
    for kind, raw in _tokens(plain):
        if kind == "redirect":
            target = raw
        elif kind in ("word", "odd"):
            if target is None:
                words.append(raw)
            elif not raw.startswith("&"):
                redirects.add(target, unquoted(raw))
            target = None
            for inner in _INNER.finditer(raw) if raw[:1] != "'" else ():
                _parse(inner[1] or inner[2] or "", script, depth - 1)
        elif kind == "end":
            command = _add_command([unquoted(word) for word in words], redirects, script, depth)
            words, redirects, target = [], _Redirects(), None
            if raw == "|" and command is not None and command.program in _PRINTERS:
                redirects.inputs.append(" ".join(command.words).replace("\\n", "\n"))
    _add_command([unquoted(word) for word in words], redirects, script, depth)
    programs = {command.program for command in script.commands[before:]}
    for body, expanded in heredocs:
        if programs & SHELLS:
            _parse(body, script, depth - 1)
        elif any(program.startswith("python") for program in programs):
            script.code.append(body)
        for inner in _INNER.finditer(body) if expanded else ():
            _parse(inner[1] or inner[2] or "", script, depth - 1)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for token in _TOKEN.finditer(text):
        if token.lastgroup != "comment":
            yield token.lastgroup or "", token[0]


def _without_heredocs(text: str) -> tuple[str, list[tuple[str, bool]]]:
    """Return a text without its heredocs, and each heredoc's body with True if the shell expands it."""
    if "<<" not in text:
        return text, []
    kept_lines: list[str] = []
    bodies: list[tuple[str, bool]] = []
    lines = iter(text.split("\n"))
    for line in lines:
        kept_lines.append(line)
        for opened in list(_HEREDOC_START.finditer(line)):
            end = opened["single"] or opened["double"] or opened["plain"]
            if end is None:
                continue
            body = []
            for inside in lines:
                if (inside.lstrip("\t") if opened["dash"] else inside) == end:
                    break
                body.append(inside)
            bodies.append(("\n".join(body), bool(opened["plain"]) and not opened["escaped"]))
    return "\n".join(kept_lines), bodies


def unquoted(word: str) -> str:
    """Return a word without its quotes and escapes; variables are not expanded."""
    return "".join(
        single or _ESCAPED.sub(r"\1", double or "") or escaped or plain or odd
        for single, double, escaped, plain, odd in _PIECE.findall(word)
    )


def _add_command(words: Sequence[str], redirects: _Redirects, script: Script, depth: int) -> SimpleCommand | None:
    rest = list(_skip_wrappers(words))
    if not rest:
        if redirects.writes or redirects.reads:
            script.commands.append(SimpleCommand("", (), tuple(redirects.writes), tuple(redirects.reads)))
        return None
    program = posixpath.basename(rest[0])
    command = SimpleCommand(program, tuple(rest[1:]), tuple(redirects.writes), tuple(redirects.reads), rest[0])
    script.commands.append(command)
    code = _code_option(command.words)
    if program in SHELLS:
        for text in redirects.inputs if code is None else [code]:
            _parse(text, script, depth - 1)
    elif program == "eval":
        _parse(" ".join(command.words), script, depth - 1)
    elif program.startswith("python"):
        script.code += redirects.inputs if code is None else [code]
    elif program == "find" and depth > 0:
        at = next((at for at, word in enumerate(rest) if word in ("-exec", "-execdir")), len(rest))
        _add_command(rest[at + 1 :], _Redirects(), script, depth - 1)
    return command


def _skip_wrappers(words: Sequence[str]) -> Sequence[str]:
    at = 0
    wrapped = ""
    while at < len(words):
        word = words[at]
        name = posixpath.basename(word)
        skips = (
            bool(_ASSIGNS.match(word))
            or name in _KEYWORDS
            or name in _WRAPPERS
            or (wrapped and word.startswith("-"))
            or (at > 0 and words[at - 1] in _VALUE_OPTIONS.get(wrapped, ()))
            or (wrapped in ("timeout", "nice", "ionice", "xargs") and word[:1].isdigit())
        )
        if not skips:
            break
        wrapped = name if name in _WRAPPERS else wrapped
        at += 1
    return words[at:]


def _code_option(words: Sequence[str]) -> str | None:
    for option, value in pairwise(words):
        if not option.startswith("-"):
            return None
        if re.fullmatch(r"-[a-zA-Z]*c", option):
            return value
    return None
