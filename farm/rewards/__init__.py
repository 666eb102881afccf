"""Rewards: raw components, and the rules that combine them to one number.

This room decides what a component is called and how rules score. Enter at ``parse_rules`` and ``score``. The pages are
farm/docs/rewards.md and farm/docs/architecture/rewards.md.
"""

from farm.rewards.effort import effort_cost
from farm.rewards.plugins import JudgedEpisode, Plugins
from farm.rewards.rules import BadRules, Rules, default_rules, default_text, parse_rules
from farm.rewards.scoring import Unscored, apply_rules, score, score_again
from farm.rewards.tool_metrics import count_effort, count_misuse

__all__ = [
    "BadRules",
    "JudgedEpisode",
    "Plugins",
    "Rules",
    "Unscored",
    "apply_rules",
    "count_effort",
    "count_misuse",
    "default_rules",
    "default_text",
    "effort_cost",
    "parse_rules",
    "score",
    "score_again",
]
