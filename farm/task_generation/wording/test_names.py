"""What a name in a test is to a reader who has the repository, but not that test."""

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from farm.grading.decoys.python_source import Function
from farm.task_generation.mutation.edits import Holder, body_of, parsed

LONGEST_VALUE = 120
_PYTEST_GIVES = frozenset({"capfd", "caplog", "capsys", "monkeypatch", "recwarn", "request", "tmp_path", "tmpdir"})
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Known:
    """``says``: what the reader is to be told of the name; empty where it says enough. ``place``: the test file that
    has to stay for it."""

    says: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class StatementNames:
    """Of one test. ``inside`` are bound in it, or in the function around it; ``arguments`` are given by pytest."""

    arguments: frozenset[str]
    inside: frozenset[str]
    fixtures: Mapping[str, Known]
    module: Mapping[str, Known]
    star: bool

    def known(self, name: str) -> Known | None:
        """None where nobody could know it."""
        if name in self.arguments:
            return self.fixtures.get(name) or (Known() if name in _PYTEST_GIVES else None)
        if name in self.inside:
            return None
        found = self.module.get(name)
        return Known() if found is None and (self.star or hasattr(builtins, name)) else found


def names_of(path: str, tree: ast.Module, test: Function, tests: Mapping[str, bytes]) -> StatementNames:
    """``test`` is in ``tree``, the file at ``path`` of ``tests``."""
    around = [node for node in statements_at(tree, test.lineno) if isinstance(node, Function) and _holds(node, test)]
    arguments = {argument.arg for node in around for argument in _arguments(node)}
    bound = {name for node in around for name in bound_in(*node.body)}
    imported = {name for node in around for name in _imported(node)}
    fixtures: dict[str, Known] = {}
    module: dict[str, Known] = {}
    star = False
    for node in _top(tree):
        star |= isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        module |= _given(node, path, tests)
    # Their own file's, else conftest's, else another's: classes of tests inherit fixtures.
    for place in sorted(tests, key=lambda other: (other != path, not _is_conftest(other), other)):
        for name, returned in _fixtures_in(tests[place]).items():
            fixtures.setdefault(name, Known(returned or f"is a fixture in `{place}`", place))
    return StatementNames(frozenset(arguments), frozenset(bound - imported), fixtures, module, star)


def statements_at(tree: ast.AST, line: int) -> list[ast.stmt]:
    """Those that the line is in, the outer ones first."""
    found: list[ast.stmt] = []
    left: list[ast.AST] = [tree]
    for node in left:
        if isinstance(node, ast.stmt):
            if not node.lineno <= line <= (node.end_lineno or node.lineno):
                continue
            found.append(node)
        left += [child for child in ast.iter_child_nodes(node) if isinstance(child, Holder)]
    return found


def free_names(*nodes: ast.AST) -> set[str]:
    """StatementNames that are looked at and not bound there."""
    return {
        node.id for root in nodes for node in ast.walk(root) if isinstance(node, ast.Name) and _is_read(node)
    } - bound_in(*nodes)


def bound_in(*nodes: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in (inner for root in nodes for inner in ast.walk(root)):
        if isinstance(node, ast.Name) and not _is_read(node):
            found.add(node.id)
        elif isinstance(node, _Definition):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add(_bound_by(node))
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _holds(outer: Function, inner: Function) -> bool:
    return outer.lineno <= inner.lineno and (inner.end_lineno or 0) <= (outer.end_lineno or 0)


def _arguments(node: Function) -> list[ast.arg]:
    arguments = node.args
    rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]


def _imported(function: Function) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.alias):
            yield _bound_by(node)


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _top(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements of a module, those below ``if`` and ``try`` too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.If | ast.Try | ast.With | ast.For | ast.ExceptHandler):
            yield from _top(child)


def _given(node: ast.stmt, path: str, tests: Mapping[str, bytes]) -> Mapping[str, Known]:
    """What the statement of a test file binds."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {_bound_by(alias): _of_import(node, alias, path, tests) for alias in node.names}
    here = Known(f"is in `{path}`", path)
    if isinstance(node, _Definition):
        return {node.name: here}
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return {node.targets[0].id: Known(f"is `{value}`") if (value := _literal(node.value)) else here}
    return dict.fromkeys(bound_in(node), here) if isinstance(node, ast.Assign | ast.AnnAssign | ast.For) else {}


def _literal(node: ast.expr) -> str:
    text = ast.unparse(node)
    try:
        ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ""
    return text if len(text) <= LONGEST_VALUE else ""


def _of_import(node: ast.Import | ast.ImportFrom, alias: ast.alias, path: str, tests: Mapping[str, bytes]) -> Known:
    """With its place where it comes from a file of tests."""
    module = (node.module or alias.name) if isinstance(node, ast.ImportFrom) else alias.name
    own = isinstance(node, ast.ImportFrom) and node.level > 0
    if not own and "." in module and module.partition(".")[0] not in ("test", "tests"):
        return Known()
    directory = path.rpartition("/")[0]
    file = f"{directory}/{module.rpartition('.')[2]}.py".removeprefix("/")
    return Known(f"is in `{file}`", file) if file in tests else Known()


@lru_cache(maxsize=256)
def _fixtures_in(source: bytes) -> Mapping[str, str]:
    """What each returns, where that is short."""
    tree = parsed(source) if b"fixture" in source else None
    return {
        node.name: _returns(node)
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, Function) and any("fixture" in ast.unparse(line) for line in node.decorator_list)
    }


def _is_conftest(path: str) -> bool:
    return path.rpartition("/")[2] == "conftest.py"


def _returns(node: Function) -> str:
    """Of a fixture that only returns something short."""
    body = body_of(node)
    if node.args.args or len(body) != 1 or not isinstance(only := body[0], ast.Return) or only.value is None:
        return ""
    text = ast.unparse(only.value)
    return f"is `{text}`" if len(text) <= LONGEST_VALUE else ""
