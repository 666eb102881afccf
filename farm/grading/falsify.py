"""False versions of Python tests: a program that passes a test fails its false version.

A false version is the test's own text with one assertion altered that runs whenever the test passes: another literal in
the place of the wanted one, the opposite of what is asserted, or another exception. No sound program passes both.
An equality is never negated, because an object that equals everything differs from nothing.
"""

import ast
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from farm.core.framework import holder, holders, without_parameters
from farm.grading.claims import false_claim, imported_words, ways_of
from farm.grading.literal import differ, is_literal, leaves_of, other_letter, other_number, other_string
from farm.grading.source import (
    Edit,
    Function,
    SourceText,
    edited,
    function_of,
    parse_tests,
    read_source,
)

LEAST_PART = 8
"""Characters of a string that a test looks for in another: a shorter one may be there by chance once it is altered."""
Variant = tuple[Edit, ...]

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
class Falsified:
    """Test files, by path, in which some tests ask for something else. ``names``: their ids without parameters."""

    files: Mapping[str, bytes]
    names: frozenset[str]


def falsify(sources: Mapping[str, bytes], tests: Collection[str], rng: random.Random) -> Falsified:
    """Return the test files in which each of ``tests`` that can be made false asks for something else.

    ``tests`` are ids, with or without parameters. A test keeps its name. One that a class inherits is made false where
    its method is defined, if there is just one such method.
    """
    made: dict[str, bytes] = {}
    found: set[str] = set()
    names = dict.fromkeys(map(without_parameters, tests))
    inherited: dict[tuple[str, str], list[str]] = {}
    for path in holders(names):
        own = {function_of(name) for name in names if holder(name) == path}
        content, done = _falsify_one(sources.get(path, b""), own, rng)
        made |= {path: content} if done else {}
        found |= {f"{path}::{name}" for name in done}
        for name in sorted(own - done):
            definition = _definition(sources, path, name.rpartition("::")[2])
            if definition is not None:
                inherited.setdefault(definition, []).append(f"{path}::{name}")
    for (path, name), ids in inherited.items():
        if f"{path}::{name}" not in found:  # or it would be made false twice, and perhaps true
            content, done = _falsify_one(made.get(path, sources[path]), {name}, rng)
            made |= {path: content} if done else {}
            found |= {f"{path}::{name}" for name in done}
        found |= set(ids) if f"{path}::{name}" in found else set()
    found &= names.keys()
    return Falsified(made, frozenset(found))


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
    for name, function, _ in text.functions if text is not None else ():
        if text is not None and name in names and name not in made:
            variant = next(false_versions(text, function, rng), None)
            if variant is not None:
                made[name] = variant
    return edited(source, [edit for variant in made.values() for edit in variant]), frozenset(made)


def false_versions(text: SourceText, test: Function, rng: random.Random) -> Iterator[Variant]:
    """Yield false versions of a test in a random order, each as edits of its file."""
    block = text.block(test)
    if block is None or _is_expected_to_fail(test):
        return
    claims = list(_claims(test.body))
    rng.shuffle(claims)
    found = False
    for claim in claims:
        variant = _falsified(text, test, claim, rng)
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
                names = {_last_name(item.context_expr) for item in items}
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


def _last_name(called: ast.expr) -> str:
    match called:
        case ast.Call(func=function):
            return _last_name(function)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _falsified(text: SourceText, test: Function, claim: ast.stmt, rng: random.Random) -> Variant | None:
    match claim:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            return _unequal(text, test, left, right, rng)
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.In()], comparators=[_])) if rng.random() < 0.5:
            return _other_part(text, left, rng) or _negated(text, claim.test)
        case ast.Assert(test=asserted):
            return _negated(text, asserted)
        case ast.Expr(value=ast.Call(args=[first, second, *_]) as call) if _last_name(call) in _EQUALITIES:
            return _unequal(text, test, first, second, rng)
        case ast.Expr(value=ast.Call(func=function) as call) if _last_name(call) in _OPPOSITES:
            end = text.span(function)[1]
            name = _last_name(call)
            return (Edit(end - len(name), end, _OPPOSITES[name].encode()),)
        case ast.Expr(value=ast.Call(args=[kind, _, *_]) as call) if _last_name(call) in _RAISES:
            return (Edit(*text.span(kind), _other_kind(kind, _OTHER_ERRORS, rng)),)
        case ast.With(items=[ast.withitem(context_expr=ast.Call(args=[kind, *_]) as call)]):
            others = _OTHER_WARNINGS if _last_name(call) in _WARNS else _OTHER_ERRORS
            return (Edit(*text.span(kind), _other_kind(kind, others, rng)),)
    return None


def _other_kind(kind: ast.expr, others: Sequence[str], rng: random.Random) -> bytes:
    """Return the name of an exception that is neither named nor a base of what is: few classes derive from these."""
    named = {_last_name(part) for part in (kind.elts if isinstance(kind, ast.Tuple) else [kind])}
    return rng.choice([other for other in others if other not in named]).encode()


def _negated(text: SourceText, asserted: ast.expr) -> Variant:
    start, end = text.span(asserted)
    match asserted:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _OPERATORS:
            written, opposite = _OPERATORS[type(operator)]
            between = text.span(left)[1], text.span(right)[0]
            made, count = re.subn(written, opposite, text.source[slice(*between)])
            if count == 1:
                return (Edit(*between, made),)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = text.span(operand)
            if text.source[start : inner[0]].strip() == b"not" and inner[1] == end:
                return (Edit(start, inner[0], b""),)
        case ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript():
            return (Edit(start, start, b"not "),)
    return Edit(start, start, b"not ("), Edit(end, end, b")")


def _other_part(text: SourceText, part: ast.expr, rng: random.Random) -> Variant | None:
    """Return the edit that looks for another string; None if it is none or so short that it may be there by chance."""
    match part:
        case ast.Constant(value=str(wanted)) if len(wanted) >= LEAST_PART:
            start, end = text.span(part)
            new = other_letter(text.source[start:end], rng, rng)
            return (Edit(start, end, new),) if new is not None and differ(wanted, new) else None
    return None


def _unequal(text: SourceText, test: Function, left: ast.expr, right: ast.expr, rng: random.Random) -> Variant | None:
    for wanted, seen in ((right, left), (left, right)):
        if isinstance(wanted, ast.Name):
            rows = _rows(test, wanted.id)
            edits = [edit for edit in (_alter(text, row, rng) for row in rows) if edit is not None]
            if rows and len(edits) == len(rows):
                return tuple(edits)
        elif not is_literal(seen):
            edit = _alter(text, wanted, rng) or _alter_approximate(text, wanted, rng)
            if edit is not None:
                return (edit,)
    if is_literal(left) and is_literal(right):
        return None
    wanted = left if _calls(right) and not _calls(left) else right
    return (Edit(*text.span(wanted), _made_up(text, rng)),)


def _calls(expression: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(expression))


def _made_up(text: SourceText, rng: random.Random) -> bytes:
    """Return a literal that no sound program gives: it does not occur in the file."""
    while True:
        words = b" ".join(rng.sample(sorted(text.words), 2)) if len(text.words) > 1 and rng.random() < 0.5 else b""
        made = b'"' + words + b'"' if words else str(rng.randint(1_000, 99_999)).encode()
        if made not in text.source:
            return made


def _alter_approximate(text: SourceText, wanted: ast.expr, rng: random.Random) -> Edit | None:
    """Return the edit that makes the number in ``approx(number)`` one that no tolerance reaches."""
    match wanted:
        case ast.Call(args=[ast.Constant(value=int() | float()) as number, *_]) if _last_name(wanted) == "approx":
            far = rng.randint(2, 9) * 10 ** (len(str(number.value).partition(".")[0]) + 2) + rng.randint(11, 99)
            return Edit(*text.span(number), str(far).encode())
    return None


def _rows(function: Function, name: str) -> Sequence[ast.expr]:
    """Return what a name stands for, its one value or a parameter's, if it serves for nothing but the comparison."""
    uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    for statement in function.body if len(uses) == 2 else ():
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name and is_literal(value):
                return (value,)
    if len(uses) != 1:
        return ()
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(
                func=ast.Attribute(attr="parametrize"),
                args=[ast.Constant(value=str(joined)), ast.List(elts=rows) | ast.Tuple(elts=rows)],
                keywords=[],
            ):
                names = [part.strip() for part in joined.split(",") if part.strip()]
            case _:
                continue
        if name in names:
            found = [_cell(row, names.index(name), len(names)) for row in rows]
            cells = [cell for cell in found if cell is not None]
            return cells if len(cells) == len(found) else ()
    return ()


def _cell(row: ast.expr, index: int, count: int) -> ast.expr | None:
    match row:
        case ast.Call(func=ast.Attribute(attr="param"), args=cells):
            pass
        case ast.Tuple(elts=cells) | ast.List(elts=cells) if count > 1:
            pass
        case _:
            cells = [row]
    fit = len(cells) == count and not any(isinstance(cell, ast.Starred) for cell in cells)
    return cells[index] if fit else None


def _alter(text: SourceText, wanted: ast.expr, rng: random.Random) -> Edit | None:
    """Return the edit that makes a literal, or one inside a list, tuple, set or dict, another one of the same type.

    None if there is no number and no string to alter.
    """
    leaves = list(leaves_of(wanted))
    rng.shuffle(leaves)
    for leaf in leaves:
        start, end = text.span(leaf)
        make = other_number if isinstance(leaf.value, int | float) else other_string
        new = make(text.source[start:end], text, rng)
        if new is not None and differ(leaf.value, new):
            return Edit(start, end, new)
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
    return (Edit(block[1], block[1], lead + lines),)


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
