"""Literals as they are written, made others of the same type."""

import ast
import random
import re
from collections.abc import Iterator, Sequence

from farm.grading.source import parse_tests

_ESCAPE = re.compile(rb"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|[0-7]{1,3}|.)", re.DOTALL)
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"


def differ(old: object, new: bytes) -> bool:
    made = parse_tests(b"(" + new + b")")
    match made.body[0] if made is not None else None:
        case ast.Expr(value=ast.Constant(value=value)):
            return type(value) is type(old) and value != old
    return False


def other_number(old: bytes, rng: random.Random) -> bytes | None:
    """A lower or a higher one, and none that a second run's state explains."""
    whole, dot, rest = old.partition(b".")
    if not re.fullmatch(rb"[0-9]{1,12}", whole) or (dot and not re.fullmatch(rb"[0-9]{1,12}", rest)):
        return None
    value, off = int(whole), (11, 89) if len(whole) > 2 else (3, 19)
    higher = [value + more for more in range(*off) if value < 2 or (value + more) % value]
    lower = [value - less for less in range(*off) if less < value]
    return str(rng.choice(rng.choice([side for side in (higher, lower) if side]))).encode() + dot + rest


def other_string(old: bytes, place: random.Random, rng: random.Random) -> bytes | None:
    quote = re.search(rb"[\"']", old)
    if quote is None or old.count(quote[0]) not in (2, 6):  # more than one literal, or a quote within
        return None
    hidden = {at for escape in _ESCAPE.finditer(old) for at in range(*escape.span())}
    letters = [at for at in range(quote.end(), len(old)) if at not in hidden and old[at : at + 1].lower() in _LETTERS]
    letters = [at for at in letters if old[at : at + 1].isalpha()]
    if not letters:
        return None
    at = place.choice(letters)
    letter = old[at : at + 1]
    others = [other for other in _LETTERS.decode() if other != letter.decode().lower()]
    other = rng.choice(others).encode()
    return old[:at] + (other.upper() if letter.isupper() else other) + old[at + 1 :]


def numbers_in(source: bytes) -> tuple[bytes, ...]:
    """Return the whole numbers that a file holds, as they are written."""
    return tuple(dict.fromkeys(re.findall(rb"(?<![\w.])[0-9]{1,6}(?![\w.])", source)))


def words_in(source: bytes) -> tuple[bytes, ...]:
    """Return the words that strings of a file hold."""
    strings = re.findall(rb"\"[^\"\n\\]*\"|'[^'\n\\]*'", source)
    return tuple(dict.fromkeys(word for text in strings for word in _WORDS.findall(text)))


_WORDS = re.compile(rb"(?<![\w{%\\])[A-Za-z]{3,}(?![\w}%])")


def number_of(old: bytes, numbers: Sequence[bytes], rng: random.Random) -> bytes | None:
    """Return one of ``numbers`` for a whole number: as far from it as ``other_number`` goes; None if there is none."""
    if not re.fullmatch(rb"[0-9]{1,12}", old):
        return None
    value, least = int(old), 11 if len(old) > 2 else 3
    fit = [
        one
        for one in numbers
        if abs(int(one) - value) >= least and (value < 2 or int(one) % value) and not one.startswith(b"0")
    ]
    return rng.choice(fit) if fit else None


def word_of(old: bytes, words: Sequence[bytes], place: random.Random, rng: random.Random) -> bytes | None:
    """Return a string with one of its words given way to one of ``words``; None if it has no plain word."""
    quote = re.search(rb"[\"']", old)
    if quote is None or b"\\" in old or old.count(quote[0]) not in (2, 6):
        return None
    own = list(_WORDS.finditer(old, quote.end()))
    if not own:
        return None
    found = place.choice(own)
    known = {word.lower() for word in _WORDS.findall(old)}
    fit = [word for word in words if word.lower() not in known and word.islower() is found[0].islower()]
    return old[: found.start()] + rng.choice(fit) + old[found.end() :] if fit else None


def is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def leaves_of(node: ast.expr) -> Iterator[ast.Constant]:
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
