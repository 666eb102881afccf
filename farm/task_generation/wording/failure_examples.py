"""What a failed test shows, in words: what was called, what came of it, and what was to come."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from farm.grading.decoys.python_source import Function
from farm.task_generation.mutation.edits import parsed
from farm.task_generation.mutation.trials import FailedTest
from farm.task_generation.wording.failing_statement import LONGEST, Example, FailingStatement, Values
from farm.task_generation.wording.test_names import names_of, statements_at

_EQUAL = {"assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual"}
_EQUAL |= {"assertSequenceEqual", "assertMultiLineEqual", "assertCountEqual"}
_EQUAL_FUNCTIONS = {"assert_equal", "assert_equals", "eq_"}
_WANTED = ("exp", "want", "correct", "desired", "truth")
_HOLDS = {"assertTrue": "", "assertFalse": "not ", "assertIsNone": "", "assertIsNotNone": ""}
_RAISES = {"raises", "assertRaises", "assertRaisesRegex"}
_RELATIONS = {"assertIn": "in", "assertNotIn": "not in", "assertIs": "is", "assertIsNot": "is not"}
_RELATIONS |= {"assertNotEqual": "!=", "assertIsInstance": "is an instance of"}


def tell(failure: FailedTest, tests: Mapping[str, bytes], *, at_length: bool = False) -> Example | None:
    """None for what cannot be told so that it is of use. ``tests`` by path."""
    path = failure.test.partition("::")[0]
    tree = _tree(tests.get(path, b""))
    if tree is None or not failure.line:
        return None
    function = _innermost(tree, failure.line, Function)
    statement = _innermost(tree, failure.line, ast.stmt)
    if not isinstance(function, Function) or statement is None or statement is function:
        return None
    scene = FailingStatement(function, statement, failure, names_of(path, tree, function, tests), tests[path])
    return scene.example(lambda values: _sentence(failure, statement, function, values), at_length=at_length)


def tell_wanted(failure: FailedTest, tests: Mapping[str, bytes]) -> list[Example]:
    """What the test asks for from where it failed on, whatever came of it."""
    path = failure.test.partition("::")[0]
    tree = _tree(tests.get(path, b""))
    function = _innermost(tree, failure.line, Function) if tree is not None and failure.line else None
    if tree is None or not isinstance(function, Function):
        return []
    names = names_of(path, tree, function, tests)
    found: list[Example] = []
    for statement in ast.walk(function):
        if not isinstance(statement, ast.Assert | ast.Expr) or (statement.end_lineno or 0) < failure.line:
            continue
        pair = _compared(statement)
        if pair is None:
            continue
        scene = FailingStatement(function, statement, failure, names, tests[path])
        example = scene.example(lambda values, pair=pair: _asked(pair, values))  # type: ignore[misc]  # bound early
        if example is not None:
            found.append(example)
    return found


@lru_cache(maxsize=32)
def _tree(source: bytes) -> ast.Module | None:
    """Of a test file, which many failures are in. Only to be looked at."""
    return parsed(source)


def _asked(pair: tuple[ast.expr, ast.expr], values: Values) -> str | None:
    if values.is_plain(pair[0]):
        return None
    subject, wanted = values.text(pair[0]), values.text(pair[1])
    return f"`{subject} == {wanted}` is to hold." if subject == wanted else f"`{subject}` is to give `{wanted}`."


def _compared(statement: ast.Assert | ast.Expr) -> tuple[ast.expr, ast.expr] | None:
    """What is looked at, and what it is to be."""
    pair: tuple[ast.expr, ast.expr] | None = None
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is):
            pair = test.left, test.comparators[0]
    elif isinstance(call := statement.value, ast.Call) and isinstance(call.func, ast.Attribute):
        pair = (call.args[0], call.args[1]) if call.func.attr in _EQUAL and len(call.args) >= 2 else None
    if pair is not None and isinstance(pair[0], ast.Constant):
        pair = pair[1], pair[0]
    return pair


def best(examples: Iterable[Example], most: int, avoid: Sequence[str] = ()) -> list[Example]:
    """The clearest, of as many tests as can be; those that hold a word of ``avoid`` last."""
    ranked = sorted(
        examples, key=lambda one: (bool(one.places), any(word in one.text for word in avoid), len(one.text), one.text)
    )
    chosen: dict[str, Example] = {}
    functions: dict[str, int] = {}
    for turn in range(3):
        for example in ranked:
            name = example.test.partition("[")[0]
            if len(chosen) < most and example.text not in chosen and functions.get(name, 0) <= turn:
                chosen[example.text] = example
                functions[name] = functions.get(name, 0) + 1
    return list(chosen.values())


def _innermost(tree: ast.AST, line: int, kind: type | tuple[type, ...] | object) -> ast.stmt | None:
    found = [node for node in statements_at(tree, line) if isinstance(node, kind)]  # type: ignore[arg-type]  # one kind or several
    return min(found, key=lambda node: (node.end_lineno or node.lineno) - node.lineno, default=None)


def _sentence(failure: FailedTest, statement: ast.stmt, function: Function, values: Values) -> str | None:
    raised = f"raises `{failure.error}: {failure.message}`" if failure.message else f"raises `{failure.error}`"
    asserts = failure.error == "AssertionError" and not failure.deeper
    if isinstance(statement, ast.Assert):
        return _assertion(failure, statement.test, values, None if asserts else raised)
    inside = _expecting(function, failure.line)
    if inside is not None:
        error, body = inside
        what = "; ".join(values.text(line) for line in body)
        wanted = values.text(error)
        if failure.error == "Failed" or asserts:
            return f"`{what}` is to raise `{wanted}`, and does not."
        return f"`{what}` {raised}, where `{wanted}` is expected."
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        method = statement.value
        if isinstance(method.func, ast.Attribute) and method.func.attr.startswith("assert") and len(method.args) >= 1:
            return _unittest(failure, method, values, None if asserts or _own(failure) else raised)
        if isinstance(method.func, ast.Name) and method.func.id in _EQUAL_FUNCTIONS and len(method.args) >= 2:
            return _equality(method.args[0], method.args[1], None, values, None if _own(failure) else raised)
    if asserts or failure.error == "Failed" or isinstance(statement, ast.With | ast.For | ast.While | ast.Try | ast.If):
        return None
    value = statement.value if isinstance(statement, ast.Assign | ast.Expr | ast.Return) else None
    return None if value is None else f"`{values.text(value)}` {raised}."


def _own(failure: FailedTest) -> bool:
    """Raised by unittest's own code, below the test."""
    return failure.error == "AssertionError"


def _assertion(failure: FailedTest, test: ast.expr, values: Values, raised: str | None) -> str | None:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = test.left, test.comparators[0]
        if isinstance(test.ops[0], ast.Eq):
            compared = failure.compared[1:] if failure.compared and failure.compared[0] == "==" else None
            return _equality(left, right, compared, values, raised)
        what = values.text(test)
        return f"`{what}` {raised}." if raised else f"`{what}` is to hold, and does not."
    if isinstance(test, ast.BoolOp) and not raised:
        return None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        what = values.text(test.operand)
        return f"`{what}` {raised}." if raised else f"`{what}` is to be false, and is not."
    if values.is_plain(test):
        return None
    what = values.text(test)
    return f"`{what}` {raised}." if raised else f"`{what}` is to be true, and is not."


def _equality(
    left: ast.expr, right: ast.expr, compared: Sequence[str] | None, values: Values, raised: str | None
) -> str | None:
    turned = _is_wanted(left, values) and not _is_wanted(right, values)
    subject, wanted = (right, left) if turned else (left, right)
    if values.is_plain(subject):
        return None
    shown = values.text(wanted)
    if shown == values.text(subject) and not raised:
        return f"`{shown} == {shown}` is to hold, and does not."
    if raised:
        return f"`{values.text(subject)}` {raised}, where `{shown}` is expected."
    if compared is None or len(compared) != 2:
        return f"`{values.text(subject)}` is to be `{shown}`, and is not."
    got, meant = (compared[1], compared[0]) if turned else (compared[0], compared[1])
    if got == meant or len(got) > LONGEST // 2:
        return f"`{values.text(subject)}` is to be `{shown}`, and is not."
    return f"`{values.text(subject)}` gives `{got}`, where `{shown}` is expected."


def _is_wanted(node: ast.expr, values: Values) -> bool:
    """Whether it is what a result is compared with: a literal, what is named so, or what nothing was called for."""
    named = isinstance(node, ast.Name) and node.id.lower().startswith(_WANTED)
    return named or values.is_plain(node) or not values.calls(node)


def _unittest(failure: FailedTest, call: ast.Call, values: Values, raised: str | None) -> str | None:
    assert isinstance(call.func, ast.Attribute)
    name, arguments = call.func.attr, call.args
    if name in _EQUAL and len(arguments) >= 2:
        return _equality(arguments[0], arguments[1], None, values, raised)
    if name in _HOLDS:
        what = values.text(arguments[0])
        wanted = {"assertTrue": "true", "assertFalse": "false", "assertIsNone": "`None`"}.get(name, "something")
        return (
            f"`{what}` {raised}, where {wanted} is expected." if raised else f"`{what}` is to be {wanted}, and is not."
        )
    if name in _RELATIONS and len(arguments) >= 2:
        what = f"{values.text(arguments[0])} {_RELATIONS[name]} {values.text(arguments[1])}"
        return f"`{what}` {raised}." if raised else f"`{what}` is to hold, and does not."
    if name == "assertRaises" and len(arguments) >= 2:
        called = ast.Call(func=arguments[1], args=arguments[2:], keywords=call.keywords)
        what = f"`{values.text(ast.fix_missing_locations(called))}`"
        return f"{what} {raised}." if raised else f"{what} is to raise `{values.text(arguments[0])}`, and does not."
    return None


def _expecting(function: Function, line: int) -> tuple[ast.expr, list[ast.stmt]] | None:
    """The exception that the statement at ``line`` is to raise, and the statements."""
    for node in ast.walk(function):
        if not isinstance(node, ast.With) or len(node.body) > 2 or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _RAISES:
                return (call.args[0], node.body) if call.args else None
    return None
