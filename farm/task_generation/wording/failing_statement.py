"""A statement of a test that failed, with what is known put in place of its names."""

import ast
import copy
import io
import tokenize
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from farm.grading.decoys.python_source import Function
from farm.task_generation.mutation.edits import body_of, parsed
from farm.task_generation.mutation.trials import FailedTest
from farm.task_generation.wording.test_names import Known, StatementNames, bound_in, free_names

LONGEST = 320
MOST_STEPS = 10
MOST_LINES = 40
"""Where nothing shorter says it."""
_DEPTH = 4
_NEVER = ("0x", "/tmp/", "/workspace", "site-packages")
"""In what differs from run to run, or belongs to the place where it ran."""
_JUDGES = {"raises", "assertRaises", "assertRaisesRegex", "warns", "assertWarns", "subTest"}
_HARMLESS = {
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


@dataclass(frozen=True, slots=True)
class Example:
    """``text`` is Markdown, one item of a list. ``places``: test files whose own names it uses."""

    test: str
    text: str
    places: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FailingStatement:
    """A statement of a test, and what is known of the moment when it failed there or before."""

    function: Function
    statement: ast.stmt
    failure: FailedTest
    names: StatementNames
    source: bytes

    def example(self, say: Callable[["Values"], str | None], *, at_length: bool = False) -> Example | None:
        """In one expression where that says the same, else, or ``at_length``, with the steps before it. None where a
        name is left that the reader cannot know.
        """
        values = Values(self)
        text = say(values)
        if text is None or self._depends():
            return None
        known = self._known(values.free)
        steps = ""
        if values.stateful or at_length or known is None:
            values = Values(self, expand=False)
            text, before = say(values), self._before()
            given = {name: self.failure.names[name] for name in self._arguments() if name in self.failure.names}
            steps = self._block(before, given, MOST_LINES if at_length else MOST_STEPS)
            known = self._known((values.free | free_names(*before)) - bound_in(*before) - given.keys())
        if text is None or known is None or len(text) > LONGEST or (values.told_in_steps and not steps):
            return None
        text = steps + text + "".join(f" (`{name}` {one.says})" for name, one in known.items() if one.says)
        if "self." in text or any(word in text for word in _NEVER):
            return None
        return Example(self.failure.test, text, frozenset(one.place for one in known.values() if one.place))

    def _depends(self) -> bool:
        """Whether something around the statement changes what it does: a clock that stands, another directory."""
        around = [node for node in ast.walk(self.function) if isinstance(node, ast.With | ast.AsyncWith)]
        around = [node for node in around if node is not self.statement and self.statement in ast.walk(node)]
        return not all(_judges(item.context_expr) for node in around for item in node.items)

    def _known(self, names: set[str]) -> dict[str, Known] | None:
        """None where one of them is not."""
        found = {name: known for name in sorted(names) if (known := self.names.known(name)) is not None}
        return found if len(found) == len(names) else None

    def _arguments(self) -> list[str]:
        return [argument.arg for argument in self.function.args.args]

    def _before(self) -> list[ast.stmt]:
        """The statements of the test before this one, but for what was only looked at; empty where that is not all
        that has been done.
        """
        body = body_of(self.function)
        at = next((index for index, node in enumerate(body) if node is self.statement or self._expects(node)), 0)
        return [node for node in body[:at] if not _only_looks(node)]

    def _expects(self, node: ast.stmt) -> bool:
        """Whether the node says which error the statement is to raise, and holds nothing before it."""
        inside = isinstance(node, ast.With) and node.body[0] is self.statement
        return inside and all(_judges(item.context_expr) for item in node.items)  # type: ignore[attr-defined]  # a with

    def _block(self, before: list[ast.stmt], given: dict[str, str], most: int) -> str:
        """Those statements as they are written, but for their indentation; empty where they are too many."""
        if not before:
            return ""
        within = _lines_within_strings(self.source)
        lines = [f"  {name} = {value}" for name, value in given.items()]
        text = ["", *self.source.decode(errors="replace").replace("\r\n", "\n").split("\n")]
        for node in before:
            decorators: list[ast.expr] = getattr(node, "decorator_list", [])
            for number in range(min([node.lineno, *(one.lineno for one in decorators)]), (node.end_lineno or 0) + 1):
                line = text[number]
                margin = min(node.col_offset, len(line) - len(line.lstrip()))
                lines.append(f"  {line}" if number in within else f"  {line[margin:]}".rstrip())
        if len(lines) > most:
            return ""
        block = "\n".join(lines).rstrip()
        return f"After\n\n  ```python\n{block}\n  ```\n\n  "


def _judges(context: ast.expr) -> bool:
    """Whether a ``with`` only looks at what happens inside."""
    return isinstance(context, ast.Call) and ast.unparse(context.func).rpartition(".")[2] in _JUDGES


def _only_looks(node: ast.stmt) -> bool:
    """An assertion about names and literals, which changes nothing."""
    looks = isinstance(node, ast.Assert)
    called: list[ast.Call] = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    if isinstance(node, ast.Expr) and called and node.value is called[0] and isinstance(called[0].func, ast.Attribute):
        looks, called = called[0].func.attr.startswith("assert"), called[1:]
    return looks and all(isinstance(call.func, ast.Name) and call.func.id in _HARMLESS for call in called)


@lru_cache(maxsize=64)
def _lines_within_strings(source: bytes) -> frozenset[int]:
    """Lines, from 1, that begin inside a string: their indentation says something."""
    found: set[int] = set()
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type == tokenize.STRING:
                found |= set(range(token.start[0] + 1, token.end[0] + 1))
    return frozenset(found)


class Values:
    """Expressions of a test with what is known put in place of names. ``stateful``: something may have been done in
    between to what one of them names, so that they do not say the same any more.
    """

    def __init__(self, scene: FailingStatement, *, expand: bool = True) -> None:
        self.free: set[str] = set()
        self.stateful = False
        self.told_in_steps = not expand
        self._literals = scene.failure.names
        arguments = scene.function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self._local = {argument.arg for argument in every}
        self._line = scene.statement.lineno
        self._known_at = min(scene.failure.line, self._line)
        self._stored: dict[str, list[tuple[int, ast.expr | None]]] = {}
        self._touched = list(_touched(scene.function))
        plain = {
            id(name): value
            for node in ast.walk(scene.function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            for name, value in _parts(target, node.value)
        }
        for node in ast.walk(scene.function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._local.add(node.id)
                self._stored.setdefault(node.id, []).append((node.lineno, plain.get(id(node))))

    def text(self, node: ast.AST) -> str:
        """In one line; what it leaves to be known is in ``free`` from then on."""
        put = self._put(copy.deepcopy(node), self._line, 0)
        self.free |= free_names(put)
        return ast.unparse(put).replace("\n", "; ")

    def is_plain(self, node: ast.expr) -> bool:
        try:
            ast.literal_eval(self._put(copy.deepcopy(node), self._line, 0))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return False
        return True

    def calls(self, node: ast.expr) -> bool:
        """Whether something is called for it, there or where it was assigned."""
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        made = [value for name in names for at, value in self._stored.get(name, []) if at < self._line]
        return any(isinstance(inner, ast.Call) for root in (node, *filter(None, made)) for inner in ast.walk(root))

    def _put(self, node: ast.AST, line: int, depth: int) -> ast.AST:
        """With names as they are when ``line`` begins."""
        values = self

        class Put(ast.NodeTransformer):
            def visit_Name(self, name: ast.Name) -> ast.AST:
                return values._value(name, line, depth)

            def visit_Call(self, call: ast.Call) -> ast.AST:
                self.generic_visit(call)
                plain: list[ast.expr] = []
                for argument in call.args:
                    spread = isinstance(argument, ast.Starred) and isinstance(argument.value, ast.List | ast.Tuple)
                    plain += argument.value.elts if spread else [argument]  # type: ignore[attr-defined]  # seen above
                call.args = plain
                return _reduced(call)

        put: ast.AST = Put().visit(node)
        return ast.fix_missing_locations(put)

    def _value(self, name: ast.Name, line: int, depth: int) -> ast.AST:
        if self.told_in_steps or not isinstance(name.ctx, ast.Load) or name.id not in self._local:
            return name
        stored = self._stored.get(name.id, [])
        before = [(at, made) for at, made in stored if at < line]
        at, made = max(before, key=lambda pair: pair[0], default=(0, None))
        calls = made is not None and any(isinstance(node, ast.Call) for node in ast.walk(made))
        same = len(before) == sum(when < self._known_at for when, _ in stored)
        if name.id in self._literals and same and not calls:
            return parsed(self._literals[name.id]).body[0].value  # type: ignore[no-any-return, union-attr]  # one expression
        if made is not None and depth < _DEPTH:
            self.stateful |= any(name.id == who and at < when < self._line for who, when in self._touched)
            return self._put(copy.deepcopy(made), at, depth + 1)
        return name


def _parts(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Of ``a, b = f()`` that a is ``f()[0]`` and b is ``f()[1]``."""
    yield target, value
    if isinstance(target, ast.Tuple | ast.List) and not any(isinstance(item, ast.Starred) for item in target.elts):
        for index, item in enumerate(target.elts):
            whole = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            part = ast.Subscript(value=value, slice=ast.Constant(index), ctx=ast.Load())
            yield item, value.elts[index] if whole else part  # type: ignore[attr-defined]  # seen above


def _touched(function: Function) -> Iterator[tuple[str, int]]:
    """Names by whose value something may have been changed, and the line: what is called of it or with it, or set in
    it."""
    for node in ast.walk(function):
        places: list[ast.expr] = []
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _HARMLESS):
            places = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            places += [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            places = [node.value]
        elif isinstance(node, ast.AugAssign):
            places = [node.target]
        elif isinstance(node, ast.With):
            places = [item.context_expr for item in node.items]
        for place in places:
            for inner in ast.walk(place):
                if isinstance(inner, ast.Name):
                    yield inner.id, place.lineno


def _reduced(call: ast.Call) -> ast.expr:
    """A lambda that is called at once, or a join of literals, as what it comes to."""
    made = call.func
    if isinstance(made, ast.Attribute) and made.attr == "join" and isinstance(made.value, ast.Constant):
        with suppress(ValueError, TypeError, AttributeError, SyntaxError):
            return ast.Constant(made.value.value.join(ast.literal_eval(call.args[0])))  # type: ignore[union-attr]  # or suppressed
    if not isinstance(made, ast.Lambda) or call.keywords or len(made.args.args) != len(call.args):
        return call
    given = {argument.arg: value for argument, value in zip(made.args.args, call.args, strict=True)}

    class Give(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:
            return given.get(name.id, name)

    return Give().visit(made.body)  # type: ignore[no-any-return]  # an expression
