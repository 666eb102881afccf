"""Tasks: read task directories, load them into bundles, and ensure the images that they need.

This room decides what a task directory may say. Enter at ``loader`` and ``tasksets``. The page is
farm/docs/architecture/tasks.md.
"""

from farm.tasks.bundle import BundleFile, TaskBundle
from farm.tasks.bundle_encoding import BadBundle, pack, unpack
from farm.tasks.errors import TaskError, TaskFault, combined_error
from farm.tasks.healthcheck import await_health
from farm.tasks.images import (
    BASE_IMAGE,
    TASK_PREFIX,
    ensure_image,
    images_of,
    policy_spec,
    sandbox_spec,
    task_ref,
)
from farm.tasks.loader import LoadedTask, load_task, read_task
from farm.tasks.taskset_names import is_taskset_name, named_taskset, resolve_taskset
from farm.tasks.tasksets import (
    each_task,
    load_taskset,
    load_usable_tasks,
    read_taskset,
    read_usable_tasks,
    task_directories,
)

__all__ = [
    "BASE_IMAGE",
    "TASK_PREFIX",
    "BadBundle",
    "BundleFile",
    "LoadedTask",
    "TaskBundle",
    "TaskError",
    "TaskFault",
    "await_health",
    "combined_error",
    "each_task",
    "ensure_image",
    "images_of",
    "is_taskset_name",
    "load_task",
    "load_taskset",
    "load_usable_tasks",
    "named_taskset",
    "pack",
    "policy_spec",
    "read_task",
    "read_taskset",
    "read_usable_tasks",
    "resolve_taskset",
    "sandbox_spec",
    "task_directories",
    "task_ref",
    "unpack",
]
