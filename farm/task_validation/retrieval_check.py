"""Check that the expected lines of a retrieval task exist."""

from farm.core.retrieval import Retrieval
from farm.tasks import TaskBundle, sandbox_spec
from sandboxes.errors import PathError
from sandboxes.interface import Runtime


async def missing_lines(bundle: TaskBundle, retrieval: Retrieval, runtime: Runtime) -> list[str]:
    """Return one line for each expected file or line that the repository lacks."""
    problems: list[str] = []
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "validating"})) as sandbox:
        for file in retrieval.expected:
            try:
                content = await sandbox.read_file(f"{bundle.task.workspace}/{file.path}")
            except PathError as error:
                problems.append(f"{file.path} is expected, and cannot be read: {error}")
                continue
            line_count = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
            last = max((last for _, last in file.lines), default=0)
            if last > line_count:
                problems.append(f"line {last} of {file.path} is expected, which has {line_count} lines")
    return problems
