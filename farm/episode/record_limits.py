"""Fit a rollout to what its record can hold: evidence is cut or dropped with a mark, the verdict never is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from farm.core.rollout import BranchPoint, Rollout, Segment, ToolUse, Turn
from farm.core.untrainable_reasons import TOO_LONG

MOST_SIDECAR_CHARS = 32 * 1024 * 1024
"""The bound on all turns: at 4 bytes a character, half of what the store takes."""
MOST_TOKENS = 16 * 1024 * 1024
"""The bound on all segments: at 9 bytes a token, three fifths of what the store takes."""
MOST_PATCH_CHARS = 8 * 1024 * 1024
MOST_REASON_CHARS = 4_000
MOST_FLAGS = 1_000
MOST_TESTS = 5_000
MOST_TEST_CHARS = 500
MOST_FLAG_CHARS = 1_000
MOST_NUMBER = 2**63 - 1
TEXT_CHARS = (64 * 1024, 4 * 1024, 256)
"""Lengths to which each text of a turn is cut, in this order, until the turns fit."""

CUT, DROPPED, NOT_FINITE = "sidecar_cut", "sidecar_dropped", "components_not_finite"
"""Metrics that say what was done here, like ``TOO_LONG``; each is absent if nothing was."""
_PER_TURN, _PER_USE = 512, 256


def fit(rollout: Rollout) -> Rollout:
    """Return ``rollout`` as the store can hold it. Its reward stays as it is; metrics name what was cut."""
    marks: dict[str, float] = {}
    turns = _fit_turns(rollout.turns)
    if turns is not rollout.turns:
        marks[CUT if turns else DROPPED] = 1.0
    patch, reason = shorten(rollout.patch, MOST_PATCH_CHARS), shorten(rollout.reason, MOST_REASON_CHARS)
    if patch is not rollout.patch or reason is not rollout.reason or len(rollout.audit) > MOST_FLAGS:
        marks[CUT] = 1.0
    audit = tuple(
        replace(flag, evidence=shorten(flag.evidence, MOST_FLAG_CHARS)) for flag in rollout.audit[:MOST_FLAGS]
    )
    tests = tuple(replace(test, name=shorten(test.name, MOST_TEST_CHARS)) for test in rollout.tests[:MOST_TESTS])
    if len(tests) < len(rollout.tests):
        marks[CUT] = 1.0
    components, metrics = _finite(rollout.reward_components), _finite(rollout.metrics)
    if len(components) < len(rollout.reward_components) or len(metrics) < len(rollout.metrics):
        marks[NOT_FINITE] = 1.0
    segments = rollout.segments
    if _tokens(segments) > MOST_TOKENS:
        segments, marks[TOO_LONG] = (), 1.0
    return replace(
        rollout,
        turns=turns,
        patch=patch,
        reason=reason,
        tests=tests,
        audit=audit,
        reward_components=components,
        metrics={**metrics, **marks},
        segments=segments,
        branches=rollout.branches if segments else without_tokens(rollout.branches),
        trainable=bool(segments),
        policy_version_min=rollout.policy_version_min if segments else None,
        policy_version_max=rollout.policy_version_max if segments else None,
    )


def bare_verdict(rollout: Rollout, cause: str) -> Rollout:
    """Return the reward and the numbers of ``rollout`` alone, because a record with more was refused for ``cause``."""
    return replace(
        fit(rollout),
        turns=(),
        patch="",
        tests=(),
        audit=(),
        segments=(),
        branches=without_tokens(rollout.branches),
        trainable=False,
        policy_version_min=None,
        policy_version_max=None,
        metrics={**_finite(rollout.metrics), DROPPED: 1.0},
        reason=shorten(f"only the verdict was kept: {cause}; {rollout.reason}", MOST_REASON_CHARS),
    )


def without_tokens(points: tuple[BranchPoint, ...]) -> tuple[BranchPoint, ...]:
    """Return the branch points of a rollout that has no tokens, and so holds none."""
    return tuple(replace(point, holder="", segment=0, token=0) for point in points)


def shorten(text: str, most: int) -> str:
    """Return ``text``, or its beginning with a mark that counts what is left out."""
    return text if len(text) <= most else f"{text[:most]}[... {len(text) - most} characters left out by the farm]"


def _fit_turns(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    fitting = _bounded(turns)
    for most in TEXT_CHARS:
        if sum(map(_size, fitting)) <= MOST_SIDECAR_CHARS:
            return fitting
        fitting = tuple(_short(turn, most) for turn in fitting)
    return fitting if sum(map(_size, fitting)) <= MOST_SIDECAR_CHARS else ()


def _bounded(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Clamp counts; return ``turns`` itself if all fit."""
    if all(0 <= turn.prompt_tokens <= MOST_NUMBER and 0 <= turn.completion_tokens <= MOST_NUMBER for turn in turns):
        return turns
    return tuple(
        replace(
            turn,
            prompt_tokens=min(max(turn.prompt_tokens, 0), MOST_NUMBER),
            completion_tokens=min(max(turn.completion_tokens, 0), MOST_NUMBER),
        )
        for turn in turns
    )


def _size(turn: Turn) -> int:
    texts = (turn.content, turn.reasoning or "", turn.finish_reason, turn.request_id, turn.told)
    return _PER_TURN + sum(map(len, texts)) + sum(map(_size_of_use, turn.tool_uses))


def _size_of_use(use: ToolUse) -> int:
    return _PER_USE + sum(map(len, (use.id, use.name, use.arguments, use.result)))


def _short(turn: Turn, most: int) -> Turn:
    return replace(
        turn,
        content=shorten(turn.content, most),
        reasoning=None if turn.reasoning is None else shorten(turn.reasoning, most),
        finish_reason=shorten(turn.finish_reason, most),
        request_id=shorten(turn.request_id, most),
        tool_uses=tuple(
            replace(
                use,
                id=shorten(use.id, most),
                name=shorten(use.name, most),
                arguments=shorten(use.arguments, most),
                result=shorten(use.result, most),
            )
            for use in turn.tool_uses
        ),
    )


def _finite(numbers: Mapping[str, float]) -> Mapping[str, float]:
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _tokens(segments: Sequence[Segment]) -> int:
    return sum(len(segment.token_ids) for segment in segments)
