"""Tests of Go, Rust and JavaScript files as tree-sitter sees them: where each stands, its name, and what it wants."""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import tree_sitter
from tree_sitter import Node

from farm.grading.decoys.python_source import PARSED_BYTES

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LocatedTest:
    """A test at the bytes ``whole`` of its file.

    ``scope`` and ``name`` are what its id ends in. ``title`` is where its name is written, ``wanted`` where the one
    literal is that its last statement compares with; None where no double of it can be made. Others may be put at
    ``places``. ``word``: how the file calls what makes a test, where that is a function.
    """

    whole: Span
    scope: str
    name: str
    title: Span
    wanted: Span | None
    places: tuple[int, ...]
    word: str = ""


@lru_cache(maxsize=256)
def find_tests(suffix: str, source: bytes) -> Sequence[LocatedTest]:
    """Those of a file whose name ends in ``suffix``, a dot and more; none where its grammar is not installed."""
    finder = _FINDERS.get(suffix)
    if finder is None or len(source) > PARSED_BYTES:
        return ()
    package, entry, find = finder
    try:
        language = tree_sitter.Language(getattr(importlib.import_module(package), entry)())
    except ImportError:
        return ()
    tree = tree_sitter.Parser(language).parse(source)
    return () if tree.root_node.has_error else tuple(find(tree.root_node, ""))


def _text(node: Node | None) -> str:
    return node.text.decode(errors="replace") if node is not None and node.text is not None else ""


def _span(node: Node) -> Span:
    return node.start_byte, node.end_byte


def _places(first: Node, last: Node) -> tuple[int, ...]:
    """Before and behind; not between a test and a comment on it."""
    before = first.prev_named_sibling
    commented = before is not None and "comment" in before.type
    return (last.end_byte,) if commented else (first.start_byte, last.end_byte)


def _last_statement(body: Node) -> Node | None:
    """None for a body that may end before it."""
    statements = [node for node in body.named_children if "comment" not in node.type]
    return statements[-1] if statements and not re.search(r"\breturn\b", _text(body)) else None


def _only_literal(sides: Sequence[Node], kinds: frozenset[str]) -> Node | None:
    """Of the two sides of a comparison; None where both or neither is one."""
    literals = [side for side in sides if side.type in kinds]
    return literals[0] if len(literals) == 1 and len(sides) == 2 else None


# Rust

_TEST_ATTRIBUTE = re.compile(r"#\[\s*(\w+::)*test\b.*\]", re.DOTALL)
_SHARED_BY_THREADS = re.compile(r"\b(fs|net|env|process|path|thread|time|tempfile|tempdir|static)\b|\b[A-Z]{3,}\b|File")
"""What Rust's tests, which run at once, may share outside the program."""
_RUST_LITERALS = frozenset({"integer_literal", "string_literal"})


def _rust(block: Node, scope: str) -> Iterator[LocatedTest]:
    attributes: list[Node] = []
    for node in block.named_children:
        if node.type == "attribute_item":
            attributes.append(node)
            continue
        said, attributes = attributes, []
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            continue
        if node.type == "mod_item":
            yield from _rust(body, f"{scope}{_text(name)}::")
        elif node.type == "function_item" and any(_TEST_ATTRIBUTE.fullmatch(_text(item)) for item in said):
            alone = "should_panic" not in "".join(map(_text, said)) and not _SHARED_BY_THREADS.search(_text(body))
            wanted = _rust_wanted(body) if alone else None
            yield LocatedTest(
                (said[0].start_byte, node.end_byte),
                scope,
                _text(name),
                _span(name),
                _span(wanted) if wanted is not None else None,
                _places(said[0], node),
            )


def _rust_wanted(body: Node) -> Node | None:
    """The literal of ``assert_eq!(…)``, without a message."""
    last = _last_statement(body)
    call = last.named_child(0) if last is not None and last.type == "expression_statement" else last
    if call is None or call.type != "macro_invocation" or _text(call.child_by_field_name("macro")) != "assert_eq":
        return None
    tokens = call.named_child(1)
    sides: list[list[Node]] = [[]]
    for token in tokens.children[1:-1] if tokens is not None else ():
        if token.type == ",":
            sides.append([])
        else:
            sides[-1].append(token)
    sides = [side for side in sides if side]
    return _only_literal([side[-1] if len(side) == 1 else call for side in sides], _RUST_LITERALS)


# Go

_GO_TEST = re.compile(r"\(\s*(\w+) \*testing\.T\s*\)")
_GO_LITERALS = frozenset({"int_literal", "interpreted_string_literal"})


def _go(file: Node, scope: str) -> Iterator[LocatedTest]:
    for node in file.named_children:
        if node.type != "function_declaration":
            continue
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        taken = _GO_TEST.fullmatch(_text(node.child_by_field_name("parameters")))
        if name is None or body is None or taken is None or not _text(name).startswith("Test"):
            continue
        wanted = None if "Parallel(" in _text(body) else _go_wanted(body, taken[1])
        yield LocatedTest(
            _span(node),
            scope,
            _text(name),
            _span(name),
            _span(wanted) if wanted is not None else None,
            _places(node, node),
        )


def _go_wanted(body: Node, t: str) -> Node | None:
    """The literal of ``if got != 3 { t.Error…`` or of testify's ``Equal(t, 3, got)``."""
    block = body.named_child(0)
    last = _last_statement(block if block is not None and block.type == "statement_list" else body)
    if last is not None and last.type == "if_statement" and last.child_by_field_name("alternative") is None:
        condition, then = last.child_by_field_name("condition"), _text(last.child_by_field_name("consequence"))
        told = re.search(rf"\b{t}\.(Error|Fatal|Fail)", then) is not None
        if condition is None or not told or _text(condition.child_by_field_name("operator")) != "!=":
            return None
        return _only_literal(condition.named_children, _GO_LITERALS)
    call = last.named_child(0) if last is not None and last.type == "expression_statement" else None
    function = call.child_by_field_name("function") if call is not None else None
    if call is None or function is None or _text(function.child_by_field_name("field")) not in ("Equal", "Equalf"):
        return None
    arguments = call.child_by_field_name("arguments")
    if arguments is None or not arguments.named_children or _text(arguments.named_child(0)) != t:
        return None
    return _only_literal(arguments.named_children[1:3], _GO_LITERALS)


# JavaScript and TypeScript

_SCRIPT_LITERALS = frozenset({"number", "string"})
_FUNCTIONS = ("arrow_function", "function_expression")


def _script(block: Node, scope: str) -> Iterator[LocatedTest]:
    for node in block.named_children:
        call = node.named_child(0) if node.type == "expression_statement" else None
        arguments = (
            call.child_by_field_name("arguments") if call is not None and call.type == "call_expression" else None
        )
        if call is None or arguments is None or len(arguments.named_children) != 2:
            continue
        word, (title, function) = _text(call.child_by_field_name("function")), arguments.named_children
        body = function.child_by_field_name("body")
        if not _is_plain(title) or function.type not in _FUNCTIONS or body is None or body.type != "statement_block":
            continue
        name = _text(title)[1:-1]
        if word == "describe":
            yield from _script(body, f"{scope}{name} ")
        elif word in ("test", "it"):
            wanted = _script_wanted(body)
            yield LocatedTest(
                _span(node),
                scope,
                name,
                (title.start_byte + 1, title.end_byte - 1),
                _span(wanted) if wanted is not None else None,
                _places(node, node),
                word,
            )


def _is_plain(title: Node) -> bool:
    text = _text(title)
    return title.type in ("string", "template_string") and not any(mark in text for mark in ("\\", "${", "%", "$"))


def _script_wanted(body: Node) -> Node | None:
    """The literal of ``expect(…).toBe(3)``, awaited or not."""
    last = _last_statement(body)
    call = last.named_child(0) if last is not None and last.type == "expression_statement" else None
    call = call.named_child(0) if call is not None and call.type == "await_expression" else call
    matcher = call.child_by_field_name("function") if call is not None else None
    if call is None or matcher is None or matcher.type != "member_expression":
        return None
    subject, how = matcher.child_by_field_name("object"), _text(matcher.child_by_field_name("property"))
    if subject is None or how not in ("toBe", "toEqual", "toStrictEqual"):
        return None
    if not re.match(r"expect\s*\(", _text(subject)) or "not" in (_text(child) for child in subject.children):
        return None
    arguments = call.child_by_field_name("arguments")
    return _only_literal([subject, *arguments.named_children], _SCRIPT_LITERALS) if arguments is not None else None


Finder = Callable[[Node, str], Iterator[LocatedTest]]
_JAVASCRIPT: tuple[str, str, Finder] = ("tree_sitter_javascript", "language", _script)
_TYPESCRIPT: tuple[str, str, Finder] = ("tree_sitter_typescript", "language_typescript", _script)
_TYPESCRIPT_JSX: tuple[str, str, Finder] = ("tree_sitter_typescript", "language_tsx", _script)
_FINDERS: Mapping[str, tuple[str, str, Finder]] = {
    "rs": ("tree_sitter_rust", "language", _rust),
    "go": ("tree_sitter_go", "language", _go),
    **dict.fromkeys(("js", "jsx", "mjs", "cjs"), _JAVASCRIPT),
    **dict.fromkeys(("ts", "mts", "cts"), _TYPESCRIPT),
    "tsx": _TYPESCRIPT_JSX,
}
