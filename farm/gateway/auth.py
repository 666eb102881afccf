"""Bearer tokens, each with one role. A request without a valid token is refused, also on loopback.

The token is checked before a request's body is read; the route checks the role.
"""

import hashlib
import hmac
from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, Literal

from fastapi import Depends, Request
from pydantic import SecretStr
from starlette.types import Scope

from farm.gateway.errors import ApiError
from farm.schemas.problems import ProblemType


class Role(IntEnum):
    """The roles, each with the rights of those before it: read; lease and ack; start and stop runs."""

    VIEWER = 1
    LEARNER = 2
    OPERATOR = 3


class Gatekeeper:
    def __init__(self, tokens: Mapping[Literal["learner", "operator", "viewer"], SecretStr]) -> None:
        self._digests = {
            Role[role.upper()]: _digest(token.get_secret_value().encode()) for role, token in tokens.items()
        }

    def admit(self, scope: Scope, authorization: bytes) -> Role:
        """Return the caller's role, and note it in ``scope`` for the route. Raises ApiError for an unknown caller."""
        role = self.role(authorization)
        if role is None:
            detail = "send a token that this gateway knows: Authorization: Bearer …"
            raise ApiError(ProblemType.UNAUTHENTICATED, detail, headers={"WWW-Authenticate": "Bearer"})
        scope.setdefault("state", {})["role"] = role
        return role

    def role(self, authorization: bytes) -> Role | None:
        """Return the role of an ``Authorization`` header.

        Digests of equal length are compared, each in constant time, so the time tells neither a token nor its length.
        """
        scheme, _, given = authorization.partition(b" ")
        digest = _digest(given.strip())
        matches = [role for role, known in self._digests.items() if hmac.compare_digest(digest, known)]
        return max(matches) if matches and scheme.lower() == b"bearer" else None


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


class RequireRole:
    """A dependency that returns the caller's role and demands at least ``least``."""

    def __init__(self, least: Role) -> None:
        self.least = least

    def __call__(self, request: Request) -> Role:
        role: Role = request.state.role
        if role < self.least:
            needed = self.least.name.lower()
            raise ApiError(ProblemType.FORBIDDEN, f"this needs the role {needed}, not {role.name.lower()}")
        return role


AsViewer = Annotated[Role, Depends(RequireRole(Role.VIEWER))]
AsLearner = Annotated[Role, Depends(RequireRole(Role.LEARNER))]
AsOperator = Annotated[Role, Depends(RequireRole(Role.OPERATOR))]
