"""Matching of paths with patterns from a task in time linear in pattern and path.

RE2 matches in linear time for any pattern; Python's ``re`` may take exponential time.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import re2
from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

_re2: Any = re2
"""``re2`` as Any, because the package has no types."""
MAX_PATTERNS = 200
MAX_PATTERN_CHARS = 500
MAX_CHARS = 16 * 1024
_MEMORY_BYTES = 1024 * 1024
"""Memory for the states of one pattern; RE2 keeps fewer states if they do not fit."""


class GitignorePatterns:
    """The patterns of a ``.gitignore`` file. The constructor raises ValueError if a line is not a pattern."""

    def __init__(self, lines: Iterable[str]) -> None:
        try:
            self._spec = GitIgnoreSpec.from_lines(_Re2Pattern, tuple(lines), backend="simple")
        except re.error as error:  # raised by pathspec, which also compiles each pattern
            raise ValueError(f"not a pattern ({error})") from None

    def match(self, path: str) -> bool:
        """Return True if the path matches as a file or as a directory."""
        plain = path.encode(errors="replace").decode().replace("\n", "?")
        return bool(self._spec.match_file(plain)) or bool(self._spec.match_file(f"{plain}/"))


class TarPatterns:
    """Patterns with the rules of ``tar --exclude``: ``*`` also matches slashes.

    The constructor raises ValueError if a pattern is invalid.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._compiled = [_compile(f"(?s)(?:^|/)(?:{_wildcards_to_regex(pattern)})(?:/|$)") for pattern in patterns]

    def match(self, path: str) -> bool:
        """Return True if a pattern matches a sequence of whole names in the path."""
        plain = path.encode(errors="replace").decode()
        return any(compiled.search(plain) for compiled in self._compiled)


class _Re2Pattern(GitIgnoreSpecPattern):
    """A gitignore pattern that RE2 matches."""

    def __init__(self, pattern: Any, include: bool | None = None) -> None:
        super().__init__(pattern, include)
        if self.regex is not None:
            self.regex = _compile(self.regex.pattern)


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise ValueError, which names the limit, if there are too many patterns or one is too long."""
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"there are more than {MAX_PATTERNS} patterns")
    for pattern in patterns:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise ValueError(f"{pattern[:50]!r}… has more than {MAX_PATTERN_CHARS} characters")
    if sum(map(len, patterns)) > MAX_CHARS:
        raise ValueError(f"the patterns together have more than {MAX_CHARS} characters")


def _compile(expression: str) -> Any:
    options = _re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES
    try:
        return _re2.compile(expression, options)
    except _re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"not a pattern ({text[:200]})") from None


def _wildcards_to_regex(pattern: str) -> str:
    """Return the regular expression for a shell pattern."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        end = pattern.find("]", at + 2 + (pattern[at + 1 : at + 2] == "!")) if char == "[" else -1
        if char == "*":
            parts.append(".*")
        elif char == "?":
            parts.append(".")
        elif end > 0:
            inside = pattern[at + 1 : end]
            negated = inside.startswith("!")
            escaped = inside[negated:].replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]").replace("^", r"\^")
            parts.append(f"[{'^' * negated}{escaped}]")
            at = end
        else:
            parts.append(_re2.escape(char))
        at += 1
    return "".join(parts)
