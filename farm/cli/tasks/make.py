"""``farm tasks make mutate``, ``delete-feature`` and ``recipe``: tasks by the thousand."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.table import Table

from farm.cli.local_runtime import with_sandboxes
from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, read_config, table_console
from farm.config import Config

if TYPE_CHECKING:
    from farm.task_generation.mutation.generator import GenerationContext, GenerationStats
    from farm.task_generation.mutation.recipe import RecipeResult
    from sandboxes import Runtime
    from sandboxes.images.store import ImageStore

T = TypeVar("T")
Repo = Annotated[str, typer.Argument(help="PACKAGE==VERSION of the index, a directory, or a source distribution.")]
Out = Annotated[Path, typer.Option(help="Where the made tasks go; one that was stopped goes on there.")]
Limit = Annotated[int, typer.Option(min=1, help="Tasks at most.")]
Seed = Annotated[int, typer.Option(help="The same seed makes the same tasks.")]
Require = Annotated[list[str] | None, typer.Option(help="What the tests need beside pytest; repeatable.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Sandboxes at once; by default one a core.")]


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
    return _make("mutate", repo, out, limit, seed, require, jobs, read_config(config, state_dir), as_json)


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
    """Make tasks of functions that are taken out of a repository, where few tests and none else ask for them."""
    return _make("delete-feature", repo, out, limit, seed, require, jobs, read_config(config, state_dir), as_json)


def recipe(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as images/recipes/python.toml.")],
    out: Out,
    limit: Annotated[int | None, typer.Option(min=1, help="Tasks at most of each package and strategy.")] = None,
    jobs: Jobs = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Make the tasks of a whole recipe, and write its lock beside it."""
    from farm.task_generation.mutation.recipe import follow

    async def work(bench: "GenerationContext") -> "RecipeResult":
        return await follow(recipe, out, bench, limit=limit)

    outcome = _with_bench(read_config(config, state_dir), jobs, work)
    if as_json:
        print_json(asdict(outcome))
    else:
        _print_yields(outcome.yields)
        for problem in outcome.problems:
            table_console.print(problem)
        for name in outcome.changed:
            table_console.print(f"{name}: is not what the lock says")
    return 1 if outcome.problems or outcome.changed else 0


def _make(
    strategy: str,
    repo: str,
    out: Path,
    limit: int,
    seed: int,
    require: list[str] | None,
    jobs: int | None,
    config: Config,
    as_json: bool,
) -> int:
    from farm.task_generation.mutation.generator import TaskGenerator
    from farm.task_generation.mutation.repository import open_repository
    from farm.task_generation.mutation.requirements import with_requirements

    async def work(bench: "GenerationContext") -> "list[GenerationStats]":
        bench.on_progress(f"{repo}: source")
        opened = await asyncio.to_thread(open_repository, repo, state_dir=config.state_dir)
        repository = await with_requirements(opened, require or (), bench)
        maker = TaskGenerator(repository, out, seed, bench)
        await maker.make({strategy: limit})
        return maker.yields

    yields = _with_bench(config, jobs, work)
    if as_json:
        print_json([asdict(one) for one in yields])
    else:
        _print_yields(yields)
    return 0 if any(one.tasks for one in yields) else 1


def _with_bench(config: Config, jobs: int | None, work: "Callable[[GenerationContext], Awaitable[T]]") -> T:
    from farm.task_generation.mutation.generator import GenerationContext

    async def run(images: "ImageStore", runtime: "Runtime", say: Callable[[str], None]) -> T:
        turns = asyncio.Semaphore(jobs or os.cpu_count() or 1)
        return await work(GenerationContext(config.state_dir, images, runtime, turns, say))

    return with_sandboxes(config, run, runtime=config.runtime)


def _print_yields(yields: "list[GenerationStats]") -> None:
    trials = ("usable", "unnoticed", "too plain", "import", "timeout", "crash")
    drafts = ("drafted", "flaky", "masked", "nothing to tell")
    table = Table("package", "strategy", "tried", *trials, *drafts, "unfit", "tasks", box=None, pad_edge=False)
    for one in yields:
        numbers = [one.trials.get(name, 0) for name in trials] + [one.drafts.get(name, 0) for name in drafts]
        cells = [sum(one.trials.values()), *numbers, len(one.unfit), len(one.tasks)]
        table.add_row(one.package, one.strategy, *map(str, cells))
    if len(yields) > 1:
        table.add_row("all", "", *_sums(yields, trials, drafts))
    table_console.print(table)


def _sums(yields: "list[GenerationStats]", trials: tuple[str, ...], drafts: tuple[str, ...]) -> list[str]:
    numbers = [sum(sum(one.trials.values()) for one in yields)]
    numbers += [sum(one.trials.get(name, 0) for one in yields) for name in trials]
    numbers += [sum(one.drafts.get(name, 0) for one in yields) for name in drafts]
    return [*map(str, numbers), str(sum(len(one.unfit) for one in yields)), str(sum(len(one.tasks) for one in yields))]
