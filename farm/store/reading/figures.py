"""Figures of many rollouts: curves over time, and solve rates by task or by version of a policy; pure.

Only what the figures need is read of a head, and it is not validated: ten thousand heads take a tenth of a second.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from farm.schemas.msgpack_encoding import MalformedRecord, unpack

By = Literal["task", "version"]


class RolloutFigure(NamedTuple):
    """The part of a rollout that figures are made of. ``reward`` is None if it was not judged."""

    run_id: str
    task_id: str
    policy: str
    version: int | None
    failed: bool
    reward: float | None
    solved: bool
    turns: float
    tokens: float
    seconds: float
    finished_at: float
    flags: int


class Figures(NamedTuple):
    """``rollouts`` in the order of acceptance; ``total``: how many are stored, of which these are the latest."""

    rollouts: tuple[RolloutFigure, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts and means over some rollouts. A mean is None if no rollout has the figure.

    ``failed`` counts failures of the farm, of an endpoint, a task or a verifier. ``flagged`` counts rollouts in which
    the audit found something. Times are Unix seconds.
    """

    rollouts: int
    judged: int
    solved: int
    failed: int
    flagged: int
    reward_mean: float | None
    turns_mean: float | None
    tokens_mean: float | None
    seconds_mean: float | None
    first_at: float
    last_at: float


@dataclass(frozen=True, slots=True)
class KeyedTally:
    """The tally of a task, or of one version of a policy. ``runs``: the ids of the latest runs, at most ten."""

    task_id: str
    policy: str
    version: int | None
    runs: tuple[str, ...]
    tally: Tally


async def figures_of(batches: Sequence[Sequence[bytes | None]], total: int) -> Figures:
    """Decode heads, latest first, in steps between which other requests run."""
    found: list[RolloutFigure] = []
    for batch in batches:
        found += await asyncio.to_thread(_decode, batch)
    return Figures(tuple(reversed(found)), total)


def _decode(batch: Sequence[bytes | None]) -> list[RolloutFigure]:
    found = []
    for packed in batch:
        if packed is None:
            continue
        try:
            found.append(_figure(unpack(packed)))
        except (MalformedRecord, KeyError, TypeError, AttributeError):
            continue  # the list of rollouts names the record that cannot be read
    return found


def _figure(head: dict[str, Any]) -> RolloutFigure:
    reward, metrics = head["reward"], head["metrics"]
    return RolloutFigure(
        head["run_id"],
        head["task_id"],
        head["policy"],
        head["policy_version_max"],
        head["status"] == "failed",
        reward,
        reward is not None and head["reward_components"].get("resolved") == 1.0,
        metrics.get("turns", 0.0),
        metrics.get("completion_tokens", 0.0),
        head["finished_at"] - head["created_at"],
        head["finished_at"],
        len(head.get("audit", ())),
    )


def curve(figures: Sequence[RolloutFigure], points: int) -> tuple[Tally, ...]:
    """Return at most ``points`` tallies, each over rollouts that follow each other in the order of acceptance."""
    width = max(1, -(-len(figures) // points))
    return tuple(tally(figures[first : first + width]) for first in range(0, len(figures), width))


def tallies(figures: Iterable[RolloutFigure], by: By) -> list[KeyedTally]:
    """Return one tally for each task, the one with the latest rollout first; or for each version of each policy, in the
    order of names, the newest version first.
    """
    groups: dict[tuple[str, str, int | None], list[RolloutFigure]] = {}
    for one in figures:
        key = (one.task_id, "", None) if by == "task" else ("", one.policy, one.version)
        groups.setdefault(key, []).append(one)
    found = [
        KeyedTally(*key, tuple(dict.fromkeys(one.run_id for one in reversed(ones)))[:10], tally(ones))
        for key, ones in groups.items()
    ]
    if by == "task":
        return sorted(found, key=lambda one: -one.tally.last_at)
    return sorted(found, key=lambda one: (one.policy, 1 if one.version is None else -one.version))


def tally(figures: Sequence[RolloutFigure]) -> Tally:
    """Return the tally of at least one rollout."""
    judged = [one.reward for one in figures if one.reward is not None]
    return Tally(
        rollouts=len(figures),
        judged=len(judged),
        solved=sum(one.solved for one in figures),
        failed=sum(one.failed for one in figures),
        flagged=sum(one.flags > 0 for one in figures),
        reward_mean=_mean(judged),
        turns_mean=_mean([one.turns for one in figures]),
        tokens_mean=_mean([one.tokens for one in figures]),
        seconds_mean=_mean([one.seconds for one in figures]),
        first_at=min(one.finished_at for one in figures),
        last_at=max(one.finished_at for one in figures),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
