"""Memory of the machine that a control group holds and that no limit counts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hoard:
    """``text`` names what is held. Unless ``is_certain``, a part of it is estimated or assumed."""

    text: str
    is_certain: bool


FindHoard = Callable[[Mapping[str, Path]], Hoard | None]
"""Returns what one of several control groups holds if it is too much. Blocks."""
