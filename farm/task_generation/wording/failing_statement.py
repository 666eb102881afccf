"""``FailingStatement``: describe a statement of a failed test, with known values in place of names."""

import ast
import copy
import io
import tokenize
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from farm.grading.decoys.python_source import Function
from farm.task_generation.mutation.edits import body_of, parse_source
from farm.task_generation.mutation.trials import FailedTest
from farm.task_generation.wording.test_names import NameMeaning, StatementNames, bound_in, free_names

MAX_CHARS = 320
"""Limit for a description without its steps."""
MAX_STEP_LINES = 10
MAX_LONG_STEP_LINES = 40
"""Limit for the lines of a block of steps if no shorter description exists; otherwise MAX_STEP_LINES."""
_MAX_DEPTH = 4
_EXCLUDED_TEXTS = ("0x", "/tmp/", "/workspace", "site-packages")
"""Parts of values that differ between runs, or belong to the sandbox."""
_CHECKING_CONTEXTS = {"raises", "assertRaises", "assertRaisesRegex", "warns", "assertWarns", "subTest"}
"""Context managers that check what happens inside and change nothing."""
_PURE_FUNCTIONS = {
    "len",
    "str",
    "repr",
    "list",
    "tuple",
    "set",
    "dict",
    "sorted",
    "isinstance",
    "type",
    "bool",
    "int",
    "hash",
}
"""Functions that change none of their arguments."""


@dataclass(frozen=True, slots=True)
class Example:
    """A description of one failure: ``text`` is a Markdown list item. ``places``: test files whose names it uses."""

    test: str
    text: str
    places: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FailingStatement:
    """A statement of a test, with the test's failure at the statement or before it."""

    function: Function
    statement: ast.stmt
    failure: FailedTest
    names: StatementNames
    source: bytes

    def example(self, describe: Callable[["Values"], str | None], *, at_length: bool = False) -> Example | None:
        """Return the description, or None if a name is left that the reader cannot know.

        The description is one expression if that has the same meaning; otherwise, or with ``at_length``, it includes
        the steps before.
        """
        values = Values(self)
        text = describe(values)
        if text is None or self._has_effective_context():
            return None
        meanings = self._meanings(values.free)
        steps = ""
        if values.stateful or at_length or meanings is None:
            values = Values(self, expand=False)
            text, before = describe(values), self._statements_before()
            arguments = {name: self.failure.names[name] for name in self._arguments() if name in self.failure.names}
            steps = self._steps_block(before, arguments, MAX_LONG_STEP_LINES if at_length else MAX_STEP_LINES)
            meanings = self._meanings((values.free | free_names(*before)) - bound_in(*before) - arguments.keys())
        if text is None or meanings is None or len(text) > MAX_CHARS or (values.in_steps and not steps):
            return None
        text = (
            steps
            + text
            + "".join(f" (`{name}` {meaning.explanation})" for name, meaning in meanings.items() if meaning.explanation)
        )
        if "self." in text or any(word in text for word in _EXCLUDED_TEXTS):
            return None
        return Example(
            self.failure.test, text, frozenset(meaning.file for meaning in meanings.values() if meaning.file)
        )

    def _has_effective_context(self) -> bool:
        """Return whether a ``with`` around the statement changes what it does, such as a frozen clock."""
        around = [node for node in ast.walk(self.function) if isinstance(node, ast.With | ast.AsyncWith)]
        around = [node for node in around if node is not self.statement and self.statement in ast.walk(node)]
        return not all(_only_checks(item.context_expr) for node in around for item in node.items)

    def _meanings(self, names: set[str]) -> dict[str, NameMeaning] | None:
        """Return the meaning of each name, or None if one of them has none."""
        meanings = {name: meaning for name in sorted(names) if (meaning := self.names.meaning(name)) is not None}
        return meanings if len(meanings) == len(names) else None

    def _arguments(self) -> list[str]:
        return [argument.arg for argument in self.function.args.args]

    def _statements_before(self) -> list[ast.stmt]:
        """Return the statements of the test before this one, without pure assertions.

        Empty if the statement is nested in another one.
        """
        body = body_of(self.function)
        at = next(
            (index for index, node in enumerate(body) if node is self.statement or self._is_expected_error_of(node)), 0
        )
        return [node for node in body[:at] if not _is_pure_assertion(node)]

    def _is_expected_error_of(self, node: ast.stmt) -> bool:
        """Return whether the node is a ``with`` that expects an error of the statement, as its first one."""
        inside = isinstance(node, ast.With) and node.body[0] is self.statement
        return inside and all(_only_checks(item.context_expr) for item in node.items)  # type: ignore[attr-defined]  # a with

    def _steps_block(self, before: list[ast.stmt], arguments: dict[str, str], max_lines: int) -> str:
        """Return the statements as a block of code without their indentation, or an empty text if they are too long."""
        if not before:
            return ""
        inside_strings = _lines_inside_strings(self.source)
        lines = [f"  {name} = {value}" for name, value in arguments.items()]
        text = ["", *self.source.decode(errors="replace").replace("\r\n", "\n").split("\n")]
        for node in before:
            decorators: list[ast.expr] = getattr(node, "decorator_list", [])
            for number in range(
                min([node.lineno, *(decorator.lineno for decorator in decorators)]), (node.end_lineno or 0) + 1
            ):
                line = text[number]
                margin = min(node.col_offset, len(line) - len(line.lstrip()))
                lines.append(f"  {line}" if number in inside_strings else f"  {line[margin:]}".rstrip())
        if len(lines) > max_lines:
            return ""
        block = "\n".join(lines).rstrip()
        return f"After\n\n  ```python\n{block}\n  ```\n\n  "


def _only_checks(context: ast.expr) -> bool:
    """Return whether a context manager only checks what happens inside."""
    return isinstance(context, ast.Call) and ast.unparse(context.func).rpartition(".")[2] in _CHECKING_CONTEXTS


def _is_pure_assertion(node: ast.stmt) -> bool:
    """Return whether the statement is an assertion that changes nothing."""
    is_assertion = isinstance(node, ast.Assert)
    calls: list[ast.Call] = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    if isinstance(node, ast.Expr) and calls and node.value is calls[0] and isinstance(calls[0].func, ast.Attribute):
        is_assertion, calls = calls[0].func.attr.startswith("assert"), calls[1:]
    return is_assertion and all(isinstance(call.func, ast.Name) and call.func.id in _PURE_FUNCTIONS for call in calls)


@lru_cache(maxsize=64)
def _lines_inside_strings(source: bytes) -> frozenset[int]:
    """Return the lines, counted from 1, that begin inside a string, where indentation is content."""
    lines: set[int] = set()
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type == tokenize.STRING:
                lines |= set(range(token.start[0] + 1, token.end[0] + 1))
    return frozenset(lines)


class Values:
    """Expressions of a test with values in place of names.

    ``stateful``: a value may have been changed between its assignment and its use, so that the expression differs.
    """

    def __init__(self, statement: FailingStatement, *, expand: bool = True) -> None:
        self.free: set[str] = set()
        self.stateful = False
        self.in_steps = not expand
        self._literals = statement.failure.names
        arguments = statement.function.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self._local = {argument.arg for argument in parameters}
        self._line = statement.statement.lineno
        self._literals_line = min(statement.failure.line, self._line)
        self._stored: dict[str, list[tuple[int, ast.expr | None]]] = {}
        self._uses = list(_uses(statement.function))
        plain = {
            id(name): value
            for node in ast.walk(statement.function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            for name, value in _unpacked(target, node.value)
        }
        for node in ast.walk(statement.function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._local.add(node.id)
                self._stored.setdefault(node.id, []).append((node.lineno, plain.get(id(node))))

    def text(self, node: ast.AST) -> str:
        """Return an expression in one line, and add the names that are left in it to ``free``."""
        substituted = self._substitute(copy.deepcopy(node), self._line, 0)
        self.free |= free_names(substituted)
        return ast.unparse(substituted).replace("\n", "; ")

    def is_plain(self, node: ast.expr) -> bool:
        """Return whether the expression is a literal."""
        try:
            ast.literal_eval(self._substitute(copy.deepcopy(node), self._line, 0))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return False
        return True

    def calls(self, node: ast.expr) -> bool:
        """Return whether the expression, or an assignment to one of its names, calls anything."""
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        assigned = [
            value for name in names for line_number, value in self._stored.get(name, []) if line_number < self._line
        ]
        return any(isinstance(inner, ast.Call) for root in (node, *filter(None, assigned)) for inner in ast.walk(root))

    def _substitute(self, node: ast.AST, line: int, depth: int) -> ast.AST:
        """Replace names by their values when ``line`` begins."""
        values = self

        class Substitution(ast.NodeTransformer):
            def visit_Name(self, name: ast.Name) -> ast.AST:
                return values._value(name, line, depth)

            def visit_Call(self, call: ast.Call) -> ast.AST:
                self.generic_visit(call)
                plain: list[ast.expr] = []
                for argument in call.args:
                    spread = isinstance(argument, ast.Starred) and isinstance(argument.value, ast.List | ast.Tuple)
                    plain += argument.value.elts if spread else [argument]  # type: ignore[attr-defined]  # seen above
                call.args = plain
                return _reduce(call)

        substituted: ast.AST = Substitution().visit(node)
        return ast.fix_missing_locations(substituted)

    def _value(self, name: ast.Name, line: int, depth: int) -> ast.AST:
        if self.in_steps or not isinstance(name.ctx, ast.Load) or name.id not in self._local:
            return name
        stored = self._stored.get(name.id, [])
        before = [(line_number, value) for line_number, value in stored if line_number < line]
        line_number, value = max(before, key=lambda pair: pair[0], default=(0, None))
        calls = value is not None and any(isinstance(node, ast.Call) for node in ast.walk(value))
        same = len(before) == sum(use_line < self._literals_line for use_line, _ in stored)
        if name.id in self._literals and same and not calls:
            return parse_source(self._literals[name.id]).body[0].value  # type: ignore[no-any-return, union-attr]  # one expression
        if value is not None and depth < _MAX_DEPTH:
            self.stateful |= any(
                name.id == owner and line_number < use_line < self._line for owner, use_line in self._uses
            )
            return self._substitute(copy.deepcopy(value), line_number, depth + 1)
        return name


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the parts of an assignment: of ``a, b = f()``, that a is ``f()[0]`` and b is ``f()[1]``."""
    yield target, value
    if isinstance(target, ast.Tuple | ast.List) and not any(isinstance(item, ast.Starred) for item in target.elts):
        for index, item in enumerate(target.elts):
            whole = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            part = ast.Subscript(value=value, slice=ast.Constant(index), ctx=ast.Load())
            yield item, value.elts[index] if whole else part  # type: ignore[attr-defined]  # seen above


def _uses(function: Function) -> Iterator[tuple[str, int]]:
    """Yield names whose value may be changed, with the line: calls of it or with it, and assignments into it."""
    for node in ast.walk(function):
        operands: list[ast.expr] = []
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _PURE_FUNCTIONS):
            operands = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            operands += [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            operands = [node.value]
        elif isinstance(node, ast.AugAssign):
            operands = [node.target]
        elif isinstance(node, ast.With):
            operands = [item.context_expr for item in node.items]
        for operand in operands:
            for inner in ast.walk(operand):
                if isinstance(inner, ast.Name):
                    yield inner.id, operand.lineno


def _reduce(call: ast.Call) -> ast.expr:
    """Return a called lambda, or a join of literals, as its result."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "join" and isinstance(function.value, ast.Constant):
        with suppress(ValueError, TypeError, AttributeError, SyntaxError):
            return ast.Constant(function.value.value.join(ast.literal_eval(call.args[0])))  # type: ignore[union-attr]  # or suppressed
    if not isinstance(function, ast.Lambda) or call.keywords or len(function.args.args) != len(call.args):
        return call
    arguments = {argument.arg: value for argument, value in zip(function.args.args, call.args, strict=True)}

    class ArgumentSubstitution(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:
            return arguments.get(name.id, name)

    return ArgumentSubstitution().visit(function.body)  # type: ignore[no-any-return]  # an expression
