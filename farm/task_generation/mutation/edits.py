"""Edits of source files as byte ranges, and comparison of functions without comments and layout."""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from farm.grading.decoys.python_source import Function, parse_tests

StatementParent = ast.stmt | ast.ExceptHandler | ast.match_case
"""Nodes whose body is a list of statements."""

parse_source = parse_tests
"""Return the syntax tree of a source file, or None if it is empty, not Python of this version, or too large."""


@dataclass(frozen=True, slots=True, order=True)
class ByteEdit:
    """Replacement of the bytes from ``start`` to ``end`` by ``text``."""

    start: int
    end: int
    text: bytes


def apply_edits(source: bytes, edits: Iterable[ByteEdit]) -> bytes:
    """Return ``source`` with all edits applied. Raises ValueError if two edits overlap."""
    parts: list[bytes] = []
    position = 0
    for edit in sorted(edits):
        if edit.start < position:
            raise ValueError("two edits overlap")
        parts += (source[position : edit.start], edit.text)
        position = edit.end
    return b"".join((*parts, source[position:]))


def functions_of(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield functions and methods with their qualified names, outer before inner."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
            yield from functions_of(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node, f"{prefix}{node.name}.")
        elif isinstance(node, StatementParent):
            yield from functions_of(node, prefix)


def body_of(node: Function) -> list[ast.stmt]:
    """Return the statements of a function without the docstring."""
    body = node.body
    first = body[0]
    has_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if has_docstring else body


def function_dump(tree: ast.AST, function: str) -> str:
    """Return the syntax trees of all functions with that qualified name as text, without positions; empty if none."""
    return "\n".join(ast.dump(node) for name, node in functions_of(tree) if name == function)


def fingerprint(*parts: str) -> str:
    """Return 16 hex digits of a hash over ``parts``."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
