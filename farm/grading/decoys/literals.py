"""Literals as they are written, made others of the same type.

The form of the new literal does not show that it is new. It has as many digits, and it occurs in its file about as
often as the old one did.
"""

import ast
import random
import re
from collections.abc import Iterator, Mapping

from farm.grading.decoys.python_source import NOUNS, STRING_WORD, SourceText, parse_tests

_ESCAPE = re.compile(rb"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|[0-7]{1,3}|.)", re.DOTALL)
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_ANY_LETTER = _LETTERS + _LETTERS.upper()
_DIGITS = b"123456789"
_FRESH_WORDS = tuple(noun.encode() for noun in NOUNS)


def differ(old: object, new: bytes) -> bool:
    """Return True if ``new`` is the text of a literal of the same type as ``old`` and of another value."""
    made = parse_tests(b"(" + new + b")")
    match made.body[0] if made is not None else None:
        case ast.Expr(value=ast.Constant(value=value)):
            return type(value) is type(old) and value != old
    return False


def other_number(old: bytes, text: SourceText | None, rng: random.Random) -> bytes | None:
    """Return another number with as many digits and as many zeros at its end; None for a form like ``0x1f``.

    It is no multiple of the old one, so that a test that ran twice does not explain it.
    """
    whole, dot, rest = old.partition(b".")
    if not re.fullmatch(rb"[0-9]{1,12}", whole) or (dot and not re.fullmatch(rb"[0-9]{1,12}", rest)):
        return None
    value = int(whole)
    stem = whole.rstrip(b"0") or b"0"
    zeros = len(whole) - len(stem) if value else 0
    least, most = (10 ** (len(stem) - 1) if len(stem) > 1 else 2), 10 ** len(stem) - 1
    made = {rng.randint(least, most) * 10**zeros for _ in range(40)}
    fit = [one for one in sorted(made) if one != value and (value < 2 or one % value)] or [value + 1]
    numbers = [str(one).encode() for one in fit]
    if text is not None and not dot:
        known = [one for one in text.numbers if len(one) <= len(whole) + 1 and not one.startswith(b"0")]
        numbers += [one for one in known if int(one) != value and (value < 2 or int(one) % value)]
        numbers = _as_frequent(numbers, text.numbers[old], text.numbers)
    return rng.choice(numbers) + dot + rest


def other_string(old: bytes, text: SourceText | None, rng: random.Random) -> bytes | None:
    """Return a string with another word, or with another letter if it has no plain word; None if it has no letter."""
    quote = re.search(rb"[\"']", old)
    if quote is None or old.count(quote[0]) not in (2, 6):  # more than one literal, or a quote within
        return None
    own = list(STRING_WORD.finditer(old, quote.end())) if b"\\" not in old else []
    if re.search(rb"[1-9]", old) and rng.random() < 0.5:
        return other_letter(old, rng, rng, digit=True)
    if text is not None and own:
        found = rng.choice(own)
        known = {word.lower() for word in STRING_WORD.findall(old)}
        words = [word for word in (*text.words, *_FRESH_WORDS) if word.lower() not in known]
        words = [word for word in words if word.islower() or not found[0].islower()]
        near = _as_frequent(words, text.words[found[0]], text.words)
        near = [word for word in near if abs(len(word) - len(found[0])) <= 3] or near
        if near:
            return old[: found.start()] + _cased(rng.choice(near), found[0]) + old[found.end() :]
    return other_letter(old, rng, rng)


def other_letter(old: bytes, place: random.Random, rng: random.Random, *, digit: bool = False) -> bytes | None:
    """Return a string with one letter changed, which ``place`` chooses; one digit if ``digit`` or without letters."""
    quote = re.search(rb"[\"']", old)
    if quote is None or old.count(quote[0]) not in (2, 6):
        return None
    hidden = {at for escape in _ESCAPE.finditer(old) for at in range(*escape.span())}
    open_to = [at for at in range(quote.end(), len(old)) if at not in hidden]
    letters = _LETTERS if not digit and any(old[at] in _ANY_LETTER for at in open_to) else _DIGITS
    places = [at for at in open_to if old[at] in letters + letters.upper()]
    if not places:
        return None
    at = place.choice(places)
    letter = old[at : at + 1]
    other = rng.choice([chr(other) for other in letters if other != letter.lower()[0]]).encode()
    return old[:at] + (other.upper() if letter.isupper() else other) + old[at + 1 :]


def _as_frequent(candidates: list[bytes], old: int, counts: Mapping[bytes, int]) -> list[bytes]:
    """Return those that occur in the file about as often, once they are written in the place of the old one."""
    off = {one: abs(counts.get(one, 0) + 1 - max(old, 1)) for one in candidates}
    least = min(off.values(), default=0)
    return [one for one in dict.fromkeys(candidates) if off[one] == least]


def _cased(word: bytes, like: bytes) -> bytes:
    if like.isupper():
        return word.upper()
    return word.capitalize() if like[:1].isupper() else word


def is_literal(node: ast.expr) -> bool:
    """Return True if Python's ``literal_eval`` takes an expression."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def leaves_of(node: ast.expr) -> Iterator[ast.Constant]:
    """Yield the numbers and strings of a literal; of a dict, those of its values."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=str() | bytes() | int() | float()):
            yield node
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) | ast.Dict(values=parts):
            for part in parts:
                yield from leaves_of(part)
        case ast.UnaryOp(operand=operand):
            yield from leaves_of(operand)
