"""False versions of Python tests: a program that passes a test fails its false version.

A false version is the test's own text with one assertion altered that runs whenever the test passes: another literal in
the place of the wanted one, the opposite of what is asserted, or another exception. No sound program passes both.
An equality is never negated, because an object that equals everything differs from nothing.
"""

import ast
import builtins
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from farm.core.test_frameworks import container_of_test, containers_of_tests, without_parameters
from farm.grading.decoys.false_asserts import RECEIVERS, false_claim, imported_words, ways_of
from farm.grading.decoys.literals import differ, other_letter
from farm.grading.decoys.python_source import (
    Function,
    SourceEdit,
    SourceText,
    edited,
    function_of,
    last_name,
    parse_tests,
    places_of,
    read_source,
)
from farm.grading.decoys.wanted_values import Variant, replaced, unequal

LEAST_PART = 8
"""Characters of a string that a test looks for in another: a shorter one may be there by chance once it is altered."""

_OPPOSITE = {
    "assertTrue": "assertFalse",
    "assertIn": "assertNotIn",
    "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone",
    "assertIsInstance": "assertNotIsInstance",
    "assertRegex": "assertNotRegex",
    "assertNotEqual": "assertEqual",
    "assertNotAlmostEqual": "assertAlmostEqual",
    "assertGreater": "assertLessEqual",
    "assertLess": "assertGreaterEqual",
}
_OPPOSITES: Mapping[str, str] = {**_OPPOSITE, **{false: true for true, false in _OPPOSITE.items()}}
_EQUALITIES = frozenset(
    {
        *("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertSetEqual", "assertDictEqual"),
        *("assertSequenceEqual", "assertCountEqual", "assertMultiLineEqual", "assertAlmostEqual", "assert_equal"),
        *("assert_array_equal", "assert_allclose", "assert_almost_equal", "assert_array_almost_equal"),
    }
)
_RAISES = frozenset({"raises", "assertRaises", "assertRaisesRegex"})
_WARNS = frozenset({"warns", "assertWarns", "assertWarnsRegex"})
_SWALLOWS = frozenset({"suppress", "deprecated_call"})
_OTHER_ERRORS = ("ImportError", "NameError", "NotImplementedError", "ZeroDivisionError", "EOFError", "BufferError")
_OTHER_WARNINGS = ("ImportWarning", "BytesWarning", "ResourceWarning")
_RARE = frozenset({"ZeroDivisionError", "EOFError", "BufferError", *_OTHER_WARNINGS})
_TOLERANCES = frozenset({"delta", "places", "atol", "rtol", "abs", "rel", "decimal", "significant"})
_OPERATORS: Mapping[type[ast.cmpop], tuple[bytes, bytes]] = {
    ast.NotEq: (rb"!=", b"=="),
    ast.Is: (rb"\bis\b", b"is not"),
    ast.IsNot: (rb"\bis\s+not\b", b"is"),
    ast.In: (rb"\bin\b", b"not in"),
    ast.NotIn: (rb"\bnot\s+in\b", b"in"),
    ast.Lt: (rb"<", b">="),
    ast.LtE: (rb"<=", b">"),
    ast.Gt: (rb">", b"<="),
    ast.GtE: (rb">=", b"<"),
}
"""By operator: how it is written, and its opposite."""


@dataclass(frozen=True, slots=True)
class FalsifiedFiles:
    """Test files, by path, in which some tests ask for something else.

    ``names``: ids of these tests without parameters. ``shared``: asked ids that more than one test class may hold, so
    that they become false together.
    """

    files: Mapping[str, bytes]
    names: frozenset[str]
    shared: frozenset[str]


def falsify_tests(sources: Mapping[str, bytes], tests: Collection[str], rng: random.Random) -> FalsifiedFiles:
    """Return the test files in which each of ``tests`` that can be made false asks for something else.

    ``tests`` are ids, with or without parameters. A test keeps its name. One that a class inherits is made false where
    its method is defined, if there is just one such method.
    """
    made: dict[str, bytes] = {}
    found: set[str] = set()
    names = dict.fromkeys(map(without_parameters, tests))
    inherited: dict[tuple[str, str], list[str]] = {}
    shared: set[str] = set()
    for path in containers_of_tests(names):
        own = {function_of(name) for name in names if container_of_test(name) == path}
        content, done = _falsify_one(sources.get(path, b""), own, rng)
        made |= {path: content} if done else {}
        found |= {f"{path}::{name}" for name in done}
        for name in sorted(own - done):
            if name in places_of(sources.get(path, b"")):
                continue
            method = name.rpartition("::")[2]
            shared |= {one for one in names if one.rpartition("::")[2] == method}
            definition = _definition(sources, path, method)
            if definition is not None:
                inherited.setdefault(definition, []).append(f"{path}::{name}")
    for (path, name), ids in inherited.items():
        if f"{path}::{name}" not in found:  # or it would be made false twice, and perhaps true
            content, done = _falsify_one(made.get(path, sources[path]), {name}, rng)
            made |= {path: content} if done else {}
            found |= {f"{path}::{name}" for name in done}
        found |= set(ids) if f"{path}::{name}" in found else set()
    found &= names.keys()
    return FalsifiedFiles(made, frozenset(found), frozenset(shared))


def _definition(sources: Mapping[str, bytes], path: str, name: str) -> tuple[str, str] | None:
    """Return the file and the method from which a class in ``path`` may inherit a test; None unless just one can be."""
    for among in ([path], [other for other in sources if other != path]):
        found = [(one, method) for one in among if one in sources for method in _methods(sources[one], name)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _methods(source: bytes, name: str) -> Iterator[str]:
    """Yield the functions of a file's classes that are called ``name``, as pytest tells them."""
    text = read_source(source) if b"def " + name.encode() + b"(" in source else None
    for known, function, _ in text.functions if text is not None else ():
        if "::" in known and function.name == name:
            yield known


def _falsify_one(source: bytes, names: Collection[str], rng: random.Random) -> tuple[bytes, frozenset[str]]:
    text = read_source(source)
    made: dict[str, Variant] = {}
    # Of two tests of one name Python runs the last.
    last = {name: function for name, function, _ in text.functions if name in names} if text is not None else {}
    for name, function in last.items():
        variant = next(false_versions(text, function, rng), None) if text is not None else None
        if variant is not None:
            made[name] = variant
    return edited(source, [edit for variant in made.values() for edit in variant]), frozenset(made)


def false_versions(text: SourceText, test: Function, rng: random.Random, *, apart: bool = False) -> Iterator[Variant]:
    """Yield false versions of a test in a random order, each as edits of its file.

    ``apart``: the version runs after the test in the same process, so what it asks for must not hold only because
    something ran twice. It wants a value that no second run gives, and negates nothing.
    """
    block = text.block(test)
    if block is None or _is_expected_to_fail(test):
        return
    claims = list(_claims(test.body))
    rng.shuffle(claims)
    found = False
    for claim in claims:
        variant = _apart(text, claim, rng) if apart else _falsified(text, test, claim, rng)
        if variant and _is_one_function(edited(text.source[slice(*block)], variant, block[0]), test):
            found = True
            yield variant
    spoilt = None if found or _may_leave(test.body) else _spoilt(text, test, block, rng)
    if spoilt is not None:
        yield spoilt


def _is_expected_to_fail(test: Function) -> bool:
    said = " ".join(map(ast.dump, test.decorator_list))
    return "xfail" in said or "expectedFailure" in said


def _claims(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the assertions of a body that always run if it ends well."""
    for statement in body:
        match statement:
            case ast.Assert() | ast.Expr(value=ast.Call()):
                yield statement
            case ast.With(items=items, body=inner) | ast.AsyncWith(items=items, body=inner):
                names = {last_name(item.context_expr) for item in items}
                if names & (_RAISES | _WARNS):
                    yield statement
                elif not names & _SWALLOWS:
                    yield from _claims(inner)
        if _may_leave([statement]):
            return


def _may_leave(body: Sequence[ast.stmt]) -> bool:
    """Return True if a body may end before its last statement; functions inside it have bodies of their own."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))
    return False


def _falsified(text: SourceText, test: Function | None, claim: ast.stmt, rng: random.Random) -> Variant | None:
    match claim:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            return unequal(text, test, left, right, rng)
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.In()], comparators=[_])) if rng.random() < 0.5:
            return _other_part(text, left, rng) or _negated(text, claim.test)
        case ast.Assert(test=asserted):
            return _negated(text, asserted)
        case ast.Expr(value=ast.Call() as call) if not _is_known(text, call):
            return None
        case ast.Expr(value=ast.Call(args=[first, second, *rest], keywords=named) as call) if (
            last_name(call) in _EQUALITIES
        ):
            if _TOLERANCES & {one.arg for one in named} or (rest and "Almost" in last_name(call)):
                return None
            return unequal(text, test, first, second, rng)
        case ast.Expr(value=ast.Call(func=function) as call) if last_name(call) in _OPPOSITES:
            end = text.span(function)[1]
            name = last_name(call)
            return (SourceEdit(end - len(name), end, _OPPOSITES[name].encode()),)
        case ast.Expr(value=ast.Call(args=[kind, _, *_]) as call) if last_name(call) in _RAISES:
            return _other_kind(text, kind, _OTHER_ERRORS, rng)
        case ast.With(items=[ast.withitem(context_expr=ast.Call(args=[kind, *_]) as call)]):
            others = _OTHER_WARNINGS if last_name(call) in _WARNS else _OTHER_ERRORS
            return _other_kind(text, kind, others, rng)
    return None


def _apart(text: SourceText, claim: ast.stmt, rng: random.Random) -> Variant | None:
    match claim:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            return replaced(text, left, right, rng)
        case ast.Expr(value=ast.Call(args=[left, right]) as call) if last_name(call) in _EQUALITIES:
            return replaced(text, left, right, rng) if _is_known(text, call) else None
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.In()], comparators=[_])):
            return _other_part(text, left, rng)
        case ast.With():
            return _falsified(text, None, claim, rng)
    return None


def _other_kind(text: SourceText, kind: ast.expr, others: Sequence[str], rng: random.Random) -> Variant | None:
    """Return the edit that names another exception; None if any exception may be one of those that are named.

    The other one is no base and no subclass of a builtin that is named. A class of the package may derive from
    anything, so it gives way only to exceptions from which few classes derive.
    """
    named = [last_name(part) for part in (kind.elts if isinstance(kind, ast.Tuple) else [kind])]
    known = [getattr(builtins, name, None) for name in named]
    fit = [
        other
        for other in others
        if not any(isinstance(one, type) and _are_related(one, getattr(builtins, other)) for one in known)
        and (other in _RARE or all(isinstance(one, type) for one in known))
    ]
    return (SourceEdit(*text.span(kind), rng.choice(fit).encode()),) if fit else None


def _are_related(one: type, other: type) -> bool:
    return issubclass(one, other) or issubclass(other, one)


def _is_known(text: SourceText, call: ast.Call) -> bool:
    """Return True if a call is one of unittest's, pytest's or numpy's, and no method of the file's own."""
    name = last_name(call)
    if f"def {name}(".encode() in text.source:
        return False
    match call.func:
        case ast.Attribute(value=value):
            return ast.unparse(value) in RECEIVERS
        case ast.Name():
            return name in imported_words(text.module.body)
    return False


def _negated(text: SourceText, asserted: ast.expr) -> Variant:
    start, end = text.span(asserted)
    match asserted:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _OPERATORS:
            written, opposite = _OPERATORS[type(operator)]
            between = text.span(left)[1], text.span(right)[0]
            made, count = re.subn(written, opposite, text.source[slice(*between)])
            if count == 1:
                return (SourceEdit(*between, made),)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = text.span(operand)
            if text.source[start : inner[0]].strip() == b"not" and inner[1] == end:
                return (SourceEdit(start, inner[0], b""),)
        case ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript():
            return (SourceEdit(start, start, b"not "),)
    return SourceEdit(start, start, b"not ("), SourceEdit(end, end, b")")


def _other_part(text: SourceText, part: ast.expr, rng: random.Random) -> Variant | None:
    """Return the edit that looks for another string; None if it is none or so short that it may be there by chance."""
    match part:
        case ast.Constant(value=str(wanted)) if len(wanted) >= LEAST_PART:
            start, end = text.span(part)
            new = other_letter(text.source[start:end], rng, rng)
            return (SourceEdit(start, end, new),) if new is not None and differ(wanted, new) else None
    return None


def _spoilt(text: SourceText, test: Function, block: tuple[int, int], rng: random.Random) -> Variant | None:
    """Return the edit that puts a false claim at the end of a test, in a way of asserting of the test's."""
    indent = text.indent(test)
    if indent is None:
        return None
    ways = sorted(set(ways_of(test, imported_words(text.module.body))))
    claim = false_claim(rng.choice(ways) if ways else None, rng)
    lead = b"" if text.source[: block[1]].endswith(b"\n") else b"\n"
    lines = b"".join(indent + line.encode() + b"\n" for line in claim.split("\n"))
    return (SourceEdit(block[1], block[1], lead + lines),)


def _is_one_function(block: bytes, test: Function) -> bool:
    """Return True if the text of a function with edits in it still is one function of its name."""
    indented = test.col_offset > 0
    module = parse_tests(b"class _:\n" + block if indented else block)
    match module.body if module is not None else []:
        case [ast.ClassDef(body=[only])] if indented:
            pass
        case [only]:
            pass
        case _:
            return False
    return isinstance(only, Function) and only.name == test.name
