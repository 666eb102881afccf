"""Questions about real code with known answers: docstrings and their functions, changelog entries and changed files.

The sources are downloaded source distributions, so none are stored here. The searched text never contains the question:
docstrings are removed, and a changelog is that of the next release.
"""

import ast
import hashlib
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Files = Mapping[str, str]
"""Path → text."""

_WORDS = re.compile(r"[A-Za-z]{2,}")
_TESTS = re.compile(r"(^|/)(tests?|testing|docs?|examples?|benchmarks?|conftest\.py|test_[^/]*|[^/]*_test\.py)(/|$)")
_CHANGELOG = re.compile(r"(^|/)(changes|changelog|history|news|versions|releases/[^/]+)(\.\w+)?$", re.IGNORECASE)
_VERSION = r"(?<![\w.])v?{}(?:\.0)?(?![\w]|\.\d)"
_ANY_VERSION = re.compile(r"(?<![\w.])v?\d+\.\d+(\.\d+)?(?![\w]|\.\d)")
_RULE = re.compile(r"\s*([-=~^*#+])\1{2,}\s*")
_BULLET = re.compile(r"(\s*)[-*+]\s+(?=\S)")
_MARKUP = re.compile(r":[\w:]+:`|[`*]+|\(?#\d+\)?|<[^>]*>|https?://\S+|\bgh-\d+\b|:(?:issue|pr|user)\b")


@dataclass(frozen=True, slots=True)
class Case:
    """One question. ``answers``: definitions as (path, dotted name), or files as (path, ""); any of them is correct."""

    question: str
    answers: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Suite:
    package: str
    files: Files
    cases: Sequence[Case]


def docstring_suite(package: str, files: Files, most: int) -> Suite:
    """Build questions from docstrings: the first paragraph asks for its function, in sources without any docstring."""
    stripped: dict[str, str] = {}
    answers_by_question: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path, text in files.items():
        if not path.endswith(".py"):
            continue
        tree = _parse(text)
        if tree is None:
            continue
        stripped[path] = without_docstrings(text, tree)
        if not _TESTS.search(path):
            for name, question in _documented(tree, ""):
                answers_by_question[question].add((path, name))
    cases = [Case(question, frozenset(answers)) for question, answers in answers_by_question.items()]
    return Suite(package, stripped, _sample(cases, most))


def release_suite(package: str, old: Files, new: Files, version: str, most: int) -> Suite:
    """Build questions from a changelog: each entry asks for the files, tests excluded, that the release changed."""
    changed = frozenset(
        (path, "")
        for path, text in new.items()
        if path.endswith(".py") and not _TESTS.search(path) and path in old and _essence(old[path]) != _essence(text)
    )
    entries = dict.fromkeys(_entries(new, old, version)) if changed else ()
    return Suite(package, old, _sample([Case(entry, changed) for entry in entries], most))


def without_docstrings(text: str, tree: ast.Module) -> str:
    """Return the same lines with an empty string in place of each docstring."""
    lines = text.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is None:
            continue
        docstring = node.body[0]
        first, last = docstring.lineno - 1, (docstring.end_lineno or docstring.lineno) - 1
        head = lines[first].encode()[: docstring.col_offset].decode()
        tail = lines[last].encode()[docstring.end_col_offset or 0 :].decode()
        lines[first : last + 1] = [head + '""' + tail, *[""] * (last - first)]
    return "\n".join(lines)


def _documented(node: ast.AST, within: str) -> Iterator[tuple[str, str]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.ClassDef):
            yield from _documented(inner, f"{within}{inner.name}.")
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            text = " ".join((ast.get_docstring(inner) or "").split("\n\n")[0].split())
            if 4 <= len(_WORDS.findall(text)) <= 60:
                yield within + inner.name, text


def _entries(new: Files, old: Files, version: str) -> Iterator[str]:
    for path, text in new.items():
        if _CHANGELOG.search(path) and text != old.get(path):
            for entry in _bullets(_section(text.split("\n"), version)):
                text = " ".join(_MARKUP.sub(" ", entry).split())
                if 5 <= len(_WORDS.findall(text)) <= 120:
                    yield text


def _section(lines: Sequence[str], version: str) -> Sequence[str]:
    """Return the lines below the heading of a version, up to the next version's."""
    wanted = re.compile(_VERSION.format(re.escape(version.removesuffix(".0"))))
    headings = [
        number
        for number, line in enumerate(lines)
        if len(line) < 80
        and _ANY_VERSION.search(line)
        and (line.startswith(("#", "Version ", "Release ", "v")) or _is_heading(lines, number))
    ]
    for at, number in enumerate(headings):
        if wanted.search(lines[number]):
            return lines[number + 1 : headings[at + 1] if at + 1 < len(headings) else None]
    return []


def _is_heading(lines: Sequence[str], number: int) -> bool:
    after = lines[number + 1] if number + 1 < len(lines) else ""
    return _RULE.fullmatch(after) is not None or re.match(r"(\[|\d|What's new)", lines[number]) is not None


def _bullets(lines: Sequence[str]) -> Iterator[str]:
    entry: list[str] = []
    for line in lines:
        if _BULLET.match(line):
            yield " ".join(entry)
            entry = [_BULLET.sub("", line, count=1)]
        elif line.strip() and entry and line[:1] in " \t":
            entry.append(line.strip())
        elif entry:
            yield " ".join(entry)
            entry = []
    yield " ".join(entry)


def _essence(text: str) -> str:
    """Return a file's content without version numbers, comments and layout."""
    tree = _parse(text)
    return _ANY_VERSION.sub("", ast.dump(tree) if tree else text)


def _parse(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _sample(cases: Sequence[Case], most: int) -> list[Case]:
    """Select cases deterministically from all parts of the package."""
    return sorted(cases, key=lambda case: hashlib.sha256(case.question.encode()).digest())[:most]
