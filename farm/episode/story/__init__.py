"""Episodes as people read them: a window of turns with cut texts, and an outline of all.

``telling`` makes a story of turns; ``live`` reads those of an episode that runs from its journal.
"""

from farm.episode.story.live import LiveText, NodeEpisodes, NodeEpisodesAway, TextPlace, read_live, text_at
from farm.episode.story.telling import TellingOrder, tell, versions_of

__all__ = [
    "LiveText",
    "NodeEpisodes",
    "NodeEpisodesAway",
    "TellingOrder",
    "TextPlace",
    "read_live",
    "tell",
    "text_at",
    "versions_of",
]
