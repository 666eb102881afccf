"""Text edits of a source file, and what a function is once comments and layout are passed over."""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from farm.grading.decoys.python_source import Function, parse_tests

Holder = ast.stmt | ast.ExceptHandler | ast.match_case
"""What statements may be in."""

parsed = parse_tests
"""A source file as a tree, one at a time; None for what is empty, no Python of this version, or too big."""


@dataclass(frozen=True, slots=True, order=True)
class ByteEdit:
    """Bytes ``start`` to ``end`` become ``text``."""

    start: int
    end: int
    text: bytes


def apply_edits(source: bytes, edits: Iterable[ByteEdit]) -> bytes:
    """Raises ValueError where two overlap."""
    parts: list[bytes] = []
    at = 0
    for edit in sorted(edits):
        if edit.start < at:
            raise ValueError("two edits overlap")
        parts += (source[at : edit.start], edit.text)
        at = edit.end
    return b"".join((*parts, source[at:]))


def functions_of(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Functions and methods by qualified name, outer before inner."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
            yield from functions_of(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node, f"{prefix}{node.name}.")
        elif isinstance(node, Holder):
            yield from functions_of(node, prefix)


def body_of(node: Function) -> list[ast.stmt]:
    """Without the docstring."""
    body = node.body
    first = body[0]
    says = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return body[1:] if says else body


def meaning(tree: ast.AST, function: str) -> str:
    """What all functions of that qualified name say, without comments, layout and positions; empty: there is none."""
    return "\n".join(ast.dump(node) for name, node in functions_of(tree) if name == function)


def fingerprint(*parts: str) -> str:
    """16 hex digits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
