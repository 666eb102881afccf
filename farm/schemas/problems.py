"""Problem documents (RFC 9457): every refusal of the gateway, with a stable ``type``."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:farm:problem:"


class ProblemType(StrEnum):
    """The types of problems, for clients to branch on; ``PREFIX`` stands before each. Types may be added, never
    renamed.
    """

    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    NOT_ACCEPTABLE = "not-acceptable"
    TIMEOUT = "request-timeout"
    CONFLICT = "conflict"
    LEASE_LOST = "lease-lost"
    RUN_ENDED = "run-ended"
    WRONG_HISTORY = "wrong-history"
    CHECKPOINT_ORDER = "checkpoint-order"
    CHECKPOINT_NEEDED = "checkpoint-needed"
    UNKNOWN_CHECKPOINT = "unknown-checkpoint"
    TOO_MANY_GROUPS = "too-many-groups"
    IN_PROGRESS = "idempotency-in-progress"
    KEY_REUSED = "idempotency-key-reused"
    TOO_LARGE = "too-large"
    UNSUPPORTED_MEDIA = "unsupported-media-type"
    MALFORMED = "malformed-json"
    INVALID = "invalid-request"
    TASKSET = "taskset"
    NOT_AVAILABLE = "not-available"
    HTTP = "http"
    INTERNAL = "internal"
    UNREADABLE = "unreadable"
    BUSY = "busy"
    STORE_UNAVAILABLE = "store-unavailable"
    SCHEDULER_UNAVAILABLE = "scheduler-unavailable"
    SANDBOX_GONE = "sandbox-gone"
    SANDBOX_REFUSED = "sandbox-refused"
    SANDBOX_BUSY = "sandbox-busy"
    UNKNOWN_TOOL = "unknown-tool"
    PATH_REFUSED = "path-refused"
    NO_SLOT = "no-slot"
    NODE_UNAVAILABLE = "node-unavailable"


class FieldProblem(BaseModel):
    """A fault of one field. ``field`` is a dotted path into the body, or the name of a query parameter or a rollout."""

    model_config = ConfigDict(frozen=True)

    field: str
    message: str


class Problem(BaseModel):
    """A problem document. ``lease_id``: the lease of the groups that the problem is about, which stay leased."""

    model_config = ConfigDict(frozen=True)

    type: Annotated[str, Field(examples=[PREFIX + "lease-lost"])]
    title: str
    status: int
    detail: str = ""
    errors: tuple[FieldProblem, ...] = ()
    lease_id: str = ""
