"""A task: an instruction, an image, a verifier and limits; immutable, named by its digest."""

from dataclasses import dataclass
from enum import StrEnum

from farm.core.retrieval import Retrieval


class GradingMode(StrEnum):
    """Where the verdict is reached.

    ``patch``: the workspace's change, applied to a fresh sandbox of the pristine image.
    ``snapshot``: a fresh sandbox on a copy of the agent's file system. ``shared``: where the agent worked.
    """

    PATCH = "patch"
    SNAPSHOT = "snapshot"
    SHARED = "shared"


class ReportFormat(StrEnum):
    """What the verifier writes: a pytest JUnit report, or the reward file of a Harbor ``test.sh``."""

    PYTEST = "pytest"
    REWARD_FILE = "reward-file"


@dataclass(frozen=True, slots=True)
class Verifier:
    """How a task is judged.

    ``fail_to_pass`` and ``pass_to_pass`` are test ids, for pytest its node ids
    (``tests/test_a.py::TestB::test_c[0]``). ``command`` is a shell command run in the workspace, with the
    placeholders ``{report}`` (where the report must be written) and ``{files}`` (the shell-quoted test files that
    hold expected ids, and the canary). ``protected`` are gitignore-style patterns, relative to the workspace,
    of paths that the agent's change may not touch.
    """

    mode: GradingMode
    command: str
    report: ReportFormat
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    protected: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Task:
    """What a policy is asked to do and how it is judged.

    ``digest`` is the SHA-256 over everything that defines the task; ``image`` names the built image locally
    (``farm-task-<slug>:<digest of the environment, 12 hex digits>``). ``workspace`` is absolute, inside the image.
    ``tools`` are words that choose a pack and tools of it; empty means the whole default pack. ``network`` is what the
    policy's sandbox may reach, as patterns of hosts; empty means nothing, and grading never reaches anything.
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
