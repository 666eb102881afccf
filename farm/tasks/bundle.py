"""All of a task in one value that can travel to another machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from farm.core.change import Change
from farm.core.task import Task, Variables


@dataclass(frozen=True, slots=True)
class BundleFile:
    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class StepFiles:
    """``workdir``: what is put into the workspace before the step, and ``setup.sh`` of it run. ``tests`` and
    ``solution`` as a bundle's."""

    workdir: Mapping[str, BundleFile]
    tests: Mapping[str, BundleFile]
    solution: Mapping[str, BundleFile]


@dataclass(frozen=True, slots=True)
class TaskBundle:
    """A task with the files behind it; each mapping is keyed by a normalised relative POSIX path.

    ``environment``: the image's build context. ``tests``: what grading puts into the workspace, relative to it; never
    seen by an agent. ``gold``: the known solution, where there is one. ``solution``: Harbor's ``solution/`` directory,
    for a task whose gold is a script, and ``solution_env`` what that finds. ``test_patch``: a unified diff that makes
    the tests of what the image holds. ``verifier_environment``: the build context of a verifier's own image. ``steps``
    has the files of each of the task's; ``tests`` and ``solution`` are then the first one's.
    """

    task: Task
    environment: Mapping[str, BundleFile]
    tests: Mapping[str, BundleFile]
    gold: Change | None
    solution: Mapping[str, BundleFile]
    test_patch: bytes = b""
    solution_env: Variables = ()
    verifier_environment: Mapping[str, BundleFile] = field(default_factory=dict)
    steps: tuple[StepFiles, ...] = ()

    def for_step(self, step: int) -> "TaskBundle":
        """One of its steps as a task by itself."""
        told, files = self.task.steps[step], self.steps[step]
        task = replace(
            self.task,
            instruction=told.instruction,
            verifier=told.verifier,
            agent_timeout_s=told.agent_timeout_s,
            steps=(),
        )
        return replace(self, task=task, tests=files.tests, solution=files.solution, steps=())
