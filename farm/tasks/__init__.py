"""Task directories: parsed, prepared, bundled; and the images they ask for.

farm/docs/architecture/tasks.md explains it.
"""

from farm.tasks.bundle import BundleFile, TaskBundle
from farm.tasks.bundle_encoding import BadBundle, pack, unpack
from farm.tasks.errors import TaskError, TaskFault, all_faults
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
from farm.tasks.taskset_names import is_taskset_name, named_taskset
from farm.tasks.tasksets import each_task, gathered, load_taskset, read_taskset, task_directories

__all__ = [
    "BASE_IMAGE",
    "TASK_PREFIX",
    "BadBundle",
    "BundleFile",
    "LoadedTask",
    "TaskBundle",
    "TaskError",
    "TaskFault",
    "all_faults",
    "await_health",
    "each_task",
    "ensure_image",
    "gathered",
    "images_of",
    "is_taskset_name",
    "load_task",
    "load_taskset",
    "named_taskset",
    "pack",
    "policy_spec",
    "read_task",
    "read_taskset",
    "sandbox_spec",
    "task_directories",
    "task_ref",
    "unpack",
]
