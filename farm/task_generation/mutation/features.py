"""Choose features to delete: functions that few tests execute, with the names that nothing else uses."""

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence

from farm.grading.decoys.python_source import Function
from farm.task_generation.mutation.edits import ByteEdit, apply_edits, body_of, fingerprint, functions_of, parse_source
from farm.task_generation.mutation.fault_choice import Fault
from farm.task_generation.mutation.trials import BaselineRun

OPERATOR = "deleted feature"
MAX_TESTS_SHARE = 0.08
MAX_TESTS = 12
"""A feature has few tests if at most this number, or MAX_TESTS_SHARE of all tests, execute it."""
MIN_STATEMENTS = 4


def choose_features(
    sources: Mapping[str, bytes], tests: Mapping[str, bytes], baseline: BaselineRun, rng: random.Random, limit: int
) -> list[Fault]:
    """Return at most ``limit`` features as faults, in an order that ``rng`` decides."""
    functions = [
        (path, name, node, tree)
        for path in sorted(sources)
        if baseline.lines.get(path) and (tree := parse_source(sources[path])) is not None
        for name, node in functions_of(tree)
    ]
    rng.shuffle(functions)
    features: list[Fault] = []
    for path, name, node, tree in functions:
        if len(features) >= limit:
            break
        body = body_of(node)
        if not _is_feature(name, node, body):
            continue
        first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
        executing = baseline.tests_of(path, first, last)
        if not 0 < len(executing) <= max(MAX_TESTS, MAX_TESTS_SHARE * len(baseline.passing)):
            continue
        elsewhere = [text for other, text in (*sources.items(), *tests.items()) if other != path]
        edits = _deletion_edits(sources[path], tree, body, elsewhere)
        changed = parse_source(apply_edits(sources[path], edits))
        if changed is not None:
            features.append(Fault(fingerprint(path, name, OPERATOR), path, name, OPERATOR, edits, executing))
    return features


def _is_feature(name: str, node: Function, body: Sequence[ast.stmt]) -> bool:
    """Return whether the function has a body of its own with at least MIN_STATEMENTS statements."""
    short_name = name.rpartition(".")[2]
    if short_name == "__init__" or not body or body[0].lineno == node.lineno:
        return False
    statements = sum(isinstance(child, ast.stmt) for statement in body for child in ast.walk(statement))
    return statements >= MIN_STATEMENTS


def _deletion_edits(
    source: bytes, tree: ast.Module, body: Sequence[ast.stmt], elsewhere: Sequence[bytes]
) -> tuple[ByteEdit, ...]:
    """Return edits that empty the function and delete the definitions that only it uses, directly or not.

    ``elsewhere``: the texts of all other files.
    """
    starts = [0, *(match.end() for match in re.finditer(rb"\n", source)), len(source)]
    first = body[0]
    first_line = min([first.lineno, *(item.lineno for item in getattr(first, "decorator_list", []))])
    spans = [(starts[first_line - 1], _end(starts, body[-1]))]
    indent = source[spans[0][0] :][: first.col_offset]
    used = {name for statement in body for name in _names(statement)}
    candidates = list(_definitions(tree))
    repeat = True
    while repeat:
        repeat = False
        for names, node in candidates:
            top = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
            span = (starts[top - 1], _end(starts, node))
            if any(span[0] < end and start < span[1] for start, end in spans) or used.isdisjoint(names):
                continue
            if any(_is_used(name, source, [*spans, span], elsewhere) for name in names):
                continue
            spans.append(span)
            used |= set(_names(node))
            repeat = True
    newline = b"\r\n" if source[: starts[1]].endswith(b"\r\n") else b"\n"
    edits = [ByteEdit(*spans[0], indent + b"raise NotImplementedError" + newline)]
    return tuple(sorted([*edits, *(ByteEdit(*span, b"") for span in spans[1:])]))


def _end(starts: Sequence[int], node: ast.stmt) -> int:
    return starts[min(node.end_lineno or node.lineno, len(starts) - 1)]


def _names(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr


def _definitions(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], ast.stmt]]:
    """Yield the names and the statement of each definition that could be deleted with a function.

    These are functions, private methods, constants and imports.
    """
    for node in tree.body:
        if isinstance(node, Function):
            yield (node.name,), node
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield (node.targets[0].id,), node
        elif isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__":
            yield tuple((alias.asname or alias.name).partition(".")[0] for alias in node.names), node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body[1:]:
                if isinstance(inner, Function) and inner.name.startswith("_") and not inner.name.startswith("__"):
                    yield (inner.name,), inner


def _is_used(name: str, source: bytes, deleted: Sequence[tuple[int, int]], elsewhere: Sequence[bytes]) -> bool:
    """Return whether a name occurs outside the ``deleted`` byte ranges, in comments and strings too."""
    word = re.compile(rb"(?<!\w)" + re.escape(name.encode()) + rb"(?!\w)")
    if name == "*" or any(word.search(text) for text in elsewhere):
        return True
    return any(not any(start <= match.start() < end for start, end in deleted) for match in word.finditer(source))
