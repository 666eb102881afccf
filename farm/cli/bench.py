"""``farm bench``: measures against a named baseline in the same run. One command a bench."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress
from rich.table import Table

import farm
from farm.cli.errors import CliError
from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, progress_console, read_config, table_console
from farm.config import Config, read_build_settings

if TYPE_CHECKING:
    from farm.bench import BenchResult, Figure

TASKS = Path(farm.__file__).parents[1] / "images" / "tasks"
DEFAULT_TASK = "sqlparse"

app = typer.Typer(help="Measure against a named baseline in the same run.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Measure against a named baseline in the same run."""


@app.command()
def episodes(
    task: Annotated[
        Path | None, typer.Option(help="A task directory; the farm's own sqlparse task by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each side is measured, in turn.")] = 10,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once, on either side.")] = 1,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Oracle episodes a minute, and all of an episode but its test command, beside a bare loop over the Docker SDK."""
    from docker.errors import DockerException

    from farm.bench import BenchError
    from farm.tasks import TaskError
    from sandboxes import SandboxError

    settings = read_config(config, state_dir)
    try:
        result = asyncio.run(_episodes(settings, task or _default_task(), rounds, concurrency))
    except (BenchError, TaskError, SandboxError) as error:
        raise CliError(str(error)) from None
    except DockerException as error:
        raise CliError(f"the Docker loop failed: {error}") from None
    _show(result, as_json)


async def _episodes(settings: Config, task: Path, rounds: int, concurrency: int) -> "BenchResult":
    from farm.bench import BenchResult, Machine, measure_episodes
    from farm.tasks import ensure_image, load_task
    from sandboxes import open_runtime
    from sandboxes.images import ImageStore

    def say(line: str) -> None:
        progress_console.print(line, markup=False)

    bundle = await asyncio.to_thread(load_task, task, state_dir=settings.state_dir, on_progress=say)
    await ensure_image(bundle, ImageStore(settings.docker_host, read_build_settings()), on_line=say)
    runtime = await open_runtime(settings.runtime, state_dir=settings.state_dir, docker_host=settings.docker_host)
    try:
        with Progress(console=progress_console) as progress:
            bar = progress.add_task(f"episodes of {bundle.task.id}", total=rounds + 1)
            figures = await measure_episodes(
                bundle,
                runtime,
                docker_host=settings.docker_host,
                rounds=rounds,
                concurrency=concurrency,
                on_round=lambda number: progress.update(bar, completed=number + 1),
            )
    finally:
        await runtime.close()
    return BenchResult("episodes", Machine.here(runtime.name), figures)


def _default_task() -> Path:
    found = sorted(path for path in TASKS.glob(f"{DEFAULT_TASK}*") if path.is_dir())
    if not found:
        raise CliError(f"{TASKS} holds no {DEFAULT_TASK} task; name a task directory with --task")
    return found[0]


def _show(result: "BenchResult", as_json: bool) -> None:
    if as_json:
        print_json(result.document())
        return
    table = Table("figure", "value", "baseline", "ratio", box=None, pad_edge=False)
    for figure in result.figures:
        table.add_row(*_cells(figure))
    table_console.print(table)


def _cells(figure: "Figure") -> tuple[str, str, str, str]:
    baseline = "" if figure.baseline is None else f"{figure.baseline:.1f} ({figure.baseline_name})"
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    return figure.name, f"{figure.value:.1f} {figure.unit}", baseline, ratio
