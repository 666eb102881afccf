"""``farm tasks make mutate``, ``delete-feature`` and ``recipe``: generate tasks from repositories with tests."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.table import Table

from farm.cli.local_runtime import OnProgress, with_sandboxes
from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, read_config, table_console
from farm.config import Config

if TYPE_CHECKING:
    from farm.task_generation.mutation.generator import GenerationContext, GenerationStats
    from farm.task_generation.mutation.recipe import RecipeResult
    from sandboxes import Runtime
    from sandboxes.images.store import ImageStore

T = TypeVar("T")
Repo = Annotated[str, typer.Argument(help="PACKAGE==VERSION of the index, a directory, or a source distribution.")]
Out = Annotated[Path, typer.Option(help="The directory of the new tasks; a stopped command continues there.")]
Limit = Annotated[int, typer.Option(min=1, help="Maximum tasks.")]
Seed = Annotated[int, typer.Option(help="The same seed makes the same tasks.")]
Require = Annotated[list[str] | None, typer.Option(help="Requirement of the tests beside pytest; repeatable.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Maximum sandboxes at one time; by default one per core.")]


def mutate(
    repo: Repo,
    out: Out,
    limit: Limit = 20,
    seed: Seed = 0,
    require: Require = None,
    jobs: Jobs = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Make tasks of faults that are put into a repository with tests."""
    request = _Request("mutate", repo, out, limit, seed, require or ())
    return _make(request, read_config(config, state_dir), jobs, as_json)


def delete_feature(
    repo: Repo,
    out: Out,
    limit: Limit = 5,
    seed: Seed = 0,
    require: Require = None,
    jobs: Jobs = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Make tasks of functions that are deleted from a repository, each of them executed by few tests."""
    request = _Request("delete-feature", repo, out, limit, seed, require or ())
    return _make(request, read_config(config, state_dir), jobs, as_json)


def recipe(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as images/recipes/python.toml.")],
    out: Out,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum tasks of each package and strategy.")] = None,
    jobs: Jobs = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Make the tasks of a recipe, and write its lock beside it."""
    from farm.task_generation.mutation.recipe import make_recipe

    async def work(context: "GenerationContext") -> "RecipeResult":
        return await make_recipe(recipe, out, context, limit=limit)

    result = _with_context(read_config(config, state_dir), jobs, work)
    if as_json:
        print_json(asdict(result))
    else:
        _print_stats(result.yields)
        for problem in result.problems:
            table_console.print(problem)
        for name in result.changed:
            table_console.print(f"{name}: differs from the lock")
    return 1 if result.problems or result.changed else 0


@dataclass(frozen=True, slots=True)
class _Request:
    strategy: str
    repo: str
    out: Path
    limit: int
    seed: int
    require: Sequence[str]


def _make(request: _Request, config: Config, jobs: int | None, as_json: bool) -> int:
    from farm.task_generation.mutation.generator import TaskGenerator
    from farm.task_generation.mutation.repository import open_repository
    from farm.task_generation.mutation.requirements import with_requirements

    async def work(context: "GenerationContext") -> "list[GenerationStats]":
        context.on_progress(f"{request.repo}: source")
        opened = await asyncio.to_thread(open_repository, request.repo, state_dir=config.state_dir)
        repository = await with_requirements(opened, request.require, context)
        generator = TaskGenerator(repository, request.out, request.seed, context)
        await generator.make({request.strategy: request.limit})
        return generator.stats

    stats = _with_context(config, jobs, work)
    if as_json:
        print_json([asdict(item) for item in stats])
    else:
        _print_stats(stats)
    return 0 if any(item.tasks for item in stats) else 1


def _with_context(config: Config, jobs: int | None, work: "Callable[[GenerationContext], Awaitable[T]]") -> T:
    from farm.task_generation.mutation.generator import GenerationContext

    async def run(images: "ImageStore", runtime: "Runtime", on_progress: OnProgress) -> T:
        turns = asyncio.Semaphore(jobs or os.cpu_count() or 1)
        return await work(GenerationContext(config.state_dir, images, runtime, turns, on_progress))

    return with_sandboxes(config, run, runtime=config.runtime)


def _print_stats(stats: "list[GenerationStats]") -> None:
    trials = ("usable", "unnoticed", "too plain", "import", "timeout", "crash")
    drafts = ("drafted", "flaky", "masked", "nothing to tell")
    table = Table("package", "strategy", "tried", *trials, *drafts, "unfit", "tasks", box=None, pad_edge=False)
    for item in stats:
        numbers = [item.trials.get(name, 0) for name in trials] + [item.drafts.get(name, 0) for name in drafts]
        cells = [sum(item.trials.values()), *numbers, len(item.unfit), len(item.tasks)]
        table.add_row(item.package, item.strategy, *map(str, cells))
    if len(stats) > 1:
        table.add_row("all", "", *_sums(stats, trials, drafts))
    table_console.print(table)


def _sums(stats: "list[GenerationStats]", trials: tuple[str, ...], drafts: tuple[str, ...]) -> list[str]:
    numbers = [sum(sum(item.trials.values()) for item in stats)]
    numbers += [sum(item.trials.get(name, 0) for item in stats) for name in trials]
    numbers += [sum(item.drafts.get(name, 0) for item in stats) for name in drafts]
    return [
        *map(str, numbers),
        str(sum(len(item.unfit) for item in stats)),
        str(sum(len(item.tasks) for item in stats)),
    ]
