"""The image of a task: there already, built from its environment, or pulled."""

from collections.abc import Mapping

from farm.core.orders import TaskRef
from farm.core.task import Task
from farm.tasks.bundle import TaskBundle
from sandboxes.errors import ImageError
from sandboxes.images import ImageInfo, ImageStore, OnLine
from sandboxes.spec import Limits, SandboxSpec

BASE_IMAGE = "farm-base:1"
TASK_PREFIX = "farm-task-"


def sandbox_spec(task: Task, *, labels: Mapping[str, str], egress: tuple[str, ...] = ()) -> SandboxSpec:
    """A sandbox of the task's image with its limits."""
    return SandboxSpec(
        image=task.image,
        workdir=task.workspace,
        limits=Limits(memory_mib=task.memory_mib, cpus=task.cpus, disk_mib=task.storage_mib),
        labels=labels,
        egress=egress,
    )


async def ensure_image(bundle: TaskBundle, images: ImageStore, *, on_line: OnLine | None = None) -> ImageInfo:
    """The task's image on this machine; built or pulled only where it is missing.

    Raises ImageError, which is the task's fault, and RuntimeUnavailable.
    """
    task = bundle.task
    found = await images.inspect(task.image)
    if found is not None:
        return found
    if not bundle.environment:
        return await images.pull(task.image, None if on_line is None else lambda progress: on_line(str(progress)))
    if _on_our_base(bundle) and await images.inspect(BASE_IMAGE) is None:
        raise ImageError(f"{task.image} builds on {BASE_IMAGE}, which is not here; run images/base/build.sh")
    return await images.build(
        task.image,
        {path: file.content for path, file in bundle.environment.items()},
        timeout_s=task.build_timeout_s,
        executables=[path for path, file in bundle.environment.items() if file.executable],
        on_line=on_line,
    )


def task_ref(bundle: TaskBundle) -> TaskRef:
    task = bundle.task
    return TaskRef(id=task.id, digest=task.digest, image=task.image, memory_mib=task.memory_mib, cpus=task.cpus)


def _on_our_base(bundle: TaskBundle) -> bool:
    return bundle.environment["Dockerfile"].content.lstrip().startswith(f"FROM {BASE_IMAGE}".encode())
