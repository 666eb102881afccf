"""Checks of a Redis that the operator runs: whether it answers, and what it lacks to keep the farm's data."""

import contextlib
from collections.abc import Mapping
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from farm.store.errors import StoreUnavailable
from farm.store.redis_client import STUCK, redacted

OLDEST = (6, 2)
_PATIENCE_S = 4.0


async def examine_redis(url: str) -> tuple[str, tuple[str, ...]]:
    """Return a description of a Redis, and one line for each fault. Raises StoreUnavailable."""
    shown = redacted(url)
    try:
        client = redis.Redis.from_url(
            url, socket_connect_timeout=_PATIENCE_S, socket_timeout=_PATIENCE_S, retry=Retry(NoBackoff(), 0)
        )
    except ValueError as error:
        raise StoreUnavailable(f"redis_url {shown}: {error}") from None
    try:
        told: dict[str, Any] = dict(await client.info())
        with contextlib.suppress(ResponseError):  # a Redis that others run may refuse this
            told["appendfsync"] = (await client.config_get("appendfsync")).get("appendfsync") or "always"
    except (AuthenticationError, NoPermissionError):
        raise StoreUnavailable(f"Redis at {shown} refuses the password; set redis_url with the right one") from None
    except (RedisTimeout, TimeoutError):
        raise StoreUnavailable(f"Redis at {shown} does not answer in {_PATIENCE_S:g} s; {STUCK}") from None
    except (RedisError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreUnavailable(f"Redis at {shown} does not answer ({reason}); start it or correct redis_url") from None
    finally:
        await client.aclose()
    version = str(told.get("redis_version", "unknown"))
    return f"Redis {version} at {shown}", tuple(_lacks(version, told))


def _lacks(version: str, told: Mapping[str, Any]) -> list[str]:
    lacks = []
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        lacks.append(f"version {version} is too old; install {'.'.join(map(str, OLDEST))} or newer")
    if not told.get("aof_enabled"):
        lacks.append(
            "it has no append-only file, so runs and rollouts are lost when it ends; "
            "set `appendonly yes` and `appendfsync always` in its redis.conf"
        )
    elif told.get("appendfsync", "always") != "always":
        lacks.append(
            f"its appendfsync is {told['appendfsync']}, so the latest rollouts are lost when it is killed; "
            "set `appendfsync always` in its redis.conf"
        )
    policy = told.get("maxmemory_policy", "noeviction")
    if told.get("maxmemory") and policy != "noeviction":
        lacks.append(
            f"its maxmemory-policy is {policy}, so runs and rollouts are lost when its memory is full; "
            "set `maxmemory-policy noeviction` in its redis.conf"
        )
    return lacks
