"""Rule documents by version, the current version, and the version of each group."""

import asyncio
import json
import time
from dataclasses import dataclass

from farm.rewards import BadRules, Rules, default_rules, default_text, parse_rules
from farm.store.errors import UnknownRules
from farm.store.redis_client import RedisConnection


@dataclass(frozen=True, slots=True)
class StoredRules:
    """A stored rule document. ``kept_at`` is in Unix seconds; it is 0 for the farm's built-in document."""

    version: str
    text: str
    kept_at: float
    current: bool


class RewardRulesStore:
    """The rule documents. A document is never changed or deleted, because runs and rollouts refer to it.

    The built-in document exists without being stored, and is current until another is.
    """

    def __init__(self, connection: RedisConnection, prefix: str) -> None:
        self._connection = connection
        self._documents = f"{prefix}:{{*}}:rewards"
        self._pointer = f"{prefix}:{{*}}:reward"
        self._parsed = {default_rules().version: default_rules()}
        self._parsing = asyncio.Lock()

    async def put(self, text: str, *, current: bool) -> Rules:
        """Store a document. With ``current``, runs that name no version use it from now on. Raises BadRules."""
        rules = await self._parse(text)
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
        """Return the rules of a version. Raises UnknownRules, also if this farm cannot read the document."""
        if version not in self._parsed:
            async with self._connection.client() as redis:
                found: bytes | None = await redis.hget(self._documents, version)
            if found is None:
                raise UnknownRules(f"there are no rules {version}; `farm rewards list` says which there are")
            try:
                self._parsed[version] = await self._parse(json.loads(found)["text"])
            except BadRules as error:
                raise UnknownRules(f"the rules {version} are of another release: {error}") from None
        return self._parsed[version]

    async def _parse(self, text: str) -> Rules:
        """Parse a document in a thread, one at a time, because it takes longer than the event loop may wait."""
        async with self._parsing:
            return await asyncio.to_thread(parse_rules, text)

    async def current_version(self) -> str:
        async with self._connection.client() as redis:
            found: bytes | None = await redis.get(self._pointer)
        return found.decode() if found else default_rules().version

    async def list(self) -> tuple[StoredRules, ...]:
        """Return all documents, latest first."""
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
        """Return the rules of a group. All its members are scored by the same rules, so that they can be compared.

        They are the rules that were ``pinned``, or current, when the group's first member was stored. Rescoring changes
        them for all members. Raises UnknownRules.
        """
        wanted = pinned or await self.current_version()
        chosen: bytes = await self._connection.run_script(base, "judge_by", group, wanted)
        return await self.get(chosen.decode())
