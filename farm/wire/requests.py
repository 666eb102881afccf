"""What the gateway is asked, each field bounded. A field that is not listed is refused."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints, model_validator

from farm.core.orders import Limits, PolicySpec
from farm.core.rollout import Split
from farm.wire.fields import Scalar

_FARMS_OWN = Limits()
MOST_GROUPS_PER_LEASE = 256
LONGEST_WAIT_S = 300.0
LONGEST_LEASE_S = 86_400.0

Name = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$")]
RunId = Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
Seconds = Annotated[float, Field(strict=True, gt=0, le=86_400, allow_inf_nan=False)]
Version = Annotated[StrictInt, Field(ge=0, lt=2**53)]


class RequestBody(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LimitsBody(RequestBody):
    """Seconds, turns and sampled tokens; what is absent is the farm's or the task's own."""

    boot_s: Seconds = _FARMS_OWN.boot_s
    tool_s: Seconds = _FARMS_OWN.tool_s
    agent_s: Seconds | None = None
    verify_s: Seconds | None = None
    teardown_s: Seconds = _FARMS_OWN.teardown_s
    max_turns: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1, le=100_000_000)] | None = None

    def to_core(self) -> Limits:
        return Limits(**dict(self))


class PolicyBody(RequestBody):
    """An OpenAI-compatible endpoint."""

    endpoint: Annotated[str, StringConstraints(strict=True, pattern=r"^https?://[^\s/]+[^\s]*$", max_length=2048)]
    model: Annotated[str, StringConstraints(strict=True, max_length=256)] = ""
    sampling_params: Annotated[dict[Annotated[str, Field(max_length=128)], Scalar], Field(max_length=64)] = Field(
        default_factory=dict
    )


PolicyName = Annotated[
    str, StringConstraints(strict=True, pattern=r"^(oracle|nop|https?://[^\s/]+[^\s]*)$", max_length=2048)
]


class CreateRun(RequestBody):
    """Groups over a task set with one policy.

    ``taskset``: an absolute path on the gateway's machine, or the name of a task set it knows. ``policy``:
    ``oracle``, ``nop``, the URL of an OpenAI-compatible endpoint, or an object. ``groups`` absent: one a task.
    """

    taskset: Annotated[str, StringConstraints(strict=True, min_length=1, max_length=1024)]
    policy: PolicyName | PolicyBody
    group_size: Annotated[StrictInt, Field(ge=1, le=1000)]
    groups: Annotated[StrictInt, Field(ge=1, le=999_999)] | None = None
    limits: LimitsBody = LimitsBody()
    seed: Annotated[StrictInt, Field(ge=0, lt=2**53)] = 0
    concurrency: Annotated[StrictInt, Field(ge=1, le=1_000_000)] | None = None
    max_attempts: Annotated[StrictInt, Field(ge=1, le=20)] | None = None
    split: Split = Split.TRAIN

    def policy_spec(self) -> PolicySpec:
        if isinstance(self.policy, PolicyBody):
            return PolicySpec("openai", self.policy.endpoint, self.policy.model, self.policy.sampling_params)
        if self.policy in ("oracle", "nop"):
            return PolicySpec(self.policy)
        return PolicySpec("openai", self.policy)


class LeaseBody(RequestBody):
    """``run_id`` absent: the oldest run that has groups. ``lease_s`` absent: the farm's own.

    ``zero_variance: drop`` drops, for good and counted, groups whose judged rewards are all equal; ``max_staleness``
    with ``policy_version`` those whose oldest token lags more versions than that. ``max_tokens`` bounds what one lease
    holds, but for a single group that is larger. ``incomplete: deliver`` hands out groups with unjudged members.
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
    incomplete: Literal["refill", "deliver"] = "deliver"

    @model_validator(mode="after")
    def _staleness_needs_a_version(self) -> Self:
        if self.max_staleness is not None and self.policy_version is None:
            raise ValueError("max_staleness needs policy_version, the trainer's own")
        return self


class ExtendBody(RequestBody):
    """``lease_s`` absent: the farm's own lease time; counted from now."""

    lease_s: Annotated[float, Field(strict=True, ge=0.05, le=LONGEST_LEASE_S, allow_inf_nan=False)] | None = None


class EmptyBody(RequestBody):
    """Nothing, or ``{}``."""


__all__ = ["CreateRun", "EmptyBody", "ExtendBody", "LeaseBody", "LimitsBody", "PolicyBody"]
