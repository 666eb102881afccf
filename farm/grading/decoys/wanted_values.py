"""The value that a comparison wants, made another."""

import ast
import random
from collections.abc import Sequence

from farm.grading.decoys.literals import differ, is_literal, leaves_of, other_number, other_string
from farm.grading.decoys.python_source import Function, SourceEdit, SourceText, last_name

Variant = tuple[SourceEdit, ...]
"""Edits of a test file that make one test false."""


def unequal(
    text: SourceText, test: Function | None, left: ast.expr, right: ast.expr, rng: random.Random
) -> Variant | None:
    if "approx" in (last_name(left), last_name(right)):
        return replaced(text, left, right, rng)
    for wanted, seen in ((right, left), (left, right)):
        if test is not None and isinstance(wanted, ast.Name):
            rows = _rows(test, wanted.id)
            edits = [edit for edit in (_alter(text, row, rng) for row in rows) if edit is not None]
            if rows and len(edits) == len(rows):
                return tuple(edits)
        elif not is_literal(seen):
            edit = _alter(text, wanted, rng)
            if edit is not None:
                return (edit,)
    return replaced(text, left, right, rng)


def replaced(text: SourceText, left: ast.expr, right: ast.expr, rng: random.Random) -> Variant | None:
    """Return the edit that puts a made-up literal, or an approximate one, in the place of the wanted value."""
    near = [_alter_approximate(text, side, rng) for side in (left, right) if last_name(side) == "approx"]
    if near:
        return (near[0],) if near[0] is not None else None
    if is_literal(left) and is_literal(right):
        return None
    wanted = left if _calls(right) and not _calls(left) else right
    return (SourceEdit(*text.span(wanted), _made_up(text, rng)),)


def _calls(expression: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(expression))


def _made_up(text: SourceText, rng: random.Random) -> bytes:
    """Return a literal that no sound program gives: it does not occur in the file."""
    while True:
        words = b" ".join(rng.sample(sorted(text.words), 2)) if len(text.words) > 1 and rng.random() < 0.5 else b""
        made = b'"' + words + b'"' if words else str(rng.randint(1_000, 99_999)).encode()
        if made not in text.source:
            return made


def _alter_approximate(text: SourceText, wanted: ast.expr, rng: random.Random) -> SourceEdit | None:
    """Return the edit that makes the number in ``approx(number)`` one that no tolerance reaches."""
    match wanted:
        case ast.Call(args=[ast.Constant(value=int() | float()) as number], keywords=named) if last_name(
            wanted
        ) == "approx" and all(_is_narrow(one) for one in named):
            far = rng.randint(2, 9) * 10 ** (len(str(number.value).partition(".")[0]) + 2) + rng.randint(11, 99)
            return SourceEdit(*text.span(number), str(far).encode())
    return None


def _is_narrow(named: ast.keyword) -> bool:
    """Return True if a tolerance of ``approx`` is so small that a number of two more digits is beyond it."""
    most = {"abs": 100, "rel": 0.1}.get(named.arg or "")
    match named.value:
        case ast.Constant(value=int() | float() as tolerance):
            return most is not None and tolerance <= most
    return False


def _rows(function: Function, name: str) -> Sequence[ast.expr]:
    """Return what a name stands for, its one value or a parameter's, if it serves for nothing but the comparison."""
    uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    for statement in function.body if len(uses) == 2 else ():
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name and is_literal(value):
                return (value,)
    if len(uses) != 1:
        return ()
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(
                func=ast.Attribute(attr="parametrize"),
                args=[ast.Constant(value=str(joined)), ast.List(elts=rows) | ast.Tuple(elts=rows)],
                keywords=[],
            ):
                names = [part.strip() for part in joined.split(",") if part.strip()]
            case _:
                continue
        if name in names:
            found = [_cell(row, names.index(name), len(names)) for row in rows]
            cells = [cell for cell in found if cell is not None]
            return cells if len(cells) == len(found) else ()
    return ()


def _cell(row: ast.expr, index: int, count: int) -> ast.expr | None:
    match row:
        case ast.Call(func=ast.Attribute(attr="param"), args=cells):
            pass
        case ast.Tuple(elts=cells) | ast.List(elts=cells) if count > 1:
            pass
        case _:
            cells = [row]
    fit = len(cells) == count and not any(isinstance(cell, ast.Starred) for cell in cells)
    return cells[index] if fit else None


def _alter(text: SourceText, wanted: ast.expr, rng: random.Random) -> SourceEdit | None:
    """Return the edit that makes a literal, or one inside a list, tuple, set or dict, another one of the same type.

    None if there is no number and no string to alter.
    """
    leaves = list(leaves_of(wanted))
    rng.shuffle(leaves)
    for leaf in leaves:
        start, end = text.span(leaf)
        make = other_number if isinstance(leaf.value, int | float) else other_string
        new = make(text.source[start:end], text, rng)
        if new is not None and differ(leaf.value, new):
            return SourceEdit(start, end, new)
    return None
