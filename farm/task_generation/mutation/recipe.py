"""A recipe: of which packages how many tasks are made; and its lock, which says what came of it.

    seed = 1

    [[package]]
    name = "sqlparse"
    version = "0.4.4"
    require = []            # what its tests need beside pytest
    mutate = 20             # so many tasks at most
    delete-feature = 4

The lock, beside the recipe with the suffix ``.lock``, is JSON: of each package the digest of its source distribution
and the pins of what its tests need, and of each task its name and digest. Made again under a lock, tasks are the same.
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
"""While one is read or resolved, others keep the sandboxes busy."""

_Count = Annotated[int, Field(ge=0, le=100_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Package(_Strict):
    name: str
    version: str
    require: tuple[str, ...] = ()
    mutate: _Count = 20
    delete_feature: Annotated[_Count, Field(alias="delete-feature")] = 4

    @property
    def pin(self) -> str:
        return f"{self.name}=={self.version}"


class Recipe(_Strict):
    seed: int = 0
    package: tuple[Package, ...]


class LockedPackage(_Strict):
    version: str
    sha256: str
    requirements: tuple[str, ...]


class Lock(_Strict):
    package: dict[str, LockedPackage] = {}
    tasks: dict[str, str] = {}


@dataclass(slots=True)
class RecipeResult:
    """``problems``: why nothing came of a package; ``changed``: tasks that the lock knows by another digest."""

    yields: list[GenerationStats] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @property
    def tasks(self) -> Mapping[str, str]:
        return {name: digest for one in self.yields for name, digest in one.tasks.items()}


def read_recipe(path: Path) -> Recipe:
    """Raises TaskError."""
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
    return recipe.with_suffix(".lock")


def read_lock(path: Path) -> Lock:
    """An empty one where there is none. Raises TaskError."""
    if not path.exists():
        return Lock()
    try:
        return Lock.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise TaskError(path, f"not a lock ({str(error).splitlines()[0]})", "remove it to make another") from None


async def follow(recipe_path: Path, out: Path, bench: GenerationContext, *, limit: int | None = None) -> RecipeResult:
    """Make what is not there yet, and write the lock. ``limit``: at most so many tasks of each package and strategy.

    Raises TaskError for the recipe, RuntimeUnavailable and other errors of ``sandboxes`` for what is wrong with the
    machine.
    """
    recipe, lock = read_recipe(recipe_path), read_lock(lock_path(recipe_path))
    outcome = RecipeResult()
    at_once = asyncio.Semaphore(PACKAGES_AT_ONCE)
    locked = dict(lock.package)

    def save() -> None:
        _write(lock_path(recipe_path), Lock(package=locked, tasks={**lock.tasks, **outcome.tasks}))

    async def make(package: Package) -> None:
        known = lock.package.get(package.name)
        if known is not None and known.version != package.version:
            known = None
        async with at_once:
            try:
                bench.on_progress(f"{package.pin}: source")
                repository = await asyncio.to_thread(
                    open_repository,
                    package.pin,
                    state_dir=bench.state_dir,
                    sha256=known.sha256 if known else None,
                    pins=known.requirements if known else (),
                )
                repository = await with_requirements(repository, package.require, bench)
                wanted = {"mutate": package.mutate, "delete-feature": package.delete_feature}
                if limit is not None:
                    wanted = {strategy: min(count, limit) for strategy, count in wanted.items()}
                locked[package.name] = LockedPackage(
                    version=package.version, sha256=repository.sha256, requirements=repository.requirements
                )
                save()  # whoever goes on later is to find the same requirements
                maker = TaskGenerator(repository, out, recipe.seed, bench)
                try:
                    await maker.make(wanted)
                finally:
                    outcome.yields += maker.yields
                    save()
            except (TaskError, ImageError, SpecError, GradingError) as error:
                bench.on_progress(str(error))
                outcome.problems.append(str(error))

    await asyncio.gather(*map(make, recipe.package))
    outcome.yields.sort(key=lambda one: (one.package, one.strategy))
    outcome.changed = changed_tasks(lock.tasks, outcome.tasks)
    return outcome


def changed_tasks(locked: Mapping[str, str], made: Mapping[str, str]) -> list[str]:
    """Names by which the lock knows another task."""
    return sorted(name for name, digest in made.items() if locked.get(name, digest) != digest)


def _write(path: Path, lock: Lock) -> None:
    document = lock.model_dump()
    text = json.dumps(document, indent=1, sort_keys=True)
    # A list of pins is one line.
    text = re.sub(r"\[\s+([^\[\]]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    path.write_text(text + "\n")
