"""Words of code and of questions about code, and the terms they are looked up by.

A **word** is a run of letters, digits and underscores, as written. Its **parts** are cut where case, digits or
underscores change: ``parseHTTPDate_v2`` is parse, http, date, v, 2. Its **terms** are the stems of its parts, and the
word as a whole where it has several, so that a question that names the very identifier finds it first.
"""

import re
from functools import lru_cache

LONGEST_WORD = 64
"""What is longer is encoded data, or made to cost much."""

WORDS = re.compile(r"\w+")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_OTHER_PARTS = re.compile(r"[^\W\d_]+|\d+")
"""Of words with letters beyond ASCII, whose case nothing is made of."""

_STOP = """
a an and are as at be been being but by can do does for from had has have how if in into is it its of on or return
returns self should such than that the their them then there these this to was what when where which will with you your
"""
STOP = frozenset(_STOP.split())
"""Words of questions that say nothing about the code that is looked for."""

_MANY = 1 << 16


def words(text: str) -> list[str]:
    return WORDS.findall(text)


@lru_cache(maxsize=_MANY)
def parts(word: str) -> tuple[str, ...]:
    """In lower case."""
    cut = _PARTS if word.isascii() else _OTHER_PARTS
    return tuple(part.lower() for part in cut.findall(word[:LONGEST_WORD]))


@lru_cache(maxsize=_MANY)
def terms(word: str) -> tuple[str, ...]:
    found = parts(word)
    stems = tuple(stem(part) for part in found)
    return stems if len(found) < 2 else (*stems, word[:LONGEST_WORD].strip("_").lower())


def stem(word: str) -> str:
    """What ``word`` shares with its other forms, and no more than that: ``parses``, ``parsed``, ``parsing``: pars.

    The first steps of Porter's algorithm, which are those that matter between a docstring and an identifier.
    """
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and word[-2] not in "su":
        word = word[:-1]
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base is not word and len(base) > 2 and _VOWEL.search(base):
            word = base[:-1] if base[-1] == base[-2] and base[-1] not in "lsz" else base
            break
    for ending, shorter in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) > 2:
            word = word[: -len(ending)] + shorter
            break
    if word.endswith("e") and len(word) > 3:
        word = word[:-1]
    elif word.endswith("y") and len(word) > 3:
        word = word[:-1] + "i"
    return word


_VOWEL = re.compile("[aeiouy]")
_ENDINGS = (
    ("ization", "iz"),
    ("isation", "iz"),
    ("ational", "at"),
    ("ation", "at"),
    ("ator", "at"),
    ("izer", "iz"),
    ("ise", "iz"),
    ("ness", ""),
    ("able", ""),
    ("ible", ""),
    ("ally", "al"),
    ("ly", ""),
    ("ion", ""),
    ("er", ""),
    ("or", ""),
)
