"""Stories of rollouts from the store. The latest ones stay decoded, because a reader fetches one in many windows."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from farm.core.rollout import Segment, Turn
from farm.episode.story import versions_of
from farm.episode.story.telling import Versions
from farm.schemas.rollout import RolloutHead, Sidecar
from farm.store import Store, run_of_group

KEPT_STORIES = 8
KEPT_CHARS = 4_000_000
"""The longest story that is kept, in characters of its texts."""


@dataclass(frozen=True, slots=True)
class StoredStory:
    """An ended episode. ``sidecar`` without its turns, which are in ``turns``."""

    head: RolloutHead
    sidecar: Sidecar
    turns: tuple[Turn, ...]
    versions: Versions


class StoryCache:
    """The stories that were read last. A record that was replaced, by a rescoring, is read again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, StoredStory] = OrderedDict()

    async def read(self, store: Store, rollout_id: str) -> StoredStory | None:
        """Return a story; None if no such rollout is stored. Raises MalformedFrame, MalformedRecord."""
        run_id = run_of_group(rollout_id.rpartition("-")[0])
        head = None if run_id is None else await store.heads.head(run_id, rollout_id)
        if head is None:
            self._kept.pop(rollout_id, None)
            return None
        kept = self._kept.get(rollout_id)
        if kept is not None and kept.head == head:
            self._kept.move_to_end(rollout_id)
            return kept
        sidecar, rollout = await asyncio.gather(store.turns(rollout_id), store.rollout(rollout_id))
        story = await asyncio.to_thread(_story, head, sidecar or Sidecar(), rollout.segments if rollout else ())
        if _chars(story) <= KEPT_CHARS:
            self._kept[rollout_id] = story
            while len(self._kept) > KEPT_STORIES:
                self._kept.popitem(last=False)
        return story


def _story(head: RolloutHead, sidecar: Sidecar, segments: tuple[Segment, ...]) -> StoredStory:
    turns = tuple(turn.to_core() for turn in sidecar.turns)
    return StoredStory(head, sidecar.model_copy(update={"turns": ()}), turns, versions_of(turns, segments))


def _chars(story: StoredStory) -> int:
    return len(story.sidecar.patch) + sum(
        len(turn.content)
        + len(turn.reasoning or "")
        + sum(len(use.arguments) + len(use.result) for use in turn.tool_uses)
        for turn in story.turns
    )
