"""The episode loop: one policy, one sandbox, one rollout; and the seam to a policy."""

from farm.rollout.baselines import Baselines
from farm.rollout.entries import JournalError
from farm.rollout.episode import run_episode
from farm.rollout.events import EpisodeEvent, EventKind, OnEvent
from farm.rollout.failures import classify
from farm.rollout.fitting import bare_verdict
from farm.rollout.journal import Journal, Journals
from farm.rollout.policy import Message, Policy, PolicyError, Reply, Sampled, ToolCall
from farm.rollout.record import aborted, failed, report

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
