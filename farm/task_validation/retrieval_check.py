"""Whether what a retrieval task expects is there."""

from farm.core.retrieval import Retrieval
from farm.tasks import TaskBundle, sandbox_spec
from sandboxes.errors import PathError
from sandboxes.interface import Runtime


async def misplaced(bundle: TaskBundle, retrieval: Retrieval, runtime: Runtime) -> list[str]:
    """What is expected and is not in the repository, a line each."""
    problems: list[str] = []
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "validating"})) as sandbox:
        for file in retrieval.expected:
            try:
                content = await sandbox.read_file(f"{bundle.task.workspace}/{file.path}")
            except PathError as fault:
                problems.append(f"{file.path} is expected, and cannot be read: {fault}")
                continue
            there = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
            last = max((last for _, last in file.lines), default=0)
            if last > there:
                problems.append(f"line {last} of {file.path} is expected, which has {there}")
    return problems
