"""A policy that runs refer to by name: its version and the endpoints that serve it."""

from dataclasses import dataclass

POLICY_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"


@dataclass(frozen=True, slots=True)
class PolicyDocument:
    """A policy as its learner announced it last.

    ``version`` is the version of its weights, which the learner counts. ``endpoints`` are base URLs that all serve
    these weights. ``model`` is the model that requests name; "" means the one that the endpoint names. No reply is
    requested while ``paused``. ``updated_at``: Unix seconds.
    """

    name: str
    version: int
    endpoints: tuple[str, ...]
    model: str = ""
    paused: bool = False
    updated_at: float = 0.0


@dataclass(frozen=True, slots=True)
class EndpointFigures:
    """The figures of an endpoint on one node: requests and failures of the last half minute, and the last failure.

    ``ejected``: the node sends it no requests, because it failed several times in a row.
    """

    url: str
    calls: int
    failures: int
    ejected: bool
    why: str
