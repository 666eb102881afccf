"""From what an episode found to the rollout a learner reads: status, stop reason, reward and tokens by the contract."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from farm import __version__
from farm.core.rollout import (
    AuditFlag,
    Failure,
    InvalidRollout,
    Origin,
    Rollout,
    Segment,
    Status,
    StopReason,
    Turn,
    check,
)
from farm.core.run import EpisodeAssignment, EpisodeReport
from farm.core.trainable import INCONSISTENT, NO_TOKENS
from farm.episode.failures import classify
from farm.episode.record_limits import fit
from farm.episode.segments import SampledReply, build_segments, version_range
from farm.grading import Verdict
from farm.policy.base import Reply
from farm.rewards import JudgedEpisode, Plugins, default_rules

PLUGIN_FAILED = "plugin_failed."
"""Of a metric: a plug-in by its name that gave nothing."""

_TRUNCATING = frozenset(
    {
        StopReason.MAX_TURNS,
        StopReason.MAX_TOKENS,
        StopReason.CONTEXT_LENGTH,
        StopReason.AGENT_TIMEOUT,
        StopReason.PARSE_ERROR,
        StopReason.OUT_OF_MEMORY,
        StopReason.SANDBOX_LOST,
    }
)

PLUGIN_FAILED = "plugin_failed."
"""Of a metric: a plug-in by its name that gave nothing."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class EpisodeResult:
    """What is known of an episode so far; a failure keeps what was found before it. ``reward`` is the verifier's, as
    the rules have it that a farm begins with."""

    created_at: float = field(default_factory=time.time)
    image_digest: str = ""
    stop: StopReason | None = None
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    patch: str = ""
    screened: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = ()
    replies: tuple[Reply, ...] = ()
    opening: tuple[Mapping[str, str], ...] = ()
    tool_pack: str = ""
    tools: tuple[str, ...] = ()
    audit: tuple[AuditFlag, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    def set_verdict(self, verdict: Verdict) -> None:
        self.reward = verdict.reward
        self.components = {"verdict": verdict.reward, **verdict.components}
        self.reason = verdict.reason
        self.patch = verdict.patch
        self.screened = verdict.screened


async def with_plugins(plugins: Plugins, episode: JudgedEpisode, found: EpisodeResult) -> EpisodeResult:
    """With what the plug-ins measured of an episode that was judged."""
    measured = await plugins.measure(episode)
    failed = {f"{PLUGIN_FAILED}{name}": 1.0 for name in measured.failures}
    return replace(
        found,
        components={**found.components, **measured.components},
        metrics={**found.metrics, **failed},
    )


def build_rollout(order: EpisodeAssignment, found: EpisodeResult, failure: Failure | None, *, node: str) -> Rollout:
    """Return the checked rollout of an episode, cut to what can be stored.

    Tokens that break the schema's promises cost the segments; a rollout that breaks them without its tokens becomes a
    failure of the farm.
    """
    try:
        return _checked(order, found, failure, node)
    except InvalidRollout as broken:
        _log.error("rollout %s attempt %d is not fit to publish: %s", order.rollout_id, order.attempt, broken)
        fault = broken
    bare = replace(found, replies=(), reason=f"{found.reason}; untrainable: {fault}")
    if failure is None:
        try:
            return _checked(order, bare, None, node)
        except InvalidRollout as broken:
            fault = broken
    return _compose(order, bare, Failure(Origin.INFRA, type(fault).__name__, str(fault), retryable=False), node)


def _checked(order: EpisodeAssignment, found: EpisodeResult, failure: Failure | None, node: str) -> Rollout:
    rollout = fit(_compose(order, found, failure, node))
    check(rollout)
    return rollout


def failed_rollout(order: EpisodeAssignment, error: Exception, *, node: str) -> Rollout:
    """The rollout of an episode that could not begin: its image did not build, its bundle was lost."""
    return build_rollout(order, EpisodeResult(), classify(error, begun=False), node=node)


def cancelled_rollout(order: EpisodeAssignment, *, node: str) -> Rollout:
    """The rollout of an episode that was cancelled: no reward, no error."""
    return build_rollout(order, EpisodeResult(stop=StopReason.CANCELLED), None, node=node)


def episode_report(rollout: Rollout, order: EpisodeAssignment, published: bool) -> EpisodeReport:
    """What the scheduler is told of ``rollout``."""
    return EpisodeReport(
        rollout_id=rollout.rollout_id,
        attempt=rollout.attempt,
        run_id=rollout.run_id,
        group_id=rollout.group_id,
        task_id=rollout.task_id,
        status=rollout.status,
        stop_reason=rollout.stop_reason,
        reward=rollout.reward,
        failure=rollout.error,
        published=published,
        metrics=rollout.metrics,
        policy=rollout.policy,
    )


def _compose(order: EpisodeAssignment, found: EpisodeResult, failure: Failure | None, node: str) -> Rollout:
    stop = StopReason.ERROR if failure or found.stop is None else found.stop
    status = _status(stop)
    judged = status in (Status.COMPLETED, Status.TRUNCATED)
    reward = found.reward if judged else None
    segments = _segments(found.replies) if reward is not None else ()
    oldest, newest = version_range(segments)
    return Rollout(
        rollout_id=order.rollout_id,
        attempt=order.attempt,
        run_id=order.run_id,
        group_id=order.group_id,
        group_index=order.group_index,
        group_size=order.group_size,
        task_id=order.task.id,
        task_digest=order.task.digest,
        image_digest=found.image_digest,
        split=order.split,
        status=status,
        stop_reason=stop,
        error=failure,
        reward=reward,
        reward_components=found.components if judged else {},
        reward_version=default_rules().version,
        metrics=found.metrics,
        trainable=bool(segments),
        policy=_policy(order, found.replies),
        policy_version_min=oldest,
        policy_version_max=newest,
        sampling_params=order.policy.sampling_params,
        segments=segments,
        farm_version=__version__,
        node=node,
        created_at=found.created_at,
        finished_at=time.time(),
        turns=found.turns,
        messages_head=found.opening,
        tool_pack=found.tool_pack,
        tools=found.tools,
        audit=found.audit,
        patch=found.patch,
        reason=_reason(order, found) if judged else "",
    )


def count_untrainable(order: EpisodeAssignment, replies: Sequence[Reply]) -> dict[str, float]:
    """Return how many replies of an endpoint have inconsistent tokens and how many have none."""
    metrics = {INCONSISTENT: float(sum(bool(reply.distrust) for reply in replies))}
    if order.policy.kind == "openai":
        metrics[NO_TOKENS] = float(sum(reply.sampled is None and not reply.distrust for reply in replies))
    return metrics


def _policy(order: EpisodeAssignment, replies: tuple[Reply, ...]) -> str:
    """Return the model's name: the one that the run gives, or else the one that the endpoint was asked for."""
    named = next((reply.model for reply in replies if reply.model), "")
    return order.policy.model or named or order.policy.name


def _reason(order: EpisodeAssignment, found: EpisodeResult) -> str:
    """Return why the reward is what it is and, if the engine's tokens are the cause, why no learner can use it."""
    reasons = [found.reason]
    distrusted = [reply.distrust for reply in found.replies if reply.distrust]
    lacking = count_untrainable(order, found.replies).get(NO_TOKENS, 0.0)
    if distrusted:
        reasons.append(
            f"untrainable: the endpoint's tokens are inconsistent in {len(distrusted)} of {len(found.replies)} replies"
            f" ({distrusted[0]})"
        )
    elif lacking:
        reasons.append(f"untrainable: {lacking:g} of {len(found.replies)} replies came without token ids")
    return "; ".join(filter(None, reasons))


def _status(stop: StopReason) -> Status:
    if stop is StopReason.ERROR:
        return Status.FAILED
    if stop is StopReason.CANCELLED:
        return Status.ABORTED
    return Status.TRUNCATED if stop in _TRUNCATING else Status.COMPLETED


def _segments(replies: tuple[Reply, ...]) -> tuple[Segment, ...]:
    """Empty unless every reply came with the engine's own tokens: a conversation with holes is no training data."""
    sampled = [
        SampledReply(reply.sampled, reply.finish_reason, reply.request_id)
        for reply in replies
        if reply.sampled is not None
    ]
    return build_segments(sampled) if len(sampled) == len(replies) else ()
