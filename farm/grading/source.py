"""Test files as Python: parsed one at a time, their functions by name, and the words they name their tests with."""

import ast
import builtins
import keyword
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

PARSED_BYTES = 1024 * 1024
PARSE_TRIES = 20
_ENOUGH = 24
_TEST = re.compile(rb"^[ \t]*(?:async +)?def +(test\w*)", re.MULTILINE)
_WORD = re.compile(r"[A-Z]?[a-z]{3,}")
_MEANS_SOMETHING = frozenset({*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "test", "tests", "self", "pytest"})

_PARSING = threading.Lock()
"""Python 3.11 counts the depth of all threads' trees together, and refuses one where another is made meanwhile.
``ast.literal_eval`` of text makes one as well, and so does ``evaluated_value`` of libcst."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

NOUNS = tuple(
    re.findall(
        r"\w+",
        """
    account address amount anchor archive balance batch border bracket branch budget buffer bundle calendar caption
    channel chapter cluster column comment counter cursor decimal default digest discount distance domain element
    entry factor field filter folder footer format fraction gradient header history indent index interval invoice
    journal keyword label ledger length locale margin marker matrix message metric number offset option order
    outline padding paragraph parcel pattern period pointer prefix quantity quarter query range ratio record region
    result row sample section segment sequence series signal symbol table target ticket token total unit value
    vector version volume weight width window
""",
    )
)


def parse_tests(source: bytes | str) -> ast.Module | None:
    """None for what is empty, no Python of this version, or too big to be worth it."""
    if not source or len(source) > PARSED_BYTES:
        return None
    for _ in range(PARSE_TRIES):
        try:
            with _PARSING:
                return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        except SystemError:  # another thread makes a tree without the lock; see _PARSING
            continue
    return None


@lru_cache(maxsize=256)
def pristine(source: bytes) -> ast.Module | None:
    """As ``parse_tests``, once for all gradings of a task: nobody changes the tree."""
    return parse_tests(source)


def function_of(test: str) -> str:
    """``TestB::test_c`` of ``tests/test_a.py::TestB::test_c[0]``."""
    return test.split("::", 1)[-1].split("[", 1)[0]


def functions(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function, Sequence[ast.stmt]]]:
    """Each function, in classes too, with the id pytest gives it in its file, and the body that it stands in."""
    body = list(body)
    for statement in body:
        if isinstance(statement, Function):
            yield prefix + statement.name, statement, body
        elif isinstance(statement, ast.ClassDef):
            yield from functions(statement.body, f"{prefix}{statement.name}::")


def words_of(sources: Iterable[bytes]) -> tuple[str, ...]:
    """Lower-case words that test names of ``sources`` are made of; ours are added where these are few."""
    found: dict[str, None] = {}
    for source in sources:
        found.update(dict.fromkeys(_words_in_names(source)))
    words = [word for word in found if word not in _MEANS_SOMETHING]
    if len(words) < _ENOUGH:
        words += [noun for noun in NOUNS if noun not in found and noun not in _MEANS_SOMETHING]
    return tuple(words)


def words_of_one(source: bytes) -> tuple[str, ...]:
    """Return lower-case words that the names of one file's tests are made of, if they mean nothing to Python."""
    return tuple(word for word in _words_in_names(source) if word not in _MEANS_SOMETHING)


@lru_cache(maxsize=256)
def _words_in_names(source: bytes) -> tuple[str, ...]:
    names = (name.decode(errors="replace") for name in _TEST.findall(source))
    return tuple(dict.fromkeys(word.lower() for name in names for word in _WORD.findall(name)))
