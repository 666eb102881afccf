"""Match the path patterns of a task's author in time that grows with pattern and path alone.

RE2 matches them: its time is linear for every pattern, while Python's ``re`` may try every way to split a path.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import re2
from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

_re2: Any = re2
"""Without the types that the package lacks."""
MAX_PATTERNS = 200
MAX_PATTERN_CHARS = 500
MAX_CHARS = 16 * 1024
_MEMORY_BYTES = 1024 * 1024
"""Memory for the states of one pattern; RE2 keeps fewer states if they do not fit."""


class GitignorePatterns:
    """Lines of a ``.gitignore`` file. Raises ValueError for a line that is no pattern."""

    def __init__(self, lines: Iterable[str]) -> None:
        try:
            self._spec = GitIgnoreSpec.from_lines(_Re2Pattern, tuple(lines), backend="simple")
        except re.error as error:  # of pathspec, which compiles each pattern too
            raise ValueError(f"not a pattern ({error})") from None

    def match(self, path: str) -> bool:
        """Return True if the path matches as that of a file or of a directory."""
        plain = path.encode(errors="replace").decode().replace("\n", "?")
        return bool(self._spec.match_file(plain)) or bool(self._spec.match_file(f"{plain}/"))


class TarPatterns:
    """Patterns as ``tar --exclude`` reads them: ``*`` matches slashes too. Raises ValueError for one that is none."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._compiled = [_compile(f"(?s)(?:^|/)(?:{_of_wildcards(pattern)})(?:/|$)") for pattern in patterns]

    def match(self, path: str) -> bool:
        """Return True if a pattern matches the path from any name on, up to its end or to a directory above it."""
        plain = path.encode(errors="replace").decode()
        return any(compiled.search(plain) for compiled in self._compiled)


class _Re2Pattern(GitIgnoreSpecPattern):
    """A gitignore pattern that RE2 matches."""

    def __init__(self, pattern: Any, include: bool | None = None) -> None:
        super().__init__(pattern, include)
        if self.regex is not None:
            self.regex = _compile(self.regex.pattern)


def refuse_patterns(patterns: Sequence[str]) -> None:
    """Raise ValueError, which names the limit, if there are too many patterns or one is too long."""
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"more than {MAX_PATTERNS} patterns")
    for pattern in patterns:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise ValueError(f"{pattern[:50]!r}… has more than {MAX_PATTERN_CHARS} characters")
    if sum(map(len, patterns)) > MAX_CHARS:
        raise ValueError(f"patterns of more than {MAX_CHARS} characters together")


def _compile(expression: str) -> Any:
    options = _re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES
    try:
        return _re2.compile(expression, options)
    except _re2.error as error:
        reason = error.args[0] if error.args else error
        spoken = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"not a pattern ({spoken[:200]})") from None


def _of_wildcards(pattern: str) -> str:
    """The regular expression of a shell pattern."""
    made: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        end = pattern.find("]", at + 2 + (pattern[at + 1 : at + 2] == "!")) if char == "[" else -1
        if char == "*":
            made.append(".*")
        elif char == "?":
            made.append(".")
        elif end > 0:
            inside = pattern[at + 1 : end]
            negated = inside.startswith("!")
            escaped = inside[negated:].replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]").replace("^", r"\^")
            made.append(f"[{'^' * negated}{escaped}]")
            at = end
        else:
            made.append(_re2.escape(char))
        at += 1
    return "".join(made)
