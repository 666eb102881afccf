"""An index: the segments that hold the files of one tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from sandboxes.search.index.segment import IndexSegment


@dataclass(frozen=True, slots=True)
class Index:
    """``digest``: of all that it was made of; empty where it is one sandbox's own."""

    digest: str
    segments: Sequence[IndexSegment]
