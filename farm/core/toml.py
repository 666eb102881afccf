"""TOML that a stranger wrote, read in time that grows with its size alone."""

import re
import tomllib
from typing import Any

from farm.core.nesting_limit import within_depth

MAX_PARTS = 100
_TOO_MANY_PARTS = re.compile(
    r"""(?<![\w\\-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)""" + f"{{{MAX_PARTS}}}"
)
"""A key of so many parts costs ``tomllib`` as many steps on each line below it."""


def read_toml(content: bytes) -> dict[str, Any]:
    """Parse TOML. Raise TooDeep, and ValueError for no TOML or a key of more than MAX_PARTS parts."""
    text = content.decode()
    if _TOO_MANY_PARTS.search(text):
        raise ValueError(f"a key of more than {MAX_PARTS} parts")
    document: dict[str, Any] = within_depth(lambda: tomllib.loads(text))
    return document
