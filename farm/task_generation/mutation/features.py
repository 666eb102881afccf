"""Features to take out: functions whose tests are few, with the names that nothing uses once they are gone."""

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence

from farm.grading.decoys.python_source import Function
from farm.task_generation.mutation.edits import ByteEdit, apply_edits, body_of, fingerprint, functions_of, parsed
from farm.task_generation.mutation.faults import Fault
from farm.task_generation.mutation.trials import BaselineRun

OPERATOR = "deleted feature"
MOST_TESTS_SHARE = 0.08
MOST_TESTS = 12
"""A set of tests is small where it has no more than this, or that share of all."""
LEAST_STATEMENTS = 4


def choose_features(
    sources: Mapping[str, bytes], tests: Mapping[str, bytes], survey: BaselineRun, rng: random.Random, most: int
) -> list[Fault]:
    """At most ``most`` features, in an order that ``rng`` decides."""
    found = [
        (path, name, node, tree)
        for path in sorted(sources)
        if survey.lines.get(path) and (tree := parsed(sources[path])) is not None
        for name, node in functions_of(tree)
    ]
    rng.shuffle(found)
    features: list[Fault] = []
    for path, name, node, tree in found:
        if len(features) >= most:
            break
        body = body_of(node)
        if not _is_worth_it(name, node, body):
            continue
        first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
        noticing = survey.tests_of(path, first, last)
        if not 0 < len(noticing) <= max(MOST_TESTS, MOST_TESTS_SHARE * len(survey.passing)):
            continue
        elsewhere = [text for other, text in (*sources.items(), *tests.items()) if other != path]
        edits = _take_out(sources[path], tree, body, elsewhere)
        changed = parsed(apply_edits(sources[path], edits))
        if changed is not None:
            features.append(Fault(fingerprint(path, name, OPERATOR), path, name, OPERATOR, edits, noticing))
    return features


def _is_worth_it(name: str, node: Function, body: Sequence[ast.stmt]) -> bool:
    own = name.rpartition(".")[2]
    if own == "__init__" or not body or body[0].lineno == node.lineno:
        return False
    statements = sum(isinstance(child, ast.stmt) for statement in body for child in ast.walk(statement))
    return statements >= LEAST_STATEMENTS


def _take_out(
    source: bytes, tree: ast.Module, body: Sequence[ast.stmt], elsewhere: Sequence[bytes]
) -> tuple[ByteEdit, ...]:
    starts = [0, *(match.end() for match in re.finditer(rb"\n", source)), len(source)]
    first = body[0]
    begin = min([first.lineno, *(item.lineno for item in getattr(first, "decorator_list", []))])
    spans = [(starts[begin - 1], _end(starts, body[-1]))]
    indent = source[spans[0][0] :][: first.col_offset]
    used = {name for statement in body for name in _names(statement)}
    definitions = list(_definitions(tree))
    found = True
    while found:
        found = False
        for names, node in definitions:
            top = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
            span = (starts[top - 1], _end(starts, node))
            if any(span[0] < end and start < span[1] for start, end in spans) or used.isdisjoint(names):
                continue
            if any(_occurs(name, source, [*spans, span], elsewhere) for name in names):
                continue
            spans.append(span)
            used |= set(_names(node))
            found = True
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
    """What could go with a function: other functions, helpers of its class, constants and imports, a statement each."""
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


def _occurs(name: str, source: bytes, gone: Sequence[tuple[int, int]], elsewhere: Sequence[bytes]) -> bool:
    """Whether the word stands in what would be left, in a comment or a string too."""
    word = re.compile(rb"(?<!\w)" + re.escape(name.encode()) + rb"(?!\w)")
    if name == "*" or any(word.search(text) for text in elsewhere):
        return True
    return any(not any(start <= match.start() < end for start, end in gone) for match in word.finditer(source))
