"""Request bodies of the gateway. Each field is bounded, and unknown fields are refused."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from farm.core.endpoint_url import EndpointUrl
from farm.core.harness import Harness, Thinking
from farm.core.policy_document import POLICY_NAME
from farm.core.rollout import Split
from farm.core.run import EpisodeLimits, PolicySpec, ReplyTimeouts
from farm.core.summaries import DEFAULT_QUERY, SummarySettings
from farm.schemas.request_body import MOST_ITEMS, NO_NUL, RequestBody, few
from farm.schemas.run_encoding import GroupOptionsBody
from farm.schemas.run_settings import AgentBody, AgentName, BranchingBody
from farm.schemas.types import Scalar
from sandboxes.errors import SpecError
from sandboxes.tools.packs import choose

_FARMS_OWN = EpisodeLimits()
MOST_GROUPS_PER_LEASE = 256
LONGEST_WAIT_S = 300.0
LONGEST_LEASE_S = 86_400.0

NOT_AVAILABLE = "not_available"
"""The error type of a value that the farm does not support at this place."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$"
RUN_ID = r"^[a-z0-9][a-z0-9-]{0,63}$"
ROLLOUT_ID = r"^[a-z0-9][a-z0-9-]{0,127}$"
RULES_VERSION = r"^[a-z0-9][a-z0-9-]{0,63}$"
EVALUATION_ID = r"^eval-[0-9a-f]{12}$"
SANDBOX_ID = r"^sb-[0-9a-f]{12}$"
LEASE_ID = r"^[a-z0-9][a-z0-9-]{0,63}\.[A-Za-z0-9_-]{16,64}$"
ADDRESS = r"^https?://[^\s/]+[^\s]*$"
POLICY = r"^([a-z0-9][a-z0-9._-]{0,63}|https?://[^\s/]+[^\s]*)$"
BUILT_IN_POLICIES = ("oracle", "nop")
MOST_ENDPOINTS = 256

RULES: Mapping[str, str] = {
    NAME: "should be 1 to 128 letters, digits or any of . _ : @ / - and begin with a letter or digit",
    RUN_ID: "should be the id of a run, such as run-0123456789ab",
    ROLLOUT_ID: "should be the id of a rollout, such as run-0123456789ab-g000000-000",
    POLICY_NAME: "should be 1 to 64 of a-z, 0-9, . _ - and begin with a letter or digit",
    LEASE_ID: "should be the lease_id of a lease",
    EVALUATION_ID: "should be the id of an evaluation, such as eval-0123456789ab",
    SANDBOX_ID: "should be the id of a sandbox, such as sb-0123456789ab",
    NO_NUL: "should have no zero byte",
    ADDRESS: "should be an address such as http://HOST:8000/v1, without user, query, fragment or escapes",
}
"""A text for each pattern."""

Name = Annotated[str, StringConstraints(strict=True, pattern=NAME)]
RunId = Annotated[str, StringConstraints(strict=True, pattern=RUN_ID)]
RulesVersion = Annotated[str, StringConstraints(strict=True, pattern=RULES_VERSION)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=86_400, allow_inf_nan=False)]
Version = Annotated[StrictInt, Field(ge=0, lt=2**53)]


class LimitsBody(RequestBody):
    """Limits in seconds, turns and sampled tokens. An absent limit is the farm's or the task's own."""

    boot_s: Seconds = _FARMS_OWN.boot_s
    tool_s: Seconds = _FARMS_OWN.tool_s
    agent_s: Seconds | None = None
    verify_s: Seconds | None = None
    teardown_s: Seconds = _FARMS_OWN.teardown_s
    max_turns: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1, le=100_000_000)] | None = None


def _address(text: str) -> str:
    try:
        return str(EndpointUrl.parse(text))
    except ValueError:
        raise ValueError(RULES[ADDRESS]) from None


class TimeoutsBody(RequestBody):
    """Time-outs of one reply of the endpoint, in seconds. An absent one is that of the node's configuration."""

    connect_s: Seconds | None = None
    first_byte_s: Seconds | None = None
    reply_s: Seconds | None = None


Endpoint = Annotated[str, StringConstraints(strict=True, pattern=ADDRESS, max_length=2048), AfterValidator(_address)]


def _not_built_in(name: str) -> str:
    if name in BUILT_IN_POLICIES:
        raise ValueError(f"{name} is a policy of the farm itself; choose another name")
    return name


PolicyName = Annotated[str, StringConstraints(strict=True, pattern=POLICY_NAME), AfterValidator(_not_built_in)]


def _some_endpoints(value: Any) -> Any:
    """Refuse a list of another length at once, so that its items are not described too."""
    if isinstance(value, list | tuple) and not 1 <= len(value) <= MOST_ENDPOINTS:
        raise ValueError(f"should have 1 to {MOST_ENDPOINTS} endpoints")
    return value


class PutPolicyBody(RequestBody):
    """A policy as it is from now on. ``version``: of its weights. ``endpoints`` absent: those that it had.

    ``model``: the model that requests name; absent, the one that the endpoint names.
    """

    version: Version
    endpoints: Annotated[tuple[Endpoint, ...] | None, BeforeValidator(_some_endpoints)] = None
    model: Annotated[str, StringConstraints(strict=True, max_length=256)] | None = None


class PolicyBody(RequestBody):
    """An OpenAI-compatible endpoint, or the ``name`` of a policy that the farm knows."""

    name: PolicyName | None = None
    endpoint: Endpoint | None = None
    model: Annotated[str, StringConstraints(strict=True, max_length=256)] = ""
    sampling_params: Annotated[
        dict[Annotated[str, Field(max_length=128)], Scalar], Field(max_length=MOST_ITEMS), BeforeValidator(few)
    ] = Field(default_factory=dict)
    timeouts: TimeoutsBody = TimeoutsBody()

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.name is None) == (self.endpoint is None):
            raise ValueError("should have either an endpoint or the name of a policy")
        return self


def _policy(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Return one error for the form that the caller meant; the union would return one for each of its members."""
    if isinstance(value, dict):
        return PolicyBody.model_validate(value)
    try:
        found = handler(value)
        return _address(found) if "://" in found else found
    except ValueError:
        raise ValueError(
            "should be oracle, nop, the name of a policy, an address such as http://HOST:8000/v1, or an object with an "
            "endpoint or a name"
        ) from None


Policy = Annotated[
    Annotated[str, StringConstraints(strict=True, pattern=POLICY, max_length=2048)] | PolicyBody, WrapValidator(_policy)
]


def _words(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, str) else few(value)


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
"""The name of a tool pack, and tool names: those to offer, or, with a ``-`` before each, those to leave out."""


class SummariesBody(RequestBody):
    """Self-summarisation: at ``trigger_tokens`` the policy replaces its context by a summary of at most ``max_tokens``.

    ``query`` requests the summary. ``max_summaries`` absent: as many as an episode needs.
    """

    trigger_tokens: Annotated[StrictInt, Field(ge=1, le=100_000_000)]
    max_tokens: Annotated[StrictInt, Field(ge=1, le=1_000_000)]
    query: Annotated[str, StringConstraints(strict=True, min_length=1, max_length=8_192)] = DEFAULT_QUERY
    max_summaries: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = None

    @model_validator(mode="after")
    def _shorter_than_context(self) -> Self:
        if self.max_tokens >= self.trigger_tokens:
            raise ValueError("max_tokens is not below trigger_tokens, so a summary could be as long as the context")
        return self


class HarnessLimitsBody(RequestBody):
    """The limits that a policy notices: of turns, of sampled tokens, and of seconds for its work and for one call."""

    max_turns: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1, le=100_000_000)] | None = None
    agent_s: Seconds | None = None
    tool_s: Seconds | None = None


class HarnessBody(RequestBody):
    """The harness of a run: the settings that decide how a policy works. An absent one has its default.

    ``system_prompt`` replaces the farm's own. ``thinking: drop`` leaves the reasoning of earlier turns out of requests.
    ``parallel_calls: false`` runs only the first tool call of each message.
    """

    system_prompt: Annotated[str, StringConstraints(strict=True, min_length=1, max_length=32_768)] | None = None
    thinking: Thinking = Thinking.KEEP
    tools: Tools = ()
    limits: HarnessLimitsBody = HarnessLimitsBody()
    parallel_calls: StrictBool = True
    summaries: SummariesBody | None = None

    def to_core(self) -> Harness:
        summaries = None if self.summaries is None else SummarySettings(**dict(self.summaries))
        return Harness(self.system_prompt, self.thinking, self.parallel_calls, summaries)


def _agent(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Return one error for the form that the caller meant; the union would return one for each of its members."""
    if isinstance(value, dict):
        return AgentBody.model_validate(value)
    try:
        return handler(value)
    except ValueError:
        raise ValueError("should be the name of an agent, or an object with a name and a command") from None


class CreateRun(GroupOptionsBody):
    """A run: groups over a task set with one policy. Its groups are described in ``GroupOptionsBody``.

    ``taskset``: an absolute path on the gateway's machine, or the name of one of its task sets. ``policy``: ``oracle``,
    ``nop``, the name of a policy, the URL of an OpenAI-compatible endpoint, or an object. ``tools`` replaces the tools
    of the tasks; absent, each task keeps its own. ``harness``: the settings that decide how the policy works; ``tools``
    and ``limits`` of the run replace those of the harness. ``agent``: the name or the document of an agent that works
    in place of the farm's own turn loop. ``branching``: episodes fork, and ``group_size`` counts all branches.
    ``rewards``: the
    version of the rules that score the whole run; absent, each group is scored by the version that is current then.
    ``unvalidated``: also run tasks that ``validated.json`` lacks, lists with another digest, or marks unfit.
    ``only_fit``: run only the tasks that it marks fit. Left out are tasks that are unfit by it, are not in it, or were
    changed since, and tasks that cannot be loaded; the answer names them with the reasons.
    """

    taskset: Annotated[str, StringConstraints(strict=True, min_length=1, max_length=1024)]
    policy: Policy
    limits: LimitsBody = LimitsBody()
    seed: Annotated[StrictInt, Field(ge=0, lt=2**53)] = 0
    concurrency: Annotated[StrictInt, Field(ge=1, le=1_000_000)] | None = None
    max_attempts: Annotated[StrictInt, Field(ge=1, le=20)] | None = None
    split: Split = Split.TRAIN
    tools: Tools = ()
    harness: HarnessBody | None = None
    agent: Annotated[AgentName | AgentBody | None, WrapValidator(_agent)] = None
    branching: BranchingBody | None = None
    rewards: RulesVersion | None = None
    unvalidated: StrictBool = False
    only_fit: StrictBool = False

    @model_validator(mode="after")
    def _staleness_needs_versions(self) -> Self:
        named = self.policy_spec().policy if self.max_staleness is not None else "any"
        if not named:
            raise ValueError("max_staleness needs the name of a policy, whose versions a learner announces")
        return self

    @model_validator(mode="after")
    def _no_pace_of_evaluation(self) -> Self:
        paced = [name for name in ("max_staleness", "queue_groups", "queue_bytes") if getattr(self, name) is not None]
        if self.split is Split.EVAL and paced:
            raise ValueError(f"{paced[0]} waits for a learner, which never gets groups of split eval; leave it out")
        return self

    @model_validator(mode="after")
    def _model_for_agent(self) -> Self:
        if self.agent is not None and self.policy in BUILT_IN_POLICIES:
            raise ValueError(f"an agent needs a model, and {self.policy} is none; name an endpoint or a policy")
        harness = self.harness or HarnessBody()
        if self.agent is not None and (self.effective_tools() or harness.system_prompt or harness.summaries):
            raise ValueError("an agent has its own tools, system prompt and summaries; leave out those of the run")
        return self

    @model_validator(mode="after")
    def _whole_trees(self) -> Self:
        if self.branching is not None:
            self.branching.check_run(self.group_size, self.episode_limits().max_turns, has_agent=bool(self.agent))
            if self.redundant or self.incomplete == "refill":
                raise ValueError("redundant and incomplete: refill are not possible with branching; leave them out")
        return self

    @model_validator(mode="after")
    def _fit_or_any(self) -> Self:
        if self.only_fit and self.unvalidated:
            raise ValueError("only_fit and unvalidated contradict each other; leave one of them out")
        return self

    def effective_tools(self) -> tuple[str, ...]:
        """Return the tools of the run, or else those of its harness."""
        return self.tools or (self.harness.tools if self.harness else ())

    def episode_limits(self) -> EpisodeLimits:
        """Return the limits of the run over those of its harness over the farm's own."""
        bodies = (self.harness.limits if self.harness else HarnessLimitsBody(), self.limits)
        named = [{name: getattr(body, name) for name in body.model_fields_set} for body in bodies]
        given = {name: value for fields in named for name, value in fields.items() if value is not None}
        return EpisodeLimits(**given)

    def policy_spec(self) -> PolicySpec:
        if isinstance(self.policy, PolicyBody):
            named = self.policy
            timeouts = ReplyTimeouts(**named.timeouts.model_dump())
            return PolicySpec(
                "openai", named.endpoint or "", named.model, named.sampling_params, timeouts, named.name or ""
            )
        if self.policy in BUILT_IN_POLICIES:
            return PolicySpec(self.policy)
        if "://" in self.policy:
            return PolicySpec("openai", self.policy)
        return PolicySpec("openai", policy=self.policy)


class RewardsBody(RequestBody):
    """A rule document in TOML. ``current``: runs that name no version use it from now on."""

    document: Annotated[str, StringConstraints(strict=True, min_length=1, max_length=65_536)]
    current: Annotated[bool, Field(strict=True)] = True


class RescoreBody(RequestBody):
    """A rescoring. ``version`` absent: the current one. ``first``: the ordinal of the first group, from ``next`` of the
    last answer. ``dry_run``: only report the result.
    """

    run_id: RunId
    version: RulesVersion | None = None
    first: Annotated[StrictInt, Field(ge=0, lt=2**53)] = 0
    dry_run: Annotated[bool, Field(strict=True)] = False


class EmptyBody(RequestBody):
    """An empty body, or ``{}``."""


__all__ = [
    "CreateRun",
    "EmptyBody",
    "HarnessBody",
    "LimitsBody",
    "PolicyBody",
    "PutPolicyBody",
    "RescoreBody",
    "RewardsBody",
]
