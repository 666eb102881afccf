"""All of a task in one value that can travel to another machine."""

from collections.abc import Mapping
from dataclasses import dataclass

from farm.core.change import Change
from farm.core.task import Task


@dataclass(frozen=True, slots=True)
class BundleFile:
    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class TaskBundle:
    """A task with the files behind it; each mapping is keyed by a normalised relative POSIX path.

    ``environment``: the image's build context. ``tests``: what grading puts into the workspace, relative to it; never
    seen by an agent. ``gold``: the known solution, where there is one. ``solution``: Harbor's ``solution/`` directory,
    for a task whose gold is a script.
    """

    task: Task
    environment: Mapping[str, BundleFile]
    tests: Mapping[str, BundleFile]
    gold: Change | None
    solution: Mapping[str, BundleFile]
