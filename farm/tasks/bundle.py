"""``TaskBundle``: a task with all its files in one value that can be sent to another machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from farm.core.change import Change
from farm.core.task import Task, Variables


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A file of a task."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class StepFiles:
    """The files of one step.

    ``workdir``: put into the workspace before the step; its ``setup.sh`` then runs. ``tests`` and ``solution`` are as
    in a bundle.
    """

    workdir: Mapping[str, BundleFile]
    tests: Mapping[str, BundleFile]
    solution: Mapping[str, BundleFile]


@dataclass(frozen=True, slots=True)
class TaskBundle:
    """A task with its files; each mapping is keyed by a normalised relative POSIX path.

    ``environment``: the build context of the image. ``tests``: what grading puts into the workspace, relative to it;
    hidden from the agent. ``gold``: the known solution as a change, if there is one. ``solution``: Harbor's
    ``solution/`` directory, for a task whose solution is a script, and ``solution_env`` the script's environment.
    ``test_patch``: a unified diff that turns the image's tests into the verifier's. ``verifier_environment``: the build
    context of a separate verifier's image. ``steps``: the files of each step; ``tests`` and ``solution`` are then those
    of the first.
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
        """Return one of its steps as a task of its own."""
        step_task, files = self.task.steps[step], self.steps[step]
        task = replace(
            self.task,
            instruction=step_task.instruction,
            verifier=step_task.verifier,
            agent_timeout_s=step_task.agent_timeout_s,
            steps=(),
        )
        return replace(self, task=task, tests=files.tests, solution=files.solution, steps=())
