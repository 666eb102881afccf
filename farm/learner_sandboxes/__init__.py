"""Sandboxes that learners drive over HTTP, on the node that runs them.

This room decides how long such a sandbox lives, which calls it takes, and how its work is graded. Enter at
``LearnerSandboxes`` in ``registry``. The pages are farm/docs/learner-sandboxes.md and farm/docs/architecture/node.md.
"""

from farm.learner_sandboxes.errors import RefusalKind, SandboxRefused
from farm.learner_sandboxes.interface import NodeAway, SandboxHost, SandboxNodes
from farm.learner_sandboxes.messages import (
    Answered,
    CreateSandbox,
    ExecCommand,
    FileWritten,
    GradeResult,
    Remaining,
    SandboxState,
    WriteFile,
)
from farm.learner_sandboxes.registry import LearnerSandboxes, NodeParts

__all__ = [
    "Answered",
    "CreateSandbox",
    "ExecCommand",
    "FileWritten",
    "GradeResult",
    "LearnerSandboxes",
    "NodeAway",
    "NodeParts",
    "RefusalKind",
    "Remaining",
    "SandboxHost",
    "SandboxNodes",
    "SandboxRefused",
    "SandboxState",
    "WriteFile",
]
