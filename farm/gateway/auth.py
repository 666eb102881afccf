"""Who may do what: bearer tokens, each with one role. With no token configured the gateway is open on loopback."""

import hmac
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Annotated, Literal

from fastapi import Depends, Request
from pydantic import SecretStr

from farm.gateway.refusals import Refused
from farm.wire.problem import ProblemType


class Role(IntEnum):
    """Each may do all that the ones before it may: look; lease and ack; start and stop runs."""

    VIEWER = 1
    LEARNER = 2
    OPERATOR = 3


class Gatekeeper:
    def __init__(self, tokens: Mapping[Literal["learner", "operator", "viewer"], SecretStr]) -> None:
        self._tokens = {Role[role.upper()]: token.get_secret_value().encode() for role, token in tokens.items()}

    @property
    def open(self) -> bool:
        return not self._tokens

    def role(self, authorization: str | None) -> Role | None:
        """The role of an ``Authorization`` header; every token is compared, in constant time."""
        if self.open:
            return Role.OPERATOR
        scheme, _, given = (authorization or "").partition(" ")
        offered = given.strip().encode("utf-8", "surrogateescape")
        matches = [role for role, token in self._tokens.items() if hmac.compare_digest(offered, token)]
        return max(matches) if matches and scheme.lower() == "bearer" else None


def require(least: Role) -> Callable[[Request], Role]:
    """A dependency: the caller's role, at least ``least``."""

    def check(request: Request) -> Role:
        gatekeeper: Gatekeeper = request.app.state.gatekeeper
        role = gatekeeper.role(request.headers.get("authorization"))
        if role is None:
            detail = "send a token that this gateway knows: Authorization: Bearer …"
            raise Refused(ProblemType.UNAUTHENTICATED, detail, headers={"WWW-Authenticate": "Bearer"})
        if role < least:
            raise Refused(ProblemType.FORBIDDEN, f"this needs the role {least.name.lower()}, not {role.name.lower()}")
        return role

    return check


AsViewer = Annotated[Role, Depends(require(Role.VIEWER))]
AsLearner = Annotated[Role, Depends(require(Role.LEARNER))]
AsOperator = Annotated[Role, Depends(require(Role.OPERATOR))]
