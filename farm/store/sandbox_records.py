"""The node of each learner sandbox, so that a gateway that has restarted finds it."""

import json
from dataclasses import asdict, dataclass

from farm.core.run import TaskRef
from farm.store.redis_client import RedisConnection

KEPT_S = 25 * 3600
"""A record outlives its sandbox, which lives a day at most, so that a late call is answered "gone", not "unknown"."""


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """``task`` has no digest if the sandbox was made from an image."""

    sandbox_id: str
    node_id: str
    task: TaskRef


class SandboxRecordStore:
    """The records of learner sandboxes by id. Each is deleted after ``KEPT_S``. Methods may raise StoreUnavailable."""

    def __init__(self, connection: RedisConnection, prefix: str) -> None:
        self._connection = connection
        self._prefix = f"{prefix}:sandbox"

    async def put(self, record: SandboxRecord) -> None:
        document = json.dumps({"node_id": record.node_id, "task": asdict(record.task)})
        async with self._connection.client() as redis:
            await redis.set(f"{self._prefix}:{record.sandbox_id}", document, ex=KEPT_S)

    async def get(self, sandbox_id: str) -> SandboxRecord | None:
        async with self._connection.client() as redis:
            found: bytes | None = await redis.get(f"{self._prefix}:{sandbox_id}")
        if found is None:
            return None
        fields = json.loads(found)
        return SandboxRecord(sandbox_id, fields["node_id"], TaskRef(**fields["task"]))

    async def delete(self, sandbox_id: str) -> None:
        async with self._connection.client() as redis:
            await redis.delete(f"{self._prefix}:{sandbox_id}")
