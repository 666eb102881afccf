"""A task: an instruction, an image, a verifier and limits; immutable, named by its digest."""

from dataclasses import dataclass
from enum import StrEnum

from farm.core.retrieval import Retrieval


class GradingMode(StrEnum):
    """Where the verdict is reached.

    ``patch``: the workspace's change, applied to a fresh sandbox of the pristine image.
    ``snapshot``: a fresh sandbox on a copy of the agent's file system, protected paths put back. ``shared``: where the
    agent worked, likewise. Where what is judged is more than a workspace; both believe programs that the agent could
    replace. ``separate``: a sandbox of the verifier's own, to which nothing but artifacts goes.
    """

    PATCH = "patch"
    SNAPSHOT = "snapshot"
    SHARED = "shared"
    SEPARATE = "separate"


class ReportFormat(StrEnum):
    """What the verifier writes; which test ids there are follows from it (``farm.core.test_frameworks``).

    Two hold no tests: the reward file of a Harbor ``test.sh``, and a bare exit code.
    """

    PYTEST = "pytest"
    UNITTEST = "unittest"
    GO = "go"
    CARGO = "cargo"
    JEST = "jest"
    JUNIT = "junit"
    TAP = "tap"
    REWARD_FILE = "reward-file"
    EXIT_CODE = "exit-code"

    @property
    def names_tests(self) -> bool:
        return self not in (ReportFormat.REWARD_FILE, ReportFormat.EXIT_CODE)


LEAST_STORAGE_MIB = 256
"""The smallest disk of a sandbox: a change of 64 MiB and the tests must fit, or a large change ends in an error."""


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """A shell command that ends with 0 where a fresh sandbox is ready, asked every ``interval_s`` until it does.

    After ``start_period_s`` it may fail ``retries`` times in a row, or take longer than ``timeout_s``.
    """

    command: str
    interval_s: float
    timeout_s: float
    start_period_s: float
    retries: int


@dataclass(frozen=True, slots=True)
class Artifact:
    """``path`` is absolute, a file or a directory; of that ``exclude`` are patterns of what is left out."""

    path: str
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Collect:
    """A shell command that runs where the agent worked, once it has stopped, to make artifacts."""

    command: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Separate:
    """The verifier's own sandbox. ``brings_tests``: its image has them at /tests; else they are put there."""

    image: str
    workdir: str | None
    artifacts: tuple[Artifact, ...]
    collect: tuple[Collect, ...]
    brings_tests: bool
    cpus: float
    memory_mib: int
    storage_mib: int
    env: "Variables"


Variables = tuple[tuple[str, str], ...]
"""Environment variables, sorted by name."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """How a task is judged.

    ``fail_to_pass`` and ``pass_to_pass`` are test ids, for pytest its node ids
    (``tests/test_a.py::TestB::test_c[0]``). ``command`` is a shell command run in the workspace, with the
    placeholders ``{report}`` (where the report must be written), ``{files}`` (shell words that choose the test files
    that hold expected ids, and the canary) and, for unittest, ``{runner}`` (a program of ours that runs them).
    ``protected`` are gitignore-style patterns, relative to the workspace,
    of paths that the agent's change may not touch. ``env`` is what the command finds beside the task's variables.
    It runs as ``user``; empty: whoever the image says. ``never_false``: ids of which grading makes no false version,
    because the known solution passes one.
    """

    mode: GradingMode
    command: str
    report: ReportFormat
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    protected: tuple[str, ...]
    timeout_s: float
    env: Variables = ()
    separate: Separate | None = None
    user: str = ""
    never_false: tuple[str, ...] = ()

    def limit_s(self, cap_s: float | None) -> float:
        """Seconds that its command has where no more than ``cap_s`` are given."""
        return self.timeout_s if cap_s is None else min(cap_s, self.timeout_s)


class StepReward(StrEnum):
    """What becomes of the rewards of a task's steps: the mean of those that were begun, or the last one's."""

    MEAN = "mean"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a task, in the sandbox that the parts before it leave; judged by itself, before the next is told.

    Below ``min_reward`` no further one is begun. ``healthcheck`` is asked once it is set up.
    """

    name: str
    instruction: str
    verifier: Verifier
    agent_timeout_s: float
    min_reward: float | None = None
    healthcheck: Healthcheck | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What a policy is asked to do and how it is judged.

    ``digest`` is the SHA-256 over everything that defines the task; ``image`` names the built image locally
    (``farm-task-<slug>:<digest of the environment, 12 hex digits>``). ``workspace`` is absolute, inside the image.
    ``tools`` are words that choose a pack and tools of it; empty means the whole default pack. ``network`` is what the
    policy's sandbox may reach, as patterns of hosts; empty means nothing, and grading never reaches anything.
    ``env`` is added to the image's variables. No sandbox is used before its ``healthcheck`` holds.
    The policy is ``user`` in its sandbox; empty: whoever the image says.
    Where there are ``steps`` the instruction, the verifier and the time are the first one's.
    Where there is a ``retrieval`` the policy may only read, and its answer is judged by that, not by the ``verifier``.
    """

    id: str
    digest: str
    instruction: str
    image: str
    workspace: str
    verifier: Verifier
    agent_timeout_s: float
    build_timeout_s: float
    max_turns: int
    tools: tuple[str, ...]
    cpus: float
    memory_mib: int
    storage_mib: int
    network: tuple[str, ...] = ()
    retrieval: Retrieval | None = None
    env: Variables = ()
    healthcheck: Healthcheck | None = None
    user: str = ""
    steps: tuple[Step, ...] = ()
    step_reward: StepReward = StepReward.MEAN
