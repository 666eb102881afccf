"""The episode loop: one policy, one sandbox, one rollout; and the seam to a policy.

farm/docs/architecture/episode.md explains it.
"""

from farm.episode.baselines import Baselines
from farm.episode.episode import run_episode
from farm.episode.events import EpisodeEvent, EventKind, OnEvent
from farm.episode.failures import classify
from farm.episode.journal import Journal, Journals
from farm.episode.journal_format import JournalError
from farm.episode.record_limits import bare_verdict
from farm.episode.rollout_builder import aborted, failed, report
from farm.policy.base import Message, Policy, PolicyError, Reply, Sampled, ToolCall

__all__ = [
    "Baselines",
    "EpisodeEvent",
    "EventKind",
    "Journal",
    "JournalError",
    "Journals",
    "Message",
    "OnEvent",
    "Policy",
    "PolicyError",
    "Reply",
    "Sampled",
    "ToolCall",
    "aborted",
    "bare_verdict",
    "classify",
    "failed",
    "report",
    "run_episode",
]
