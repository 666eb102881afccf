"""An index: the segments with the files of one tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from sandboxes.search.index.segment import IndexSegment


@dataclass(frozen=True, slots=True)
class Index:
    """The segments of one tree. ``digest`` covers all inputs; empty if the index belongs to one sandbox only."""

    digest: str
    segments: Sequence[IndexSegment]
