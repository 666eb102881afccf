"""The figures of a run's learner: the version that it announced, its counters, and news of groups."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from farm.core.run import group_ordinal
from farm.store.redis_client import RedisConnection


@dataclass(frozen=True, slots=True)
class StalenessBounds:
    """The last announced version of a run's policy, and the run's ``max_staleness``; None if there is none."""

    policy_version: int | None = None
    max_staleness: int | None = None


@dataclass(frozen=True, slots=True)
class GroupNews:
    """News of a group. ``ordinal``: of the group in its run. A stale group has no figures."""

    ordinal: int
    is_stale: bool
    judged: int = 0
    solved: int = 0


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of a run's learner: the counters named in ``lua/store.lua``, and the news from a place on."""

    policy_version: int | None
    counts: dict[str, int]
    news: tuple[GroupNews, ...]


class PacingStore:
    """The figures of learners. Methods may raise StoreUnavailable."""

    def __init__(self, connection: RedisConnection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._policies = f"{prefix}:{{*}}:policies"

    async def staleness_bounds(self, run_id: str) -> StalenessBounds:
        """Return the bounds of a run. An unknown run has none."""
        async with self._connection.client() as redis:
            policy, most = await redis.hmget(f"{self._base(run_id)}:run", ["policy", "max_staleness"])
            document = await redis.hget(self._policies, policy) if policy else None
        return StalenessBounds(_version(document), None if most is None else int(most))

    async def figures(self, run_id: str, policy: str, first: int) -> RunFigures:
        """Return the figures of a run with the named policy, and the news from the place ``first`` on."""
        async with self._connection.client() as redis:
            pipeline = redis.pipeline(transaction=False)
            pipeline.hget(self._policies, policy or "-")
            pipeline.hgetall(f"{self._base(run_id)}:counts")
            pipeline.lrange(f"{self._base(run_id)}:feedback", first, -1)
            document, counts, news = await pipeline.execute()
        figures = {name.decode(): int(float(value)) for name, value in counts.items()}
        return RunFigures(_version(document), figures, tuple(_news(line.decode().split()) for line in news))

    async def news(self, run_id: str) -> tuple[GroupNews, ...]:
        """Return all news of a run."""
        return (await self.figures(run_id, "", 0)).news

    def _base(self, run_id: str) -> str:
        return f"{self._prefix}:{{{run_id}}}"


def _version(document: bytes | None) -> int | None:
    return None if document is None else int(json.loads(document)["version"])


def _news(words: Sequence[str]) -> GroupNews:
    ordinal = group_ordinal(words[1])
    if words[0] == "stale":
        return GroupNews(ordinal, is_stale=True)
    return GroupNews(ordinal, is_stale=False, judged=int(words[2]), solved=int(words[3]))
