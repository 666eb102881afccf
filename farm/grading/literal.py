"""Literals as they are written, made others of the same type."""

import ast
import random
import re

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
