"""Find definitions in languages other than Python by tree-sitter, for each language whose grammar is installed."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import tree_sitter

from sandboxes.search.index.chunks import Outline, Span

_MOST_NODES = 200_000
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Grammar:
    """A tree-sitter grammar: ``package.entry()`` is the language; ``kinds`` are the types of nodes that define
    something.
    """

    package: str
    entry: str
    kinds: frozenset[str]


_C = frozenset({"function_definition", "struct_specifier", "enum_specifier", "union_specifier", "type_definition"})
_SCRIPT = frozenset({
    "function_declaration",
    "generator_function_declaration",
    "class_declaration",
    "abstract_class_declaration",
    "method_definition",
    "interface_declaration",
    "enum_declaration",
    "type_alias_declaration",
    "variable_declarator",
})  # a table, read across  # fmt: skip
_JAVASCRIPT = Grammar("tree_sitter_javascript", "language", _SCRIPT)
_CPP = Grammar("tree_sitter_cpp", "language", _C | {"class_specifier", "namespace_definition"})

_BY_SUFFIX: Mapping[str, Grammar] = {
    "js": _JAVASCRIPT,
    "jsx": _JAVASCRIPT,
    "mjs": _JAVASCRIPT,
    "cjs": _JAVASCRIPT,
    "ts": Grammar("tree_sitter_typescript", "language_typescript", _SCRIPT),
    "tsx": Grammar("tree_sitter_typescript", "language_tsx", _SCRIPT),
    "go": Grammar("tree_sitter_go", "language", frozenset({"function_declaration", "method_declaration", "type_spec"})),
    "rs": Grammar(
        "tree_sitter_rust",
        "language",
        frozenset({
            "function_item",
            "struct_item",
            "enum_item",
            "trait_item",
            "impl_item",
            "mod_item",
            "macro_definition",
        }),
    ),
    "java": Grammar(
        "tree_sitter_java",
        "language",
        frozenset({
            "class_declaration",
            "interface_declaration",
            "enum_declaration",
            "record_declaration",
            "method_declaration",
            "constructor_declaration",
        }),
    ),
    "c": Grammar("tree_sitter_c", "language", _C),
    "h": _CPP,
    "cc": _CPP,
    "cpp": _CPP,
    "cxx": _CPP,
    "hh": _CPP,
    "hpp": _CPP,
}  # a table, read across  # fmt: skip


@lru_cache(maxsize=1)
def outlines() -> Mapping[str, Outline]:
    """Return the outlines by file suffix without its dot, for the languages whose grammar is installed."""
    parsers: dict[Grammar, tree_sitter.Parser] = {}
    found: dict[str, Outline] = {}
    for suffix, grammar in _BY_SUFFIX.items():
        if grammar not in parsers:
            try:
                module = importlib.import_module(grammar.package)
            except ImportError:
                continue
            parsers[grammar] = tree_sitter.Parser(tree_sitter.Language(getattr(module, grammar.entry)()))
        found[suffix] = _outline(parsers[grammar], grammar.kinds)
    return found


def _outline(parser: tree_sitter.Parser, kinds: frozenset[str]) -> Outline:
    def outline(text: str, lines: Sequence[str]) -> list[Span] | None:
        """Outline a file as far as it can be parsed; None if it has too many nodes."""
        spans: list[Span] = []
        cursor = parser.parse(text.encode("utf-8", "surrogatepass")).walk()
        names: list[tuple[int, str]] = []
        for _ in range(_MOST_NODES):
            node = cursor.node
            assert node is not None
            depth = cursor.depth
            while names and names[-1][0] >= depth:
                names.pop()
            if node.type in kinds and _defines(node) and (name := _name(node)):
                dotted = f"{names[-1][1]}.{name}" if names else name
                names.append((depth, dotted))
                spans.append(Span(node.start_point.row + 1, node.end_point.row + 1, dotted))
            if depth < _DEEPEST and cursor.goto_first_child():
                continue
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return spans
        return None

    return outline


def _defines(node: tree_sitter.Node) -> bool:
    """Return whether a node is a definition: a struct with a body, or a variable whose value is a function."""
    if node.type.endswith("_specifier"):
        return node.child_by_field_name("body") is not None
    if node.type == "variable_declarator":
        value = node.child_by_field_name("value")
        return value is not None and value.type in ("arrow_function", "function_expression")
    return True


def _name(node: tree_sitter.Node) -> str:
    """Return the name of a definition; in C it is inside the declarator, below pointers and parameters."""
    for _ in range(8):
        inner = node.child_by_field_name("name") or node.child_by_field_name("declarator")
        inner = inner or (node.child_by_field_name("type") if node.type == "impl_item" else None)
        if inner is None:
            break
        node = inner
        if node.child_count == 0:
            break
    text = node.text or b""
    return text.decode("utf-8", "replace") if len(text) <= 128 and b"\n" not in text else ""
