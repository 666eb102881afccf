"""Classify a file by its path: its outlines, and whether it is source code or a test."""

import re
from collections.abc import Sequence

from sandboxes.search.index.chunks import Outline, indented_outline, python_outline
from sandboxes.search.index.grammars import outlines

_PYTHON = (python_outline, indented_outline)


def outlines_of(path: str) -> Sequence[Outline]:
    suffix = path.rpartition("/")[2].rpartition(".")[2]
    if suffix in ("py", "pyi", "pyx"):
        return _PYTHON
    found = outlines().get(suffix)
    return (found,) if found else ()


def is_source(path: str) -> bool:
    return path.rpartition(".")[2].lower() in _SOURCES


def is_test(path: str) -> bool:
    return _TEST.search(path) is not None


_SOURCE_SUFFIXES = """
py pyi pyx js jsx mjs cjs ts tsx go rs java c h cc cpp cxx hh hpp cs rb php swift kt kts scala lua pl pm r jl ex exs erl
hs ml mli clj dart zig nim sh bash zsh ps1 sql vue svelte proto graphql tf cmake m mm f90 asm s
"""
_SOURCES = frozenset(_SOURCE_SUFFIXES.split())
_TEST = re.compile(r"(?:^|/)(?:tests?/|test_[^/]*$|conftest\.py$)|[._](?:test|spec)\.\w+$")
