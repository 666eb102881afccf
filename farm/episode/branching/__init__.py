"""Branching: one assignment makes several rollouts of a group, which share their first turns.

This room decides how an episode forks, in which order its branches run, and which rollout holds the tokens that they
share. Enter at ``Tree``. The page is farm/docs/architecture/episode.md.
"""

from farm.episode.branching.tree import Delivered, Tree, TreeHost

__all__ = ["Delivered", "Tree", "TreeHost"]
