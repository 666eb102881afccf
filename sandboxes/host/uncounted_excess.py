"""The interface of the survey that finds memory which a cgroup holds and no limit counts.

Image builds use the survey of the runtimes through it, because builds are the lower layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class UncountedExcess:
    """A holding above the limit. ``text`` names it. Unless ``is_certain``, a part of it is estimated or assumed."""

    text: str
    is_certain: bool


FindExcess = Callable[[Mapping[str, Path]], UncountedExcess | None]
"""Return the largest holding of several cgroups (by name) that is above the limit, or None. It blocks."""
