"""Tests that judge a task are taken out of its repository, function by function."""

import ast
from collections.abc import Iterable, Mapping

from farm.task_generation.mutation.edits import parsed
from farm.tasks.sdist.release_pair import Files


def hide_tests(tests: Files, ids: Iterable[str]) -> Mapping[str, bytes | None]:
    """The files that ``ids`` are in, without their functions; None for a file that goes as a whole, since one of them
    was not found in it."""
    by_file: dict[str, set[str]] = {}
    for test in ids:
        path, _, name = test.partition("::")
        by_file.setdefault(path, set()).add(name.partition("[")[0])
    return {path: without(tests[path].content, names) for path, names in sorted(by_file.items())}


def without(source: bytes, names: Iterable[str]) -> bytes | None:
    """The file without the tests of the names ``test_a`` or ``TestB::test_c``."""
    tree = parsed(source)
    if tree is None:
        return None
    lines = source.splitlines(keepends=True)
    gone: set[int] = set()
    for name in names:
        found = _find(tree.body, name.split("::"))
        if not found:
            return None
        for node in found:
            last = node.end_lineno or node.lineno
            while last < len(lines) and not lines[last].strip():
                last += 1
            gone |= set(range(_first(lines, node), last + 1))
    kept = [line for number, line in enumerate(lines, 1) if number not in gone]
    for inner in ast.walk(tree):
        if isinstance(inner, ast.ClassDef) and all(child.lineno in gone for child in inner.body):
            return _with_pass(lines, gone, tree)
    result = b"".join(kept)
    return result if parsed(result) is not None else None


def _with_pass(lines: list[bytes], gone: set[int], tree: ast.Module) -> bytes | None:
    """Where classes have lost all that they held."""
    filled: dict[int, bytes] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.lineno not in gone and all(c.lineno in gone for c in node.body):
            filled[max(child.end_lineno or child.lineno for child in node.body)] = (
                b" " * node.body[0].col_offset + b"pass\n"
            )
    parts = [filled.get(number, b"") if number in gone else line for number, line in enumerate(lines, 1)]
    result = b"".join(parts)
    return result if parsed(result) is not None else None


def _find(body: list[ast.stmt], names: list[str]) -> list[ast.stmt]:
    """Every statement that makes the name: a function under ``if`` may be written twice."""
    head, *rest = names
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == head and rest:
            found += _find(node.body, rest)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == head and not rest:
            found.append(node)
    return found


def _first(lines: list[bytes], node: ast.stmt) -> int:
    """The line of the first decorator, or of the comment right above."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    while first > 1 and lines[first - 2].lstrip().startswith(b"#"):
        first -= 1
    return first
