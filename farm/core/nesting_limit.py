"""A limit on the nesting depth of parsed data.

Python's own recursion limit depends on its version and on the stack in use, so its result differs between callers.
Recursive code can walk, print and compare data within ``MAX_DEPTH`` anywhere.
"""

import json
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 100
"""Maximum levels of lists and objects: ``[1]`` has one. Real data of tasks and endpoints has fewer than ten."""


class TooDeep(ValueError):
    """Data that is nested too deeply."""

    def __init__(self) -> None:
        super().__init__(f"nested too deeply: more than {MAX_DEPTH} levels")


def check_depth(value: Any) -> None:
    """Raise TooDeep if lists and dicts are nested deeper than ``MAX_DEPTH``, or a value contains itself."""
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if not isinstance(item, (list, dict)):
            continue
        if depth > MAX_DEPTH:
            raise TooDeep
        children = item if isinstance(item, list) else item.values()
        pending.extend((child, depth + 1) for child in children if isinstance(child, (list, dict)))


def within_depth(parse: Callable[[], Any]) -> Any:
    """Return the value of ``parse``. Raises TooDeep if it is nested too deeply, and the exceptions of ``parse``."""
    try:
        value = parse()
    except RecursionError:  # a recursive parser stopped at a depth far beyond MAX_DEPTH
        raise TooDeep from None
    check_depth(value)
    return value


def read_json(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON. Raises ValueError if ``text`` is not JSON, and TooDeep.

    ``parse_constant`` is called with NaN and the infinities, as in ``json.loads``.
    """
    return within_depth(lambda: json.loads(text, parse_constant=parse_constant))
