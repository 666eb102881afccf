"""Parsing of untrusted TOML in time linear in its size."""

import re
import tomllib
from functools import lru_cache
from typing import Any

from farm.core.nesting_limit import within_depth

MAX_PARTS = 100
_PART = r"""(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""


@lru_cache(maxsize=8)
def _too_many_parts(most: int) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w\\-]){_PART}{{{most}}}")


def read_toml(content: bytes, most_parts: int = MAX_PARTS) -> dict[str, Any]:
    """Parse TOML.

    Raises TooDeep, and ValueError if the content is not TOML or a key has more than ``most_parts`` parts: ``tomllib``
    takes one step per part for each line below such a key.
    """
    text = content.decode()
    if _too_many_parts(most_parts).search(text):
        raise ValueError(f"a key has more than {most_parts} parts")
    document: dict[str, Any] = within_depth(lambda: tomllib.loads(text))
    return document
