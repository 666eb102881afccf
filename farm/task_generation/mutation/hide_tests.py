"""Remove the tests that decide a task from its repository, function by function."""

import ast
from collections.abc import Iterable, Mapping

from farm.task_generation.mutation.edits import parse_source
from farm.tasks.sdist.release_pair import Files


def hide_tests(tests: Files, ids: Iterable[str]) -> Mapping[str, bytes | None]:
    """Return the files that have the tests ``ids``, without these tests.

    None stands for a file to delete as a whole, because one of the tests is not found in it.
    """
    by_file: dict[str, set[str]] = {}
    for test in ids:
        path, _, name = test.partition("::")
        by_file.setdefault(path, set()).add(name.partition("[")[0])
    return {path: remove_tests(tests[path].content, names) for path, names in sorted(by_file.items())}


def remove_tests(source: bytes, names: Iterable[str]) -> bytes | None:
    """Return the file without the tests ``test_a`` or ``TestB::test_c``, or None if one is not found."""
    tree = parse_source(source)
    if tree is None:
        return None
    lines = source.splitlines(keepends=True)
    removed: set[int] = set()
    for name in names:
        definitions = _definitions(tree.body, name.split("::"))
        if not definitions:
            return None
        for node in definitions:
            last = node.end_lineno or node.lineno
            while last < len(lines) and not lines[last].strip():
                last += 1
            removed |= set(range(_first_line(lines, node), last + 1))
    kept_lines = [line for number, line in enumerate(lines, 1) if number not in removed]
    for inner in ast.walk(tree):
        if isinstance(inner, ast.ClassDef) and all(child.lineno in removed for child in inner.body):
            return _fill_empty_classes(lines, removed, tree)
    result = b"".join(kept_lines)
    return result if parse_source(result) is not None else None


def _fill_empty_classes(lines: list[bytes], removed: set[int], tree: ast.Module) -> bytes | None:
    """Return the file without the ``removed`` lines and with ``pass`` in classes that have lost their whole body."""
    replacements: dict[int, bytes] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ClassDef)
            and node.lineno not in removed
            and all(c.lineno in removed for c in node.body)
        ):
            replacements[max(child.end_lineno or child.lineno for child in node.body)] = (
                b" " * node.body[0].col_offset + b"pass\n"
            )
    parts = [replacements.get(number, b"") if number in removed else line for number, line in enumerate(lines, 1)]
    result = b"".join(parts)
    return result if parse_source(result) is not None else None


def _definitions(body: list[ast.stmt], names: list[str]) -> list[ast.stmt]:
    """Return every definition of the name, because a function may be defined in both branches of an ``if``."""
    head, *rest = names
    matches: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == head and rest:
            matches += _definitions(node.body, rest)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == head and not rest:
            matches.append(node)
    return matches


def _first_line(lines: list[bytes], node: ast.stmt) -> int:
    """Return the first line of the decorators, or of the comment right above."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    while first > 1 and lines[first - 2].lstrip().startswith(b"#"):
        first -= 1
    return first
