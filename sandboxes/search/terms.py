"""Split code and questions into words, and words into the terms under which they are indexed.

A **word** is a run of letters, digits and underscores, as written. Its **parts** are cut where case, digits or
underscores change: ``parseHTTPDate_v2`` is parse, http, date, v, 2. Its **terms** are the stems of its parts, and the
whole word if it has several parts, so that a question with the exact identifier ranks it first.
"""

import re
from functools import lru_cache

LONGEST_WORD = 64
"""Maximum characters of a word. Longer words are encoded data, or written to be expensive."""

WORDS = re.compile(r"\w+")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_OTHER_PARTS = re.compile(r"[^\W\d_]+|\d+")
"""Splits words with non-ASCII letters; their case is ignored."""

_STOP = """
a an and are as at be been being but by can do does for from had has have how if in into is it its of on or return
returns self should such than that the their them then there these this to was what when where which will with you your
"""
STOP = frozenset(_STOP.split())
"""Stop words: words of questions that carry no information about the code."""

_MANY = 1 << 16


def words(text: str) -> list[str]:
    return WORDS.findall(text)


@lru_cache(maxsize=_MANY)
def parts(word: str) -> tuple[str, ...]:
    """Split a word into its parts, in lower case."""
    cut = _PARTS if word.isascii() else _OTHER_PARTS
    return tuple(part.lower() for part in cut.findall(word[:LONGEST_WORD]))


@lru_cache(maxsize=_MANY)
def terms(word: str) -> tuple[str, ...]:
    """Return the terms under which a word is indexed."""
    found = parts(word)
    stems = tuple(stem(part) for part in found)
    return stems if len(found) < 2 else (*stems, word[:LONGEST_WORD].strip("_").lower())


def stem(word: str) -> str:
    """Reduce a word to the stem that it shares with its other forms: ``parses``, ``parsed``, ``parsing``: pars.

    Only the first steps of Porter's algorithm, which are the ones that matter between a docstring and an identifier.
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
