"""Recipes: how many tasks to make of which packages; and their locks, which record the result.

    seed = 1

    [[package]]
    name = "sqlparse"
    version = "0.4.4"
    require = []            # requirements of its tests beside pytest
    mutate = 20             # maximum number of tasks
    delete-feature = 4

The lock is a JSON file beside the recipe with the suffix ``.lock``. It has the digest and the pinned test requirements
of each package, and the name and digest of each task. Under the same lock a recipe gives the same tasks.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from farm.core.toml import read_toml
from farm.grading import GradingError
from farm.task_generation.mutation.generator import GenerationContext, GenerationStats, TaskGenerator
from farm.task_generation.mutation.repository import open_repository
from farm.task_generation.mutation.requirements import with_requirements
from farm.tasks import TaskError
from sandboxes.errors import ImageError, SpecError

PACKAGES_AT_ONCE = 6
"""Packages in work at one time, so that sandboxes stay busy while the sources of a package are read or resolved."""

_Count = Annotated[int, Field(ge=0, le=100_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Package(_Strict):
    """``[[package]]``: a release with its test requirements, and the maximum number of tasks of each strategy."""

    name: str
    version: str
    require: tuple[str, ...] = ()
    mutate: _Count = 20
    delete_feature: Annotated[_Count, Field(alias="delete-feature")] = 4

    @property
    def pin(self) -> str:
        return f"{self.name}=={self.version}"


class Recipe(_Strict):
    """A recipe file."""

    seed: int = 0
    package: tuple[Package, ...]


class LockedPackage(_Strict):
    """The digest of a package's source distribution, and the pins of its test requirements."""

    version: str
    sha256: str
    requirements: tuple[str, ...]


class Lock(_Strict):
    """A lock file: packages by name, and digests of tasks by name."""

    package: dict[str, LockedPackage] = {}
    tasks: dict[str, str] = {}


@dataclass(slots=True)
class RecipeResult:
    """The outcome of a recipe.

    ``problems``: one line for each package that failed. ``changed``: tasks that have another digest in the lock.
    """

    yields: list[GenerationStats] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @property
    def tasks(self) -> Mapping[str, str]:
        return {name: digest for one in self.yields for name, digest in one.tasks.items()}


def read_recipe(path: Path) -> Recipe:
    """Read a recipe. Raises TaskError."""
    try:
        return Recipe.model_validate(read_toml(path.read_bytes()))
    except OSError as error:
        raise TaskError(path, error.strerror or str(error), "name a recipe") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise TaskError(path, str(first["msg"]).lower(), "correct the recipe", key=key) from None
    except ValueError as error:
        raise TaskError(path, f"not TOML: {error}", "correct the syntax there") from None


def lock_path(recipe: Path) -> Path:
    """Return the path of a recipe's lock."""
    return recipe.with_suffix(".lock")


def read_lock(path: Path) -> Lock:
    """Read a lock; without a file it is empty. Raises TaskError."""
    if not path.exists():
        return Lock()
    try:
        return Lock.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise TaskError(path, f"not a lock ({str(error).splitlines()[0]})", "remove it to make another") from None


async def make_recipe(
    recipe_path: Path, out: Path, context: GenerationContext, *, limit: int | None = None
) -> RecipeResult:
    """Make the tasks of a recipe that do not exist yet, and write the lock.

    ``limit``: maximum number of tasks of each package and strategy. Raises TaskError for a fault of the recipe, and
    RuntimeUnavailable and other errors of ``sandboxes`` for faults of the machine.
    """
    recipe, lock = read_recipe(recipe_path), read_lock(lock_path(recipe_path))
    result = RecipeResult()
    at_once = asyncio.Semaphore(PACKAGES_AT_ONCE)
    locked = dict(lock.package)

    def save() -> None:
        _write(lock_path(recipe_path), Lock(package=locked, tasks={**lock.tasks, **result.tasks}))

    async def make(package: Package) -> None:
        locked_package = lock.package.get(package.name)
        if locked_package is not None and locked_package.version != package.version:
            locked_package = None
        async with at_once:
            try:
                context.on_progress(f"{package.pin}: source")
                repository = await asyncio.to_thread(
                    open_repository,
                    package.pin,
                    state_dir=context.state_dir,
                    sha256=locked_package.sha256 if locked_package else None,
                    pins=locked_package.requirements if locked_package else (),
                )
                repository = await with_requirements(repository, package.require, context)
                counts = {"mutate": package.mutate, "delete-feature": package.delete_feature}
                if limit is not None:
                    counts = {strategy: min(count, limit) for strategy, count in counts.items()}
                locked[package.name] = LockedPackage(
                    version=package.version, sha256=repository.sha256, requirements=repository.requirements
                )
                save()  # a stopped recipe continues with the same requirements
                generator = TaskGenerator(repository, out, recipe.seed, context)
                try:
                    await generator.make(counts)
                finally:
                    result.yields += generator.stats
                    save()
            except (TaskError, ImageError, SpecError, GradingError) as error:
                context.on_progress(str(error))
                result.problems.append(str(error))

    await asyncio.gather(*map(make, recipe.package))
    result.yields.sort(key=lambda one: (one.package, one.strategy))
    result.changed = changed_tasks(lock.tasks, result.tasks)
    return result


def changed_tasks(locked: Mapping[str, str], tasks: Mapping[str, str]) -> list[str]:
    """Return the names of tasks that have another digest in the lock."""
    return sorted(name for name, digest in tasks.items() if locked.get(name, digest) != digest)


def _write(path: Path, lock: Lock) -> None:
    document = lock.model_dump()
    text = json.dumps(document, indent=1, sort_keys=True)
    # Each list of pins is one line.
    text = re.sub(r"\[\s+([^\[\]]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    path.write_text(text + "\n")
