"""Parsing of untrusted TOML in time linear in its size."""

import re
import tomllib
from typing import Any

from farm.core.nesting_limit import within_depth

MAX_PARTS = 100
_TOO_MANY_PARTS = re.compile(
    r"""(?<![\w\\-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)""" + f"{{{MAX_PARTS}}}"
)
"""A key with more than MAX_PARTS parts; ``tomllib`` takes one step per part for each line below such a key."""


def read_toml(content: bytes) -> dict[str, Any]:
    """Parse TOML.

    Raises TooDeep, and ValueError if the content is not TOML or a key has more than MAX_PARTS parts.
    """
    text = content.decode()
    if _TOO_MANY_PARTS.search(text):
        raise ValueError(f"a key has more than {MAX_PARTS} parts")
    document: dict[str, Any] = within_depth(lambda: tomllib.loads(text))
    return document
