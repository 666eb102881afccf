"""A limit on how deeply parsed data may be nested, counted by the farm itself.

Python's own limit depends on its version and on how much of the stack is in use, so it decides differently from place
to place. Data within ``MAX_DEPTH`` can be walked, printed and compared by recursive code everywhere.
"""

import json
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 100
"""Levels of lists and objects: ``[1]`` has one. Data of an honest task or endpoint has fewer than ten."""


class TooDeep(ValueError):
    """Data that is nested too deeply."""

    def __init__(self) -> None:
        super().__init__(f"nested too deeply: more than {MAX_DEPTH} levels")


def check_depth(value: Any) -> None:
    """Raise TooDeep if lists and dicts are nested deeper than ``MAX_DEPTH``; a value that contains itself is."""
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if not isinstance(item, (list, dict)):
            continue
        if depth > MAX_DEPTH:
            raise TooDeep
        children = item if isinstance(item, list) else item.values()
        waiting.extend((child, depth + 1) for child in children if isinstance(child, (list, dict)))


def within_depth(parse: Callable[[], Any]) -> Any:
    """Return what ``parse`` returns. Raise TooDeep, and what ``parse`` raises."""
    try:
        value = parse()
    except RecursionError:  # a parser that is recursive itself gave up, at a depth far beyond MAX_DEPTH
        raise TooDeep from None
    check_depth(value)
    return value


def read_json(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON. Raise ValueError if ``text`` is not JSON, and TooDeep.

    ``parse_constant`` is called with NaN and the infinities, as in ``json.loads``.
    """
    return within_depth(lambda: json.loads(text, parse_constant=parse_constant))
