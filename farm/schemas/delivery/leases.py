"""Requests for leases."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from farm.schemas.request_body import RequestBody
from farm.schemas.requests import (
    LONGEST_LEASE_S,
    LONGEST_WAIT_S,
    MOST_GROUPS_PER_LEASE,
    NOT_AVAILABLE,
    Name,
    RunId,
    Version,
)


def _delivered(wish: Literal["refill", "deliver"]) -> Literal["refill", "deliver"]:
    if wish == "refill":
        words = "refill is an option of the run; name it in POST /v1/runs, and lease with deliver"
        raise PydanticCustomError(NOT_AVAILABLE, words)
    return wish


class LeaseBody(RequestBody):
    """A lease. ``run_id`` absent: the oldest run that has groups. ``lease_s`` absent: the farm's own lease time.

    ``zero_variance: drop`` drops groups whose judged rewards are all equal, for good and counted. ``max_staleness``
    with ``policy_version`` drops groups whose oldest token lags by more versions. ``max_tokens`` bounds one lease,
    except for a single group that is larger. ``incomplete: deliver`` also delivers groups with unjudged members.
    ``learner`` with ``history``: of a learner that makes checkpoints; acks of the lease are provisional until the next.
    """

    consumer: Name
    run_id: RunId | None = None
    max_groups: Annotated[StrictInt, Field(ge=1, le=MOST_GROUPS_PER_LEASE)] = 1
    max_tokens: Annotated[StrictInt, Field(ge=1, lt=2**53)] | None = None
    wait_s: Annotated[float, Field(strict=True, ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)] = 0.0
    lease_s: Annotated[float, Field(strict=True, ge=0.05, le=LONGEST_LEASE_S, allow_inf_nan=False)] | None = None
    policy_version: Version | None = None
    max_staleness: Version | None = None
    zero_variance: Literal["keep", "drop"] = "keep"
    incomplete: Annotated[Literal["refill", "deliver"], AfterValidator(_delivered)] = "deliver"
    learner: Name | None = None
    history: Version | None = None

    @model_validator(mode="after")
    def _staleness_needs_a_version(self) -> Self:
        if self.max_staleness is not None and self.policy_version is None:
            raise ValueError("max_staleness needs policy_version, the trainer's own")
        return self

    @model_validator(mode="after")
    def _learner_of_one_run(self) -> Self:
        if (self.learner is None) != (self.history is None) or (self.learner is not None and self.run_id is None):
            raise ValueError("learner needs history, from its restore, and run_id, because checkpoints are of one run")
        return self


class ExtendBody(RequestBody):
    """An extension of a lease, counted from now. ``lease_s`` absent: the farm's own lease time."""

    lease_s: Annotated[float, Field(strict=True, ge=0.05, le=LONGEST_LEASE_S, allow_inf_nan=False)] | None = None
