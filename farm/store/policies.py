"""The policies that runs refer to by name."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace

from farm.core.policy_document import PolicyDocument
from farm.store.errors import TooManyPolicies, UnknownPolicy
from farm.store.redis_client import RedisConnection

MOST_POLICIES = 256


class PolicyStore:
    """The policy documents by name. A revision number grows with each change, so that nodes can poll cheaply.

    Whether a policy is paused is stored apart from its document: an announcement of new weights does not resume it.
    Methods may raise StoreUnavailable.
    """

    def __init__(self, connection: RedisConnection, prefix: str) -> None:
        self._connection = connection
        self._documents = f"{prefix}:{{*}}:policies"
        self._paused = f"{prefix}:{{*}}:policies_paused"
        self._revision = f"{prefix}:{{*}}:policies_revision"

    async def put(self, document: PolicyDocument) -> PolicyDocument:
        """Store a document in place of the one with its name. Return it as stored. Raises TooManyPolicies."""
        known = await self.list()
        if document.name not in known and len(known) >= MOST_POLICIES:
            raise TooManyPolicies(f"there are {MOST_POLICIES} policies; delete one with `farm policies delete`")
        stored = asdict(replace(document, updated_at=time.time()))
        del stored["name"], stored["paused"]
        async with self._connection.client() as redis, redis.pipeline(transaction=True) as together:
            together.hset(self._documents, document.name, json.dumps(stored))
            together.incr(self._revision)
            await together.execute()
        return await self.get(document.name)

    async def pause(self, name: str, *, paused: bool) -> PolicyDocument:
        """Pause a policy, or resume it. Return its document. Raises UnknownPolicy."""
        await self.get(name)
        async with self._connection.client() as redis, redis.pipeline(transaction=True) as together:
            (together.sadd if paused else together.srem)(self._paused, name)
            together.incr(self._revision)
            await together.execute()
        return await self.get(name)

    async def delete(self, name: str) -> None:
        """Delete a policy. Raises UnknownPolicy."""
        await self.get(name)
        async with self._connection.client() as redis, redis.pipeline(transaction=True) as together:
            together.hdel(self._documents, name)
            together.srem(self._paused, name)
            together.incr(self._revision)
            await together.execute()

    async def get(self, name: str) -> PolicyDocument:
        """Return a policy. Raises UnknownPolicy."""
        found = (await self.list()).get(name)
        if found is None:
            raise UnknownPolicy(f"there is no policy {name}; `farm policies list` says which there are")
        return found

    async def list(self) -> Mapping[str, PolicyDocument]:
        """Return all policies by name, in the order of their names."""
        async with self._connection.client() as redis, redis.pipeline(transaction=True) as together:
            together.hgetall(self._documents)
            together.smembers(self._paused)
            documents, paused = await together.execute()
        return {
            name.decode(): _read(name.decode(), stored, paused=name in paused)
            for name, stored in sorted(documents.items())
        }

    async def revision(self) -> int:
        """Return the number of changes of all policies so far."""
        async with self._connection.client() as redis:
            return int(await redis.get(self._revision) or 0)


def _read(name: str, stored: bytes, *, paused: bool) -> PolicyDocument:
    fields = json.loads(stored)
    return PolicyDocument(**{**fields, "name": name, "endpoints": tuple(fields["endpoints"]), "paused": paused})
