"""Rule documents: kept by version, one of them the current one; and which one a group is judged by."""

import json
import time
from dataclasses import dataclass

from farm.rewards import BadRules, Rules, default_rules, default_text, parse_rules
from farm.store.errors import UnknownRules
from farm.store.redis_client import RedisConnection


@dataclass(frozen=True, slots=True)
class StoredRules:
    """``kept_at``: Unix seconds; 0 of the document that every farm has."""

    version: str
    text: str
    kept_at: float
    current: bool


class RewardRulesStore:
    """A document is never changed and never forgotten: runs name it, and so do the rollouts that it judged.

    The farm's own is there without being kept, and current until another is.
    """

    def __init__(self, connection: RedisConnection, prefix: str) -> None:
        self._connection = connection
        self._documents = f"{prefix}:{{*}}:rewards"
        self._pointer = f"{prefix}:{{*}}:reward"
        self._parsed = {default_rules().version: default_rules()}

    async def put(self, text: str, *, current: bool) -> Rules:
        """Keep a document; ``current``: runs that name none follow it from now on. Raises BadRules."""
        rules = parse_rules(text)
        document = json.dumps({"text": text, "at": time.time()})
        async with self._connection.client() as redis, redis.pipeline(transaction=True) as together:
            if rules.version != default_rules().version:
                together.hsetnx(self._documents, rules.version, document)
            if current:
                together.set(self._pointer, rules.version)
            await together.execute()
        self._parsed[rules.version] = rules
        return rules

    async def get(self, version: str) -> Rules:
        """Raises UnknownRules, also for a document that this farm cannot read."""
        if version not in self._parsed:
            async with self._connection.client() as redis:
                found: bytes | None = await redis.hget(self._documents, version)
            if found is None:
                raise UnknownRules(f"there are no rules {version}; `farm rewards list` says which there are")
            try:
                self._parsed[version] = parse_rules(json.loads(found)["text"])
            except BadRules as error:
                raise UnknownRules(f"the rules {version} are of another release: {error}") from None
        return self._parsed[version]

    async def current_version(self) -> str:
        async with self._connection.client() as redis:
            found: bytes | None = await redis.get(self._pointer)
        return found.decode() if found else default_rules().version

    async def list(self) -> tuple[StoredRules, ...]:
        """Latest first."""
        current = await self.current_version()
        async with self._connection.client() as redis:
            found: dict[bytes, bytes] = await redis.hgetall(self._documents)
        own = default_rules().version
        kept = [StoredRules(own, default_text(), 0.0, own == current)]
        for name, document in found.items():
            said, version = json.loads(document), name.decode()
            kept.append(StoredRules(version, said["text"], said["at"], version == current))
        return tuple(sorted(kept, key=lambda one: one.kept_at, reverse=True))

    async def of_group(self, base: str, group: str, pinned: str) -> Rules:
        """The rules that all members of a group are judged by, or none could be compared with another.

        They are those that were ``pinned`` or current when its first member was; a rescoring changes them for all.
        Raises UnknownRules.
        """
        wanted = pinned or await self.current_version()
        chosen: bytes = await self._connection.run_script(base, "judge_by", group, wanted)
        return await self.get(chosen.decode())
