"""Resolve the requirements of a repository and its tests, by pip in the build of an image.

Pip runs the build backends of the repository and of its requirements, which are programs of strangers.
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


async def with_requirements(repository: Repository, require: Sequence[str], context: GenerationContext) -> Repository:
    """Return the repository with pins of all requirements, its own and those of its tests.

    ``require``: requirements of the tests beside pytest. A repository with pins is returned as it is. Raises TaskError
    and the errors of ``sandboxes``.
    """
    if repository.requirements:
        return repository
    nonce = secrets.token_hex(6)
    environment = resolving_environment(repository, ("pytest", *require), nonce)
    image = f"{TASK_PREFIX}resolving:{nonce}"
    context.on_progress(f"{repository.name}: requirements")
    try:
        await context.turn(lambda: context.images.build(image, environment, timeout_s=RESOLVE_TIMEOUT_S))
        spec = SandboxSpec(image, labels={"purpose": "making"})
        async with context.runtime.scope(spec) as sandbox:
            report = await sandbox.read_file(REPORT, limit=MAX_REPORT_BYTES)
    except (ImageError, PathError) as error:
        fault = f"its requirements cannot be resolved ({error})"
        raise TaskError(repository.name, fault, "correct the name or --require") from None
    finally:
        await context.runtime.release_images()
        await context.images.remove(image)
    return replace(repository, requirements=await asyncio.to_thread(parse_report, repository, report))


def parse_report(repository: Repository, report: bytes) -> tuple[str, ...]:
    """Return the pins of pip's report without the repository itself. Raises TaskError.

    The report is untrusted, because a stranger's build may have written it.
    """
    try:
        items = read_json(report)["install"]
        # The name of a directory may differ from that of its package.
        others = [item["metadata"] for item in items if not item["download_info"]["url"].startswith(f"file://{TREE}/")]
        pins = {f"{item['name']}=={item['version']}": _normal(str(item["name"])) for item in others}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise _resolve_error(repository, "not a report") from None
    invalid = next((pin for pin in pins if not PIN.fullmatch(pin)), None)
    if invalid is not None:
        raise _resolve_error(repository, f"{invalid[:100]!a} is not a pin")
    if not 0 < len(pins) <= MAX_REQUIREMENTS:
        raise _resolve_error(repository, f"{len(pins)} requirements, not 1 to {MAX_REQUIREMENTS}")
    return tuple(sorted(pin for pin, name in pins.items() if name != _normal(repository.package)))


def _resolve_error(repository: Repository, reason: str) -> TaskError:
    fault = f"its requirements cannot be resolved (pip's report: {reason})"
    return TaskError(repository.name, fault, "check its build backend, which may have written the report")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
