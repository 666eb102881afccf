"""Describe the failure of a test in words: the call, its result, and the expected result."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from farm.grading.decoys.python_source import Function
from farm.task_generation.mutation.edits import parse_source
from farm.task_generation.mutation.trials import FailedTest
from farm.task_generation.wording.failing_statement import MAX_CHARS, Example, FailingStatement, Values
from farm.task_generation.wording.test_names import names_of, statements_at

_EQUAL = {"assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual"}
_EQUAL |= {"assertSequenceEqual", "assertMultiLineEqual", "assertCountEqual"}
_EQUAL_FUNCTIONS = {"assert_equal", "assert_equals", "eq_"}
_WANTED = ("exp", "want", "correct", "desired", "truth")
_HOLDS = {"assertTrue": "", "assertFalse": "not ", "assertIsNone": "", "assertIsNotNone": ""}
_RAISES = {"raises", "assertRaises", "assertRaisesRegex"}
_RELATIONS = {"assertIn": "in", "assertNotIn": "not in", "assertIs": "is", "assertIsNot": "is not"}
_RELATIONS |= {"assertNotEqual": "!=", "assertIsInstance": "is an instance of"}


def describe_failure(failure: FailedTest, tests: Mapping[str, bytes], *, at_length: bool = False) -> Example | None:
    """Return an example of a failure, or None if it cannot be described usefully. ``tests``: sources by path."""
    path = failure.test.partition("::")[0]
    tree = _tree(tests.get(path, b""))
    if tree is None or not failure.line:
        return None
    function = _innermost_at(tree, failure.line, Function)
    statement = _innermost_at(tree, failure.line, ast.stmt)
    if not isinstance(function, Function) or statement is None or statement is function:
        return None
    failing = FailingStatement(function, statement, failure, names_of(path, tree, function, tests), tests[path])
    return failing.example(lambda values: _sentence(failure, statement, function, values), at_length=at_length)


def describe_wanted(failure: FailedTest, tests: Mapping[str, bytes]) -> list[Example]:
    """Return examples of the behaviour that the test asks for, from the failed statement on."""
    path = failure.test.partition("::")[0]
    tree = _tree(tests.get(path, b""))
    function = _innermost_at(tree, failure.line, Function) if tree is not None and failure.line else None
    if tree is None or not isinstance(function, Function):
        return []
    names = names_of(path, tree, function, tests)
    examples: list[Example] = []
    for statement in ast.walk(function):
        if not isinstance(statement, ast.Assert | ast.Expr) or (statement.end_lineno or 0) < failure.line:
            continue
        pair = _compared_pair(statement)
        if pair is None:
            continue
        failing = FailingStatement(function, statement, failure, names, tests[path])
        example = failing.example(lambda values, pair=pair: _wanted_sentence(pair, values))  # type: ignore[misc]  # bound early
        if example is not None:
            examples.append(example)
    return examples


@lru_cache(maxsize=32)
def _tree(source: bytes) -> ast.Module | None:
    """Return the syntax tree of a test file, cached because many failures share it. It must not be changed."""
    return parse_source(source)


def _wanted_sentence(pair: tuple[ast.expr, ast.expr], values: Values) -> str | None:
    if values.is_plain(pair[0]):
        return None
    subject, wanted = values.text(pair[0]), values.text(pair[1])
    return f"`{subject} == {wanted}` is to hold." if subject == wanted else f"`{subject}` is to give `{wanted}`."


def _compared_pair(statement: ast.Assert | ast.Expr) -> tuple[ast.expr, ast.expr] | None:
    """Return the checked expression and the expected one, or None if the statement compares nothing."""
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


def best_examples(examples: Iterable[Example], limit: int, avoid: Sequence[str] = ()) -> list[Example]:
    """Return the clearest examples of as many tests as possible, at most ``limit``.

    Examples with a word of ``avoid`` come last.
    """
    ranked = sorted(
        examples,
        key=lambda example: (
            bool(example.places),
            any(word in example.text for word in avoid),
            len(example.text),
            example.text,
        ),
    )
    chosen: dict[str, Example] = {}
    functions: dict[str, int] = {}
    for turn in range(3):
        for example in ranked:
            name = example.test.partition("[")[0]
            if len(chosen) < limit and example.text not in chosen and functions.get(name, 0) <= turn:
                chosen[example.text] = example
                functions[name] = functions.get(name, 0) + 1
    return list(chosen.values())


def _innermost_at(tree: ast.AST, line: int, kind: type | tuple[type, ...] | object) -> ast.stmt | None:
    statements = [node for node in statements_at(tree, line) if isinstance(node, kind)]  # type: ignore[arg-type]  # one kind or several
    return min(statements, key=lambda node: (node.end_lineno or node.lineno) - node.lineno, default=None)


def _sentence(failure: FailedTest, statement: ast.stmt, function: Function, values: Values) -> str | None:
    raised = f"raises `{failure.error}: {failure.message}`" if failure.message else f"raises `{failure.error}`"
    asserts = failure.error == "AssertionError" and not failure.deeper
    if isinstance(statement, ast.Assert):
        return _assertion_sentence(failure, statement.test, values, None if asserts else raised)
    expected = _expected_error(function, failure.line)
    if expected is not None:
        error, body = expected
        calls = "; ".join(values.text(line) for line in body)
        wanted = values.text(error)
        if failure.error == "Failed" or asserts:
            return f"`{calls}` is to raise `{wanted}`, and does not."
        return f"`{calls}` {raised}, where `{wanted}` is expected."
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        method = statement.value
        if isinstance(method.func, ast.Attribute) and method.func.attr.startswith("assert") and len(method.args) >= 1:
            return _unittest_sentence(
                failure, method, values, None if asserts or _raised_by_unittest(failure) else raised
            )
        if isinstance(method.func, ast.Name) and method.func.id in _EQUAL_FUNCTIONS and len(method.args) >= 2:
            return _equality_sentence(
                method.args[0], method.args[1], None, values, None if _raised_by_unittest(failure) else raised
            )
    if asserts or failure.error == "Failed" or isinstance(statement, ast.With | ast.For | ast.While | ast.Try | ast.If):
        return None
    value = statement.value if isinstance(statement, ast.Assign | ast.Expr | ast.Return) else None
    return None if value is None else f"`{values.text(value)}` {raised}."


def _raised_by_unittest(failure: FailedTest) -> bool:
    """Return whether the error was raised by an assertion method of unittest."""
    return failure.error == "AssertionError"


def _assertion_sentence(failure: FailedTest, test: ast.expr, values: Values, raised: str | None) -> str | None:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = test.left, test.comparators[0]
        if isinstance(test.ops[0], ast.Eq):
            compared = failure.compared[1:] if failure.compared and failure.compared[0] == "==" else None
            return _equality_sentence(left, right, compared, values, raised)
        expression = values.text(test)
        return f"`{expression}` {raised}." if raised else f"`{expression}` is to hold, and does not."
    if isinstance(test, ast.BoolOp) and not raised:
        return None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        expression = values.text(test.operand)
        return f"`{expression}` {raised}." if raised else f"`{expression}` is to be false, and is not."
    if values.is_plain(test):
        return None
    expression = values.text(test)
    return f"`{expression}` {raised}." if raised else f"`{expression}` is to be true, and is not."


def _equality_sentence(
    left: ast.expr, right: ast.expr, compared: Sequence[str] | None, values: Values, raised: str | None
) -> str | None:
    swapped = _is_wanted(left, values) and not _is_wanted(right, values)
    subject, wanted = (right, left) if swapped else (left, right)
    if values.is_plain(subject):
        return None
    shown = values.text(wanted)
    if shown == values.text(subject) and not raised:
        return f"`{shown} == {shown}` is to hold, and does not."
    if raised:
        return f"`{values.text(subject)}` {raised}, where `{shown}` is expected."
    if compared is None or len(compared) != 2:
        return f"`{values.text(subject)}` is to be `{shown}`, and is not."
    got, meant = (compared[1], compared[0]) if swapped else (compared[0], compared[1])
    if got == meant or len(got) > MAX_CHARS // 2:
        return f"`{values.text(subject)}` is to be `{shown}`, and is not."
    return f"`{values.text(subject)}` gives `{got}`, where `{shown}` is expected."


def _is_wanted(node: ast.expr, values: Values) -> bool:
    """Return whether an expression is the expected side: a literal, named so, or free of calls."""
    is_named_so = isinstance(node, ast.Name) and node.id.lower().startswith(_WANTED)
    return is_named_so or values.is_plain(node) or not values.calls(node)


def _unittest_sentence(failure: FailedTest, call: ast.Call, values: Values, raised: str | None) -> str | None:
    assert isinstance(call.func, ast.Attribute)
    name, arguments = call.func.attr, call.args
    if name in _EQUAL and len(arguments) >= 2:
        return _equality_sentence(arguments[0], arguments[1], None, values, raised)
    if name in _HOLDS:
        expression = values.text(arguments[0])
        wanted = {"assertTrue": "true", "assertFalse": "false", "assertIsNone": "`None`"}.get(name, "something")
        return (
            f"`{expression}` {raised}, where {wanted} is expected."
            if raised
            else f"`{expression}` is to be {wanted}, and is not."
        )
    if name in _RELATIONS and len(arguments) >= 2:
        expression = f"{values.text(arguments[0])} {_RELATIONS[name]} {values.text(arguments[1])}"
        return f"`{expression}` {raised}." if raised else f"`{expression}` is to hold, and does not."
    if name == "assertRaises" and len(arguments) >= 2:
        called = ast.Call(func=arguments[1], args=arguments[2:], keywords=call.keywords)
        expression = f"`{values.text(ast.fix_missing_locations(called))}`"
        return (
            f"{expression} {raised}."
            if raised
            else f"{expression} is to raise `{values.text(arguments[0])}`, and does not."
        )
    return None


def _expected_error(function: Function, line: int) -> tuple[ast.expr, list[ast.stmt]] | None:
    """Return the exception that the statement at ``line`` has to raise, and the statements that have to raise it."""
    for node in ast.walk(function):
        if not isinstance(node, ast.With) or len(node.body) > 2 or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _RAISES:
                return (call.args[0], node.body) if call.args else None
    return None
