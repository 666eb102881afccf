"""Answers of learner sandboxes."""

from collections.abc import Mapping
from typing import Any

from farm.schemas.responses import AnswerBody


class SandboxCallAnswer(AnswerBody):
    """``expires_at``: the Unix time at which the sandbox is removed if no call follows.

    ``warning``: "" unless less than a fifth of the idle time is left.
    """

    expires_at: float
    warning: str = ""


class SandboxAnswer(SandboxCallAnswer):
    """A sandbox. ``tools``: schemas in OpenAI's function form. ``instruction``: of its task. ``fork_of``: the id of the
    sandbox that it is a copy of.
    """

    sandbox_id: str
    node: str
    task_id: str
    image: str
    workdir: str
    tools: tuple[Mapping[str, Any], ...]
    instruction: str
    created_at: float
    fork_of: str


class SandboxesAnswer(AnswerBody):
    """All sandboxes that can be used. ``unavailable``: nodes that did not answer."""

    sandboxes: tuple[SandboxAnswer, ...]
    unavailable: tuple[str, ...] = ()


class ToolCallAnswer(SandboxCallAnswer):
    """The result of a tool call. ``content``: the text that a policy reads. ``done``: the policy has submitted."""

    content: str
    error_kind: str | None
    exit_code: int | None
    timed_out: bool
    truncated: bool
    duration_s: float
    done: bool


class ExecAnswer(SandboxCallAnswer):
    """The result of a program. ``exit_code``: null if it timed out. Bytes that are no UTF-8 are replaced.

    ``stdout_elided`` and ``stderr_elided`` count the bytes that were left out in the middle of a stream.
    """

    exit_code: int | None
    timed_out: bool
    duration_s: float
    stdout: str
    stderr: str
    stdout_elided: int
    stderr_elided: int


class FileWrittenAnswer(SandboxCallAnswer):
    path: str
    size: int
    existed: bool


class GradeAnswer(SandboxCallAnswer):
    """A verdict on the work so far. ``verdict``: ``resolved``, ``unresolved`` or ``not-judged``.

    ``reward``: by the rules of ``reward_version``; null if the work was not judged. ``components``: raw measurements.
    """

    verdict: str
    reward: float | None
    reward_version: str
    reason: str
    components: Mapping[str, float]
    seconds: float


class SandboxDeletedAnswer(AnswerBody):
    sandbox_id: str
