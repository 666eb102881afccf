"""Resolve what a repository and its tests need, by pip in the build of an image.

Pip asks the build backend of the repository and of what it needs, which are a stranger's programs.
"""

import asyncio
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace

from farm.core.nesting_limit import read_json
from farm.task_generation.mutation.directory import REPORT, TREE, resolving_environment
from farm.task_generation.mutation.generator import GenerationContext
from farm.task_generation.mutation.repository import PIN, Repository
from farm.tasks import TASK_PREFIX, TaskError
from sandboxes.errors import ImageError, PathError
from sandboxes.spec import SandboxSpec

RESOLVE_TIMEOUT_S = 300
MAX_REPORT_BYTES = 64 * 1024 * 1024
MAX_REQUIREMENTS = 2_000


async def with_requirements(repository: Repository, require: Sequence[str], bench: GenerationContext) -> Repository:
    """Return the repository with pins of what it and its tests need, unless it has pins already.

    ``require``: what its tests need beside pytest and what it asks for itself. Raises TaskError and the errors of
    ``sandboxes``.
    """
    if repository.requirements:
        return repository
    now = secrets.token_hex(6)
    environment = resolving_environment(repository, ("pytest", *require), now)
    image = f"{TASK_PREFIX}resolving:{now}"
    bench.on_progress(f"{repository.name}: requirements")
    try:
        await bench.turn(lambda: bench.images.build(image, environment, timeout_s=RESOLVE_TIMEOUT_S))
        spec = SandboxSpec(image, labels={"purpose": "making"})
        async with bench.runtime.scope(spec) as sandbox:
            report = await sandbox.read_file(REPORT, limit=MAX_REPORT_BYTES)
    except (ImageError, PathError) as error:
        what = f"its requirements cannot be resolved ({error})"
        raise TaskError(repository.name, what, "correct the name or --require") from None
    finally:
        await bench.runtime.release_images()
        await bench.images.remove(image)
    return replace(repository, requirements=await asyncio.to_thread(read_report, repository, report))


def read_report(repository: Repository, report: bytes) -> tuple[str, ...]:
    """Return the pins of pip's report without the repository itself. A stranger's build may have forged the report.

    Raises TaskError.
    """
    try:
        items = read_json(report)["install"]
        # A directory's name may be another than that of the package in it.
        others = [item["metadata"] for item in items if not item["download_info"]["url"].startswith(f"file://{TREE}/")]
        pins = {f"{item['name']}=={item['version']}": _normal(str(item["name"])) for item in others}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise _unread(repository, "not a report") from None
    strange = next((pin for pin in pins if not PIN.fullmatch(pin)), None)
    if strange is not None:
        raise _unread(repository, f"{strange[:100]!a} is no pin")
    if not 0 < len(pins) <= MAX_REQUIREMENTS:
        raise _unread(repository, f"{len(pins)} requirements, not 1 to {MAX_REQUIREMENTS}")
    return tuple(sorted(pin for pin, name in pins.items() if name != _normal(repository.package)))


def _unread(repository: Repository, why: str) -> TaskError:
    what = f"its requirements cannot be resolved (pip's report: {why})"
    return TaskError(repository.name, what, "look at its build backend, which may write there")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
