"""``StatementNames``: the meaning of a test's names to a reader who has the repository without that test."""

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from farm.grading.decoys.python_source import Function
from farm.task_generation.mutation.edits import StatementParent, body_of, parse_source

MAX_VALUE_CHARS = 120
_PYTEST_FIXTURES = frozenset({"capfd", "caplog", "capsys", "monkeypatch", "recwarn", "request", "tmp_path", "tmpdir"})
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class NameMeaning:
    """The meaning of a name.

    ``explanation``: text for the reader, empty if the name explains itself. ``file``: the test file that has to stay in
    the repository for it.
    """

    explanation: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class StatementNames:
    """The names of one test.

    ``inside``: names bound in the test or in a function around it. ``arguments``: names that pytest passes. ``star``:
    the module has a star import.
    """

    arguments: frozenset[str]
    inside: frozenset[str]
    fixtures: Mapping[str, NameMeaning]
    module: Mapping[str, NameMeaning]
    star: bool

    def meaning(self, name: str) -> NameMeaning | None:
        """Return the meaning of a name, or None if a reader cannot know it."""
        if name in self.arguments:
            return self.fixtures.get(name) or (NameMeaning() if name in _PYTEST_FIXTURES else None)
        if name in self.inside:
            return None
        meaning_here = self.module.get(name)
        return NameMeaning() if meaning_here is None and (self.star or hasattr(builtins, name)) else meaning_here


def names_of(path: str, tree: ast.Module, test: Function, tests: Mapping[str, bytes]) -> StatementNames:
    """Return the names of ``test``, which is in ``tree``, the file at ``path`` of ``tests``."""
    around = [node for node in statements_at(tree, test.lineno) if isinstance(node, Function) and _contains(node, test)]
    arguments = {argument.arg for node in around for argument in _arguments(node)}
    bound = {name for node in around for name in bound_in(*node.body)}
    imported = {name for node in around for name in _imported(node)}
    fixtures: dict[str, NameMeaning] = {}
    module: dict[str, NameMeaning] = {}
    star = False
    for node in _top_level(tree):
        star |= isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        module |= _bindings(node, path, tests)
    # Fixtures of the own file come first, then those of conftest, then others, because test classes inherit fixtures.
    for file in sorted(tests, key=lambda other: (other != path, not _is_conftest(other), other)):
        for name, returned in _fixtures_in(tests[file]).items():
            fixtures.setdefault(name, NameMeaning(returned or f"is a fixture in `{file}`", file))
    return StatementNames(frozenset(arguments), frozenset(bound - imported), fixtures, module, star)


def statements_at(tree: ast.AST, line: int) -> list[ast.stmt]:
    """Return the statements around a line, outer before inner."""
    statements: list[ast.stmt] = []
    queue: list[ast.AST] = [tree]
    for node in queue:
        if isinstance(node, ast.stmt):
            if not node.lineno <= line <= (node.end_lineno or node.lineno):
                continue
            statements.append(node)
        queue += [child for child in ast.iter_child_nodes(node) if isinstance(child, StatementParent)]
    return statements


def free_names(*nodes: ast.AST) -> set[str]:
    """Return names that are read in the nodes and not bound there."""
    return {
        node.id for root in nodes for node in ast.walk(root) if isinstance(node, ast.Name) and _is_read(node)
    } - bound_in(*nodes)


def bound_in(*nodes: ast.AST) -> set[str]:
    """Return names that the nodes bind."""
    names: set[str] = set()
    for node in (inner for root in nodes for inner in ast.walk(root)):
        if isinstance(node, ast.Name) and not _is_read(node):
            names.add(node.id)
        elif isinstance(node, _Definition):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add(_bound_by(node))
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _contains(outer: Function, inner: Function) -> bool:
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


def _top_level(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those below ``if`` and ``try``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.If | ast.Try | ast.With | ast.For | ast.ExceptHandler):
            yield from _top_level(child)


def _bindings(node: ast.stmt, path: str, tests: Mapping[str, bytes]) -> Mapping[str, NameMeaning]:
    """Return the names that a statement of a test file binds, with their meaning."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {_bound_by(alias): _import_meaning(node, alias, path, tests) for alias in node.names}
    in_file = NameMeaning(f"is in `{path}`", path)
    if isinstance(node, _Definition):
        return {node.name: in_file}
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return {node.targets[0].id: NameMeaning(f"is `{value}`") if (value := _literal(node.value)) else in_file}
    return dict.fromkeys(bound_in(node), in_file) if isinstance(node, ast.Assign | ast.AnnAssign | ast.For) else {}


def _literal(node: ast.expr) -> str:
    text = ast.unparse(node)
    try:
        ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ""
    return text if len(text) <= MAX_VALUE_CHARS else ""


def _import_meaning(
    node: ast.Import | ast.ImportFrom, alias: ast.alias, path: str, tests: Mapping[str, bytes]
) -> NameMeaning:
    """Return the meaning of an imported name, with its file if that is a test file."""
    module = (node.module or alias.name) if isinstance(node, ast.ImportFrom) else alias.name
    own = isinstance(node, ast.ImportFrom) and node.level > 0
    if not own and "." in module and module.partition(".")[0] not in ("test", "tests"):
        return NameMeaning()
    directory = path.rpartition("/")[0]
    module_file = f"{directory}/{module.rpartition('.')[2]}.py".removeprefix("/")
    return NameMeaning(f"is in `{module_file}`", module_file) if module_file in tests else NameMeaning()


@lru_cache(maxsize=256)
def _fixtures_in(source: bytes) -> Mapping[str, str]:
    """Return the fixtures of a file by name, with the returned value if it is short."""
    tree = parse_source(source) if b"fixture" in source else None
    return {
        node.name: _returned_value(node)
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, Function) and any("fixture" in ast.unparse(line) for line in node.decorator_list)
    }


def _is_conftest(path: str) -> bool:
    return path.rpartition("/")[2] == "conftest.py"


def _returned_value(node: Function) -> str:
    """Return the value of a fixture that only returns something short, else an empty text."""
    body = body_of(node)
    if node.args.args or len(body) != 1 or not isinstance(only := body[0], ast.Return) or only.value is None:
        return ""
    text = ast.unparse(only.value)
    return f"is `{text}`" if len(text) <= MAX_VALUE_CHARS else ""
