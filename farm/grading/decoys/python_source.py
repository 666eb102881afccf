"""Test files as Python: parsed one at a time, their functions by name and place, and the words of their names."""

import ast
import builtins
import keyword
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from farm.core.nesting_limit import MAX_DEPTH, TooDeep

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
    """None for what is empty, no Python of this version, too big to be worth it, or nested too deeply."""
    if not source or len(source) > PARSED_BYTES:
        return None
    try:
        return _parse(source)
    except (SyntaxError, ValueError):
        return None


def check_source_depth(source: bytes) -> None:
    """Raise TooDeep for Python that is nested too deeply; anything else passes, also what cannot be parsed."""
    try:
        _parse(source)
    except TooDeep:
        raise
    except (SyntaxError, ValueError):
        return


def _parse(source: bytes | str) -> ast.Module | None:
    for _ in range(PARSE_TRIES):
        try:
            with _PARSING:
                tree = ast.parse(source)
        except (RecursionError, MemoryError):  # the parser's own limit, far beyond MAX_DEPTH
            raise TooDeep from None
        except SystemError:  # another thread makes a tree without the lock; see _PARSING
            continue
        if _is_deep(tree):
            raise TooDeep
        return tree
    return None


def _is_deep(tree: ast.AST) -> bool:
    """Return True if nodes are nested deeper than MAX_DEPTH. Functions of ``ast`` are recursive."""
    level = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


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


def callers_of(source: bytes, called: Collection[str]) -> frozenset[str]:
    """Return the functions of a test file that name one of ``called``, which are functions of the same file."""
    names = {name.rpartition("::")[2] for name in called}
    module = parse_tests(source) if names else None
    if module is None:
        return frozenset()
    return frozenset(name for name, function, _ in functions(module.body) if names & _named(function))


def _named(function: Function) -> set[str]:
    nodes = list(ast.walk(function))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


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


def last_name(called: ast.expr) -> str:
    """Return the last part of a name or of what a call calls; "" for other expressions."""
    match called:
        case ast.Call(func=function):
            return last_name(function)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


@dataclass(frozen=True, slots=True)
class SourceEdit:
    """Bytes ``start`` to ``end`` of a file give way to ``text``."""

    start: int
    end: int
    text: bytes


class SourceText:
    """A Python file by lines and columns, which the syntax tree counts from 1 and in bytes."""

    def __init__(self, source: bytes, module: ast.Module) -> None:
        self.source = source
        self.module = module
        self.functions = list(functions(module.body))
        self.numbers = Counter(_NUMBER.findall(source))
        self.words = Counter(word for text in _STRING.findall(source) for word in STRING_WORD.findall(text))
        self._starts = [0]
        for line in source.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def at(self, line: int, column: int = 0) -> int:
        return self._starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno or 0, node.end_col_offset or 0)

    def name_edit(self, function: Function, name: str) -> SourceEdit:
        """Return the edit that gives a function another name."""
        old = function.name.encode()
        at = self.source.index(old, self.at(function.lineno, function.col_offset) + len(b"def "))
        return SourceEdit(at, at + len(old), name.encode())

    def indent(self, function: Function) -> bytes | None:
        """Return what stands before each statement of a function; None if the first is on the line of its name."""
        first = function.body[0]
        before = self.source[self.at(first.lineno) : self.at(first.lineno, first.col_offset)]
        return before if not before.strip() else None

    def block(self, function: Function) -> tuple[int, int] | None:
        """Return the span of all lines of a function; None if something else stands on them."""
        last = function.end_lineno or function.lineno
        start = self.at(min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]))
        end = min(self.at(last + 1), len(self.source))
        before = self.source[start : start + function.col_offset]
        behind = self.source[self.at(last, function.end_col_offset or 0) : end].strip()
        return None if before.strip() or (behind and not behind.startswith(b"#")) else (start, end)


@lru_cache(maxsize=256)
def read_source(source: bytes) -> SourceText | None:
    """Return a test file as text and tree, once for all gradings of a task; None if its lines are not the tree's."""
    module = None if b"\r" in source or b"\f" in source else pristine(source)
    try:
        return SourceText(source, module) if module is not None and module.body and source.decode() else None
    except UnicodeDecodeError:
        return None


def places_of(source: bytes) -> Mapping[str, int]:
    """Return the place of each function among those of its file, by name; of two of one name the last counts."""
    text = read_source(source)
    return {name: at for at, (name, _, _) in enumerate(text.functions)} if text is not None else {}


def edited(source: bytes, edits: Iterable[SourceEdit], offset: int = 0) -> bytes:
    """Return ``source``, which begins at byte ``offset`` of its file, with ``edits`` made, none of which overlap."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        source = source[: edit.start - offset] + edit.text + source[edit.end - offset :]
    return source


_NUMBER = re.compile(rb"(?<![\w.])[0-9]{1,6}(?![\w.])")
_STRING = re.compile(rb"\"[^\"\n\\]*\"|'[^'\n\\]*'")
STRING_WORD = re.compile(rb"(?<![\w{%\\])[A-Za-z]{3,}(?![\w}%])")
"""A word inside a string, which is no part of a placeholder."""
