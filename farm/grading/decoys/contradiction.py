"""Expected tests once more, in a file of their own, asking for something else: no sound program passes both.

The file runs last in the same process as the tests themselves. Objects that equal everything, functions that read the
wanted value out of the test that calls them, and assertions that are turned off pass both.
"""

import ast
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from farm.core.test_frameworks import container_of_test
from farm.grading.decoys.canary_file import new_test_path
from farm.grading.decoys.false_tests import false_versions
from farm.grading.decoys.python_source import (
    NOUNS,
    Function,
    SourceEdit,
    SourceText,
    edited,
    function_of,
    parse_tests,
    read_source,
)
from farm.grading.decoys.wanted_values import Variant

MOST_TESTS = 4
MOST_OF_ONE = 3
"""False versions of one test: each alters another assertion."""


@dataclass(frozen=True, slots=True)
class ContradictingFile:
    """A test file at ``path``. ``originals``: id of a false test → the expected test of which it is a version, both
    without parameters."""

    path: str
    content: bytes
    originals: Mapping[str, str]


def make_contradiction(
    expected: Sequence[str],
    sources: Mapping[str, bytes],
    taken: Collection[str],
    rng: random.Random,
    words: Sequence[str] = NOUNS,
) -> ContradictingFile | None:
    """Return false versions of a few tests of one file, as many as ``MOST_TESTS``, or None if there can be none.

    The first ids of ``expected`` are tried first.
    """
    for path in dict.fromkeys(map(container_of_test, expected)):
        text = read_source(sources.get(path, b""))
        if text is None:
            continue
        names = {function_of(test) for test in expected if container_of_test(test) == path}
        own = new_test_path([path], taken, rng, words)
        made = _contradict(text, names, rng, words)
        if made is not None:
            content, originals = made
            found = {f"{own}::{false}": f"{path}::{name}" for false, name in originals.items()}
            return ContradictingFile(own, content, found)
    return None


def _contradict(
    text: SourceText, names: Collection[str], rng: random.Random, words: Sequence[str]
) -> tuple[bytes, Mapping[str, str]] | None:
    tests = [(name, function) for name, function, _ in text.functions if function.name.startswith("test")]
    fit = list({name: function for name, function in tests if name in names}.items())
    rng.shuffle(fit)
    copies: dict[str, bytes] = {}
    taken: set[str] = set()
    originals: dict[str, str] = {}
    for name, function in fit:
        if name not in copies and len(copies) < MOST_TESTS:
            made = list(_copies(text, function, rng, words, taken))
            if made:
                copies[name] = b"\n".join(copy for _, copy in made)
                originals |= {name.removesuffix(function.name) + other: name for other, _ in made}
    edits = [
        SourceEdit(*block, copies.get(name, b"")) for name, test in tests if (block := text.block(test)) is not None
    ]
    edits += [
        SourceEdit(at, at, b" " * column + b"pass\n") for at, column in _emptied(text, text.module.body, copies, "")
    ]
    content = edited(text.source, edits)
    return (content, originals) if originals and parse_tests(content) is not None else None


def _copies(
    text: SourceText, test: Function, rng: random.Random, words: Sequence[str], taken: set[str]
) -> Iterator[tuple[str, bytes]]:
    """Yield false versions of a test under other names, none of which is ``taken``, each name with its text."""
    block = text.block(test)
    variants: dict[Variant, None] = {}
    for variant in false_versions(text, test, rng, apart=True):
        variants[variant] = None
        if len(variants) == MOST_OF_ONE:
            break
    for variant in variants if block is not None else ():
        name = _other_name(test.name, text.source, words, rng, taken)
        taken.add(name)
        made = edited(text.source[slice(*block)], [*variant, text.name_edit(test, name)], block[0]) if block else b""
        yield name, made if made.endswith(b"\n") else made + b"\n"


def _other_name(name: str, source: bytes, words: Sequence[str], rng: random.Random, taken: Collection[str]) -> str:
    """Return a name like ``name`` with another word in it, which is not ``taken`` and does not occur in ``source``."""
    between = "_" if "_" in name else ""
    parts = name.split("_") if between else re.findall(r"[A-Z]?[^A-Z]+|[A-Z]", name)
    at = rng.randrange(1, len(parts)) if len(parts) > 1 else 1
    for word in rng.sample(words, len(words)):
        made = between.join([*parts[:at], word if between else word.capitalize(), *parts[at + 1 :]])
        if made.encode() not in source and made not in taken:
            return made
    while name.encode() in source or name in taken:
        name = f"{name}{between}{rng.choice(words)}"
    return name


def _emptied(
    text: SourceText, body: Sequence[ast.stmt], copies: Collection[str], prefix: str
) -> Iterator[tuple[int, int]]:
    """Yield the place and the column of a statement for each class of which nothing is left."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            inside = f"{prefix}{statement.name}::"
            yield from _emptied(text, statement.body, copies, inside)
            gone = [
                isinstance(one, Function)
                and one.name.startswith("test")
                and inside + one.name not in copies
                and text.block(one) is not None
                for one in statement.body
            ]
            if all(gone):
                first = statement.body[0]
                assert isinstance(first, Function)
                block = text.block(first)
                assert block is not None
                yield block[0], first.col_offset
