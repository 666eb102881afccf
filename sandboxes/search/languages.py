"""Which outlines read which file."""

from collections.abc import Sequence

from sandboxes.search.chunks import Outline, indented_outline, python_outline
from sandboxes.search.grammars import outlines

_PYTHON = (python_outline, indented_outline)


def outlines_of(path: str) -> Sequence[Outline]:
    suffix = path.rpartition("/")[2].rpartition(".")[2]
    if suffix in ("py", "pyi", "pyx"):
        return _PYTHON
    found = outlines().get(suffix)
    return (found,) if found else ()
