"""Expected tests once more, asserting the opposite: no sound program passes a test and its contradiction.

Objects that equal everything, functions that read the wanted value out of the test that calls them, patched assertions
and forged reports pass both.
"""

import ast
import copy
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from farm.grading.canary import new_test_path
from farm.grading.source import NOUNS, Function, function_of, functions, parse_tests, pristine

MOST_TESTS = 3

_ALTERED = """
def {name}(value):
    if isinstance(value, bool):
        return object()
    if isinstance(value, int):
        return value + {number}
    if isinstance(value, float):
        return value + {number} if abs(value) < 1e9 else object()
    if isinstance(value, str):
        return str(value) + {word!r}
    if isinstance(value, bytes):
        return bytes(value) + b{word!r}
    if isinstance(value, list):
        return [*value, {word!r}]
    if isinstance(value, tuple):
        return (*value, {word!r})
    if isinstance(value, (set, frozenset)):
        return set(value) | {{{word!r}}}
    if isinstance(value, dict):
        return {{**value, {word!r}: {number}}}
    return object()
"""
"""Gives another value, of the same type where it is a plain one, so far off that no second run's state explains it."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A test file at ``path``. ``twins``: node id of a contradicting test → the expected id it contradicts."""

    path: str
    content: bytes
    twins: Mapping[str, str]


def make_contradiction(
    expected: Sequence[str],
    sources: Mapping[str, bytes],
    taken: Collection[str],
    rng: random.Random,
    words: Sequence[str] = NOUNS,
) -> Contradiction | None:
    """Contradict a few tests of one file; the first ids of ``expected`` are tried first.

    Fit is a test that in any case compares something for equality before it can end. None where no test is, or
    their file cannot be parsed by this Python.
    """
    for path in dict.fromkeys(test.split("::", 1)[0] for test in expected):
        ids = [test for test in expected if test.split("::", 1)[0] == path]
        found = _contradict(path, ids, sources.get(path, b""), taken, rng, words)
        if found is not None:
            return found
    return None


def _contradict(
    path: str,
    ids: Sequence[str],
    source: bytes,
    taken: Collection[str],
    rng: random.Random,
    words: Sequence[str],
) -> Contradiction | None:
    module = pristine(source)
    if module is None:
        return None
    while (helper := "_".join(rng.sample(words, rng.randint(2, 3)))).encode() in source:
        continue
    chosen: dict[str, list[str]] = {}
    altered: dict[str, Function] = {}
    tests = {name: function for name, function, _ in functions(module.body)}
    for test in ids:
        name = function_of(test)
        if name not in chosen and len(chosen) < MOST_TESTS and name in tests:
            twin = copy.deepcopy(tests[name])
            if _alter(twin, helper):
                chosen[name], altered[name] = [], ast.fix_missing_locations(twin)
        if name in chosen:
            chosen[name].append(test)
    if not chosen:
        return None
    made = parse_tests(_ALTERED.format(name=helper, number=rng.randint(10_000, 99_999), word=rng.choice(words)))
    assert made is not None, "the helper is Python"
    body = _with_helper(list(_kept(module.body, altered, "")), made.body)
    own = new_test_path([path], taken, rng, words)
    content = ast.unparse(ast.Module(body, [])).encode("utf-8", "surrogateescape")
    twins = {own + test.removeprefix(path): test for tests in chosen.values() for test in tests}
    return Contradiction(own, content + b"\n", twins)


def _alter(test: Function, helper: str) -> bool:
    """Alter the wanted value of every comparison that cannot be left out; whether there was one."""
    altered = False
    for statement in test.body:
        if any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in ast.walk(statement)):
            break
        match statement:
            case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) as comparison):
                if _is_wanted(left, right):
                    comparison.left = _call(helper, left)
                else:
                    comparison.comparators = [_call(helper, right)]
                altered = True
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="assertEqual"), args=[left, right, *_]) as call):
                call.args[0 if _is_wanted(left, right) else 1] = _call(
                    helper, left if _is_wanted(left, right) else right
                )
                altered = True
    return altered


def _is_wanted(side: ast.expr, other: ast.expr) -> bool:
    """Whether ``side`` rather than ``other`` looks like the value that the test wants."""
    return not _calls(side) and _calls(other)


def _calls(expression: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(expression))


def _call(helper: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(helper, ast.Load()), [argument], [])


def _kept(body: Sequence[ast.stmt], altered: Mapping[str, Function], prefix: str) -> Iterator[ast.stmt]:
    """The altered tests and no others; all else a test file may hold stays."""
    for statement in body:
        if isinstance(statement, Function):
            if twin := altered.get(prefix + statement.name):
                yield twin
            elif not statement.name.startswith("test"):
                yield statement
        elif isinstance(statement, ast.ClassDef):
            inside = list(_kept(statement.body, altered, f"{prefix}{statement.name}::"))
            kept = copy.copy(statement)
            kept.body = inside or [ast.Pass()]
            yield kept
        else:
            yield statement


def _with_helper(body: Sequence[ast.stmt], helper: Sequence[ast.stmt]) -> list[ast.stmt]:
    """After a docstring and the imports from the future, which must come first."""
    at = 0
    for statement in body:
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not future and not docstring:
            break
        at += 1
    return [*body[:at], *helper, *body[at:]]
