"""``farm tasks``: look at task sets, prove them fit, make new tasks."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from farm.cli.errors import CliError
from farm.cli.local_runtime import OnProgress, TaskSet, complain, look_at_each, with_sandboxes
from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, read_config, table_console
from farm.cli.tasks import make as making
from farm.cli.tasks import validate
from farm.cli.tasks.import_ import import_tasks

if TYPE_CHECKING:
    from farm.core.task import Task
    from farm.task_generation.release_pair import ReleasePairTask
    from farm.task_generation.retrieval import RetrievalSummary
    from farm.tasks import LoadedTask
    from sandboxes import Runtime
    from sandboxes.images.store import ImageStore

app = typer.Typer(no_args_is_help=True, help="Task sets: look at them, prove them fit, make new tasks.")
make = typer.Typer(no_args_is_help=True, help="Make tasks out of real packages.")
app.add_typer(make, name="make")
app.command("import")(import_tasks)
app.command("validate")(validate.validate_tasks)
make.command("mutate")(making.mutate)
make.command("delete-feature")(making.delete_feature)
make.command("recipe")(making.recipe)


@app.command("list")
def list_tasks(taskset: TaskSet, config: ConfigFile = None, state_dir: StateDir = None, as_json: AsJson = False) -> int:
    """List the tasks of a set; exit code 1 if some cannot be read. Nothing is fetched, built or run."""
    tasks, faults = look_at_each(taskset, read_config(config, state_dir))
    if as_json:
        print_json([_summary(read) for read in tasks])
        return complain(faults, len(tasks))
    table = Table("task", "digest", "grading", "report", "to mend", "to keep", "image", box=None, pad_edge=False)
    for read in tasks:
        task, verifier = read.task, read.task.verifier
        counts = (str(len(verifier.fail_to_pass)), str(len(verifier.pass_to_pass)))
        table.add_row(task.id, task.digest[:12], _judged(task), verifier.report, *counts, task.image)
    table_console.print(table)
    return complain(faults, len(tasks))


@app.command()
def show(taskset: TaskSet, config: ConfigFile = None, state_dir: StateDir = None, as_json: AsJson = False) -> int:
    """Show all about the tasks of a set but the tests and the gold solution. Nothing is fetched, built or run."""
    tasks, faults = look_at_each(taskset, read_config(config, state_dir))
    if as_json:
        print_json([{**_shown(read.task), **_summary(read)} for read in tasks])
        return complain(faults, len(tasks))
    for read in tasks:
        task = read.task
        table_console.rule(task.id, align="left")
        for name, value in _summary(read).items():
            table_console.print(f"{name:16} {value}")
        table_console.print(f"\n{task.instruction}")
    return complain(faults, len(tasks))


@app.command("new")
def new(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="The directory to make; its last part names the task.")],
    as_json: AsJson = False,
) -> None:
    """Make a task directory that is whole, small and fit, to be filled with your own."""
    from farm.task_generation.scaffold import scaffold_task

    scaffold_task(name)
    if as_json:
        print_json({"directory": str(name)})
        return
    table_console.print(
        f"{name}: put your repository, instruction, tests and solution in place of the example's, then:"
    )
    table_console.print(f"  farm tasks validate {name}")


@make.command("release-pair")
def release_pair(
    package: Annotated[str, typer.Argument(help="A Python package whose source distributions carry tests.")],
    old: Annotated[str, typer.Argument(help="The release that becomes the repository.")],
    new: Annotated[str, typer.Argument(help="The release that brings the tests and the gold solution.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; PACKAGE-NEW here by default.")] = None,
    instruction: Annotated[Path | None, typer.Option(help="What is wanted; a draft is written by default.")] = None,
    require: Annotated[list[str] | None, typer.Option(help="What the tests need beside pytest; repeatable.")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Pattern of test ids that are not to be expected; repeatable.")
    ] = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a task of two consecutive releases: the older is the repository, the newer brings tests and solution."""
    from farm.task_generation.release_pair import ReleasePairSpec, make_release_pair

    settings = read_config(config, state_dir)
    wish = ReleasePairSpec(
        package=package,
        old=old,
        new=new,
        out=out or Path(f"{package}-{new}"),
        requirements=tuple(require or ()),
        exclude=tuple(exclude or ()),
        instruction=_read_text(instruction) if instruction else None,
    )

    async def work(images: "ImageStore", runtime: "Runtime", say: OnProgress) -> "ReleasePairTask":
        return await make_release_pair(wish, state_dir=settings.state_dir, images=images, runtime=runtime, say=say)

    made = with_sandboxes(settings, work)
    if as_json:
        print_json(asdict(made))
        return
    table_console.print(f"{made.directory}: {len(made.fail_to_pass)} tests to mend, {len(made.pass_to_pass)} to keep")
    for test in made.flaky:
        table_console.print(f"  left out, flaky: {test}")
    if wish.instruction is None:
        table_console.print(f"{made.directory}/instruction.md is a draft: say there what each hidden test asks for.")


@make.command("retrieval")
def retrieval(
    tasks: Annotated[list[Path], typer.Argument(metavar="TASK_DIR...", help="Tasks with a gold solution, or sets.")],
    out: Annotated[Path, typer.Option(help="Where the made tasks go; those that are there already stay.")],
    calls_per_turn: Annotated[int, typer.Option(min=1, max=64, help="Tool calls of one message that are run.")] = 8,
    max_turns: Annotated[int, typer.Option(min=1, max=100, help="Messages, that with the answer included.")] = 4,
    beta: Annotated[float, typer.Option(min=0.01, max=100, help="Weight of recall over precision.")] = 0.5,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Make of each task one whose code is to be found, not changed: the answer is what its gold solution changes."""
    from farm.task_generation.retrieval import RetrievalSpec, make_retrieval
    from farm.tasks import task_directories

    settings = read_config(config, state_dir)
    sources = [directory for path in tasks for directory in task_directories(path)]
    wish = RetrievalSpec(sources, out, calls_per_turn, max_turns, beta)

    async def work(images: "ImageStore", runtime: "Runtime", say: OnProgress) -> "RetrievalSummary":
        return await make_retrieval(wish, state_dir=settings.state_dir, images=images, runtime=runtime, say=say)

    outcome = with_sandboxes(settings, work)
    if as_json:
        print_json(asdict(outcome))
    else:
        for made in outcome.made:
            table_console.print(f"{made.directory}: {made.files} files, {made.ranges} ranges of lines to find")
        for directory in outcome.there:
            table_console.print(f"{directory}: is there already")
        for problem in outcome.problems:
            table_console.print(problem)
    return 1 if outcome.problems else 0


def _shown(task: "Task") -> dict[str, Any]:
    fields = asdict(task)
    if fields["retrieval"] is not None:
        del fields["retrieval"]["expected"]
    return fields


def _judged(task: "Task") -> str:
    """Where, or by what."""
    return task.verifier.mode.value if task.retrieval is None else "answer"


def _summary(read: "LoadedTask") -> dict[str, object]:
    task, verifier = read.task, read.task.verifier
    return {
        "task_id": task.id,
        "digest": task.digest,
        "image": task.image,
        "workspace": task.workspace,
        "grading": _judged(task),
        "report": verifier.report.value,
        "fail_to_pass": len(verifier.fail_to_pass),
        "pass_to_pass": len(verifier.pass_to_pass),
        "has_gold": read.has_gold,
        "agent_timeout_s": task.agent_timeout_s,
        "verify_timeout_s": verifier.timeout_s,
        "max_turns": task.max_turns,
        "network": ", ".join(task.network) or "none",
    }


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"--instruction {path}: {error}; name a readable text file") from None
