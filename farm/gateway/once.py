"""``Idempotency-Key``: a state-changing call that is repeated is answered again, not done again.

A kept answer lives a day. Refusals are not kept: whoever mends the cause may use the key again. A lease's answer is
too large to keep, so its lease id is, and the same groups are sent again while the lease lives. A call that broke off
after its effect is done again: what it makes takes its name from ``request.state.once``, the same at each repetition.
"""

import hashlib
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from farm.gateway.refusals import Refused
from farm.store import Store
from farm.wire.packing import pack, unpack
from farm.wire.problem import ProblemType

LEASE_HEADER = "Farm-Lease"
_KEEP_S = 24 * 3600.0
_PENDING_S = 600.0
_KEPT_HEADERS = ("content-type", "content-encoding", "vary")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class OnceRoute(APIRoute):
    """A route whose POST honours ``Idempotency-Key``. The route finds a lease to repeat in ``request.state``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def once(request: Request) -> Response:
            key = request.headers.get("idempotency-key")
            if request.method != "POST" or key is None:
                return await handle(request)
            if not _KEY.fullmatch(key):
                raise Refused(ProblemType.INVALID, "Idempotency-Key: 1 to 255 visible ASCII characters")
            return await _once(request, key, handle)

        return once


async def _once(request: Request, key: str, handle: Callable[[Request], Coroutine[Any, Any, Response]]) -> Response:
    store: Store = request.app.state.store
    caller = hashlib.sha256(request.headers.get("authorization", "").encode("utf-8", "replace")).hexdigest()
    name = hashlib.sha256(f"{caller}\n{key}".encode()).hexdigest()
    asked = f"{request.method} {request.url.path}?{request.url.query}\n".encode() + await request.body()
    fingerprint = hashlib.sha256(asked).hexdigest()
    request.state.once = hashlib.sha256(f"{name}{fingerprint}".encode()).hexdigest()
    found = await store.claim_once(name, pack({"asked": fingerprint}), _PENDING_S)
    if found is not None:
        kept: dict[str, Any] = unpack(found)
        if kept["asked"] != fingerprint:
            raise Refused(ProblemType.KEY_REUSED, "choose a new key: this one was sent with another request before")
        if "status" not in kept:
            raise Refused(ProblemType.IN_PROGRESS, "ask again in a moment", headers={"Retry-After": "1"})
        if not kept["lease"]:
            return Response(kept["body"] or None, kept["status"], headers={**kept["headers"], "Farm-Replayed": "true"})
        request.state.repeated_lease = kept["lease"]
        return await handle(request)
    try:
        response = await handle(request)
    except BaseException:
        await store.forget_once(name)
        raise
    await store.keep_once(name, pack(_kept(fingerprint, response)), _KEEP_S)
    return response


def _kept(fingerprint: str, response: Response) -> dict[str, Any]:
    headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    return {
        "asked": fingerprint,
        "status": response.status_code,
        "lease": response.headers.get(LEASE_HEADER, ""),
        "headers": headers,
        "body": b"" if LEASE_HEADER in response.headers else bytes(response.body),
    }
