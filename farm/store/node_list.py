"""The list of nodes that the scheduler keeps in the store."""

from farm.store.redis_client import RedisConnection


class NodeListStore:
    """One document with the list of nodes; a write replaces it. Methods may raise StoreUnavailable."""

    def __init__(self, connection: RedisConnection, prefix: str) -> None:
        self._connection = connection
        self._key = f"{prefix}:fleet"

    async def put(self, document: bytes) -> None:
        async with self._connection.client() as redis:
            await redis.set(self._key, document)

    async def get(self) -> bytes | None:
        async with self._connection.client() as redis:
            found: bytes | None = await redis.get(self._key)
        return found
