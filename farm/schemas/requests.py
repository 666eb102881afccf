"""What the gateway is asked, each field bounded. A field that is not listed is refused."""

from collections.abc import Mapping
from heapq import nsmallest
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from farm.core.endpoint_url import EndpointUrl
from farm.core.rollout import Split
from farm.core.run import EpisodeLimits, PolicySpec, ReplyTimeouts
from farm.schemas.types import Scalar
from sandboxes.errors import SpecError
from sandboxes.tools.packs import choose

_FARMS_OWN = EpisodeLimits()
MOST_FIELDS = 20
"""Faults that a refusal names."""

MOST_ITEMS = 64
MOST_GROUPS_PER_LEASE = 256
LONGEST_WAIT_S = 300.0
LONGEST_LEASE_S = 86_400.0

NOT_AVAILABLE = "not_available"
"""The type of the error of a field that the farm will know, and does not know yet."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$"
RUN_ID = r"^[a-z0-9][a-z0-9-]{0,63}$"
ROLLOUT_ID = r"^[a-z0-9][a-z0-9-]{0,127}$"
RULES_VERSION = r"^[a-z0-9][a-z0-9-]{0,63}$"
LEASE_ID = r"^[a-z0-9][a-z0-9-]{0,63}\.[A-Za-z0-9_-]{16,64}$"
ADDRESS = r"^https?://[^\s/]+[^\s]*$"
POLICY = r"^(oracle|nop|https?://[^\s/]+[^\s]*)$"

RULES: Mapping[str, str] = {
    NAME: "should be 1 to 128 letters, digits or any of . _ : @ / - and begin with a letter or digit",
    RUN_ID: "should be the id of a run, such as run-0123456789ab",
    ROLLOUT_ID: "should be the id of a rollout, such as run-0123456789ab-g000000-000",
    LEASE_ID: "should be the lease_id of a lease",
    ADDRESS: "should be an address such as http://HOST:8000/v1, without user, query, fragment or escapes",
}
"""What each pattern asks for, in words."""

Name = Annotated[str, StringConstraints(strict=True, pattern=NAME)]
RunId = Annotated[str, StringConstraints(strict=True, pattern=RUN_ID)]
RulesVersion = Annotated[str, StringConstraints(strict=True, pattern=RULES_VERSION)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=86_400, allow_inf_nan=False)]
Version = Annotated[StrictInt, Field(ge=0, lt=2**53)]


def _not_yet(instead: str) -> BeforeValidator:
    """Of a field that is to come only its absence is taken."""

    def refuse(value: Any) -> None:
        if value is not None:
            raise PydanticCustomError(NOT_AVAILABLE, "is not available yet; {instead}", {"instead": instead})

    return BeforeValidator(refuse)


class RequestBody(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        unknown = given.keys() - cls.model_fields.keys() if isinstance(given, dict) else set()
        if unknown:
            usable = [name for name, field in cls.model_fields.items() if field.annotation is not type(None)]
            known = ", ".join(usable) or "none"
            refusal = PydanticCustomError(
                "unknown_field", "there is no such field; there are: {known}", {"known": known}
            )
            first = nsmallest(MOST_FIELDS, map(str, unknown))
            faults = [InitErrorDetails(type=refusal, loc=(name,), input=None) for name in first]
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return given


class LimitsBody(RequestBody):
    """Seconds, turns and sampled tokens; what is absent is the farm's or the task's own."""

    boot_s: Seconds = _FARMS_OWN.boot_s
    tool_s: Seconds = _FARMS_OWN.tool_s
    agent_s: Seconds | None = None
    verify_s: Seconds | None = None
    teardown_s: Seconds = _FARMS_OWN.teardown_s
    max_turns: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1, le=100_000_000)] | None = None

    def to_core(self) -> EpisodeLimits:
        return EpisodeLimits(**dict(self))


def _address(text: str) -> str:
    try:
        return str(EndpointUrl.parse(text))
    except ValueError:
        raise ValueError(RULES[ADDRESS]) from None


def _few(value: Any) -> Any:
    """Refuse a long list or object at once: pydantic would describe each of its items first."""
    if isinstance(value, list | tuple | dict) and len(value) > MOST_ITEMS:
        raise ValueError(f"should have at most {MOST_ITEMS} items")
    return value


class TimeoutsBody(RequestBody):
    """Seconds that the endpoint has for one reply; absent: what the nodes are configured with."""

    connect_s: Seconds | None = None
    first_byte_s: Seconds | None = None
    reply_s: Seconds | None = None


class PolicyBody(RequestBody):
    """An OpenAI-compatible endpoint."""

    endpoint: Annotated[str, StringConstraints(strict=True, pattern=ADDRESS, max_length=2048), AfterValidator(_address)]
    model: Annotated[str, StringConstraints(strict=True, max_length=256)] = ""
    sampling_params: Annotated[
        dict[Annotated[str, Field(max_length=128)], Scalar], Field(max_length=MOST_ITEMS), BeforeValidator(_few)
    ] = Field(default_factory=dict)
    timeouts: TimeoutsBody = TimeoutsBody()


def _policy(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """One line, of the form that was meant, where the union would complain of each of its members."""
    if isinstance(value, dict):
        return PolicyBody.model_validate(value)
    try:
        found = handler(value)
        return found if found in ("oracle", "nop") else _address(found)
    except ValueError:
        raise ValueError(
            "should be oracle, nop, an address such as http://HOST:8000/v1, or an object with an endpoint"
        ) from None


Policy = Annotated[
    Annotated[str, StringConstraints(strict=True, pattern=POLICY, max_length=2048)] | PolicyBody, WrapValidator(_policy)
]


def _words(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, str) else _few(value)


def _known_tools(words: tuple[str, ...]) -> tuple[str, ...]:
    try:
        choose(words)
    except SpecError as error:
        raise ValueError(str(error)) from None
    return words


Tools = Annotated[
    tuple[Annotated[str, StringConstraints(strict=True, max_length=128)], ...],
    Field(max_length=MOST_ITEMS),
    BeforeValidator(_words),
    AfterValidator(_known_tools),
]
"""A pack by its name, and tools of it: those there are to be, or those with a ``-`` before that are not."""


class CreateRun(RequestBody):
    """Groups over a task set with one policy.

    ``taskset``: an absolute path on the gateway's machine, or the name of a task set it knows. ``policy``:
    ``oracle``, ``nop``, the URL of an OpenAI-compatible endpoint, or an object. ``groups`` absent: one a task.
    ``tools`` is put in place of what the tasks ask for; absent, each task's own. ``rewards``: the version of the rules
    that judge the run to its end; absent, those that are current as its groups are judged.
    ``unvalidated``: also tasks that the set's ``validated.json`` does not tell of as they are, or calls unfit.
    ``only_fit``: only the tasks that it calls fit as they are; the others are left out, also those that cannot be read.
    """

    taskset: Annotated[str, StringConstraints(strict=True, min_length=1, max_length=1024)]
    policy: Policy
    group_size: Annotated[StrictInt, Field(ge=1, le=1000)]
    groups: Annotated[StrictInt, Field(ge=1, le=999_999)] | None = None
    limits: LimitsBody = LimitsBody()
    seed: Annotated[StrictInt, Field(ge=0, lt=2**53)] = 0
    concurrency: Annotated[StrictInt, Field(ge=1, le=1_000_000)] | None = None
    max_attempts: Annotated[StrictInt, Field(ge=1, le=20)] | None = None
    split: Split = Split.TRAIN
    tools: Tools = ()
    rewards: RulesVersion | None = None
    unvalidated: StrictBool = False
    only_fit: StrictBool = False
    max_staleness: Annotated[None, _not_yet("leave it out, and name it where you lease")] = None

    @model_validator(mode="after")
    def _fit_or_any(self) -> Self:
        if self.only_fit and self.unvalidated:
            raise ValueError("only_fit and unvalidated contradict each other; leave one of them out")
        return self

    def policy_spec(self) -> PolicySpec:
        if isinstance(self.policy, PolicyBody):
            named = self.policy
            timeouts = ReplyTimeouts(**named.timeouts.model_dump())
            return PolicySpec("openai", named.endpoint, named.model, named.sampling_params, timeouts)
        if self.policy in ("oracle", "nop"):
            return PolicySpec(self.policy)
        return PolicySpec("openai", self.policy)


def _delivered(wish: Literal["refill", "deliver"]) -> Literal["refill", "deliver"]:
    if wish == "refill":
        words = "refill is not available yet; lease with deliver, and leave out members whose reward is null"
        raise PydanticCustomError(NOT_AVAILABLE, words)
    return wish


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
    incomplete: Annotated[Literal["refill", "deliver"], AfterValidator(_delivered)] = "deliver"

    @model_validator(mode="after")
    def _staleness_needs_a_version(self) -> Self:
        if self.max_staleness is not None and self.policy_version is None:
            raise ValueError("max_staleness needs policy_version, the trainer's own")
        return self


class ExtendBody(RequestBody):
    """``lease_s`` absent: the farm's own lease time; counted from now."""

    lease_s: Annotated[float, Field(strict=True, ge=0.05, le=LONGEST_LEASE_S, allow_inf_nan=False)] | None = None


class RewardsBody(RequestBody):
    """``document``: a rule document, TOML. ``current``: runs that name no version follow it from now on."""

    document: Annotated[str, StringConstraints(strict=True, min_length=1, max_length=65_536)]
    current: Annotated[bool, Field(strict=True)] = True


class RescoreBody(RequestBody):
    """``version`` absent: the current one. ``first``: the ordinal of the first group to look at, as the last answer's
    ``next`` has it. ``dry_run``: only say what would come of it."""

    run_id: RunId
    version: RulesVersion | None = None
    first: Annotated[StrictInt, Field(ge=0, le=999_999)] = 0
    dry_run: Annotated[bool, Field(strict=True)] = False


class EmptyBody(RequestBody):
    """Nothing, or ``{}``."""


__all__ = [
    "CreateRun",
    "EmptyBody",
    "ExtendBody",
    "LeaseBody",
    "LimitsBody",
    "PolicyBody",
    "RescoreBody",
    "RewardsBody",
]
