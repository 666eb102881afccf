"""What is asked of the farm: runs of groups of episodes, and the order for one episode."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from farm.core.rollout import Failure, Split, Status, StopReason


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Deadlines nest: boot, each tool call, the agent's whole turn loop, verify, teardown; all in seconds.

    ``agent_s``, ``verify_s`` and ``max_turns`` are caps over what the task itself asks for; None takes the task's.
    ``max_tokens`` bounds the sampled tokens of an episode.
    """

    boot_s: float = 60.0
    tool_s: float = 180.0
    agent_s: float | None = None
    verify_s: float | None = None
    teardown_s: float = 30.0
    max_turns: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ReplyTimeouts:
    """Seconds that an endpoint has for one reply: to accept the connection, until the first byte, and in all.

    None stands for what the node is configured with.
    """

    connect_s: float | None = None
    first_byte_s: float | None = None
    reply_s: float | None = None

    def over(self, other: "ReplyTimeouts") -> "ReplyTimeouts":
        """Return these time-outs, with those of ``other`` in the place of None."""
        return ReplyTimeouts(
            other.connect_s if self.connect_s is None else self.connect_s,
            other.first_byte_s if self.first_byte_s is None else self.first_byte_s,
            other.reply_s if self.reply_s is None else self.reply_s,
        )


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """``kind`` is ``oracle``, ``nop`` or ``openai``; the other fields belong to the last."""

    kind: str
    endpoint: str = ""
    model: str = ""
    sampling_params: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    timeouts: ReplyTimeouts = ReplyTimeouts()

    @property
    def name(self) -> str:
        return self.model or self.kind


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task as the scheduler knows it; its bundle is found in the store under ``digest``."""

    id: str
    digest: str
    image: str
    memory_mib: int
    cpus: float


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A request for groups over a task set with one policy.

    ``groups`` groups are dispatched, going round ``tasks`` in order; ``concurrency`` caps the run's episodes in
    flight (None: what the nodes hold). ``max_attempts`` counts tries that failed, the first included; one that was
    stopped on purpose did not fail. ``tools``, where there are any words, is put in place of what tasks ask for.
    ``rewards`` is the version of the rules that judge it; empty: those that are current then.
    """

    run_id: str
    tasks: tuple[TaskRef, ...]
    policy: PolicySpec
    group_size: int
    groups: int
    limits: EpisodeLimits
    split: Split = Split.TRAIN
    concurrency: int | None = None
    max_attempts: int = 3
    seed: int = 0
    created_at: float = 0.0
    tools: tuple[str, ...] = ()
    rewards: str = ""


@dataclass(frozen=True, slots=True)
class EpisodeAssignment:
    """One try at one place of a group. ``rollout_id`` is stable across attempts."""

    rollout_id: str
    attempt: int
    final: bool
    run_id: str
    group_id: str
    group_index: int
    group_size: int
    task: TaskRef
    split: Split
    policy: PolicySpec
    limits: EpisodeLimits
    seed: int
    tools: tuple[str, ...] = ()
    rewards: str = ""


@dataclass(frozen=True, slots=True)
class EpisodeReport:
    """What a node agent tells the scheduler when an episode has ended.

    ``published`` is False for a retryable failure of an order that was not ``final``; for an episode that its node
    stopped, where ``failure`` is None; and for a failure that the store refuses, which is not retryable.
    """

    rollout_id: str
    attempt: int
    run_id: str
    group_id: str
    task_id: str
    status: Status
    stop_reason: StopReason
    reward: float | None
    failure: Failure | None
    published: bool
    metrics: Mapping[str, float]
    policy: str = ""


def group_id(run_id: str, ordinal: int) -> str:
    """Unique per dispatch and recomputable after a restart: ``<run_id>-g<ordinal>``."""
    return f"{run_id}-g{ordinal:06d}"


def rollout_id(group: str, index: int) -> str:
    return f"{group}-{index:03d}"


def parse_rollout_id(text: str) -> tuple[str, int, int] | None:
    """Run id, ordinal of the group and index in it; None where ``text`` is no rollout id."""
    match text.rsplit("-", 2):
        case [run_id, group, index] if group[:1] == "g" and group[1:].isdecimal() and index.isdecimal():
            return run_id, int(group[1:]), int(index)
    return None
