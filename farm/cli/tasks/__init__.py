"""``farm tasks``: show task sets, validate them, import tasks and make new ones.

A command has one parameter per argument and option, because typer builds the command line from them. The page is
farm/docs/tasks.md.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from farm.cli.errors import CliError
from farm.cli.local_runtime import OnProgress, TaskSet, report_faults, with_sandboxes
from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, read_config, table_console
from farm.cli.tasks import make as make_commands
from farm.cli.tasks import validate
from farm.cli.tasks.import_ import import_tasks
from farm.config import Config

if TYPE_CHECKING:
    from farm.core.task import Task
    from farm.task_generation.release_pair import ReleasePairTask
    from farm.task_generation.retrieval import RetrievalSummary
    from farm.tasks import LoadedTask, TaskFault
    from sandboxes import Runtime
    from sandboxes.images.store import ImageStore

app = typer.Typer(no_args_is_help=True, help="Task sets: show them, validate them, make new tasks.")
make = typer.Typer(no_args_is_help=True, help="Make tasks out of real packages.")
app.add_typer(make, name="make")
app.command("import")(import_tasks)
app.command("validate")(validate.validate_tasks)
make.command("mutate")(make_commands.mutate)
make.command("delete-feature")(make_commands.delete_feature)
make.command("recipe")(make_commands.recipe)


@app.command("list")
def list_tasks(taskset: TaskSet, config: ConfigFile = None, state_dir: StateDir = None, as_json: AsJson = False) -> int:
    """List the tasks of a set; exit code 1 if some cannot be read. Nothing is downloaded, built or run."""
    tasks, faults = _read(taskset, read_config(config, state_dir))
    if as_json:
        print_json([_summary(read) for read in tasks])
        return report_faults(faults, len(tasks))
    table = Table("task", "digest", "grading", "report", "fail→pass", "pass→pass", "image", box=None, pad_edge=False)
    for read in tasks:
        task, verifier = read.task, read.task.verifier
        counts = (str(len(verifier.fail_to_pass)), str(len(verifier.pass_to_pass)))
        table.add_row(task.id, task.digest[:12], _graded_by(task), verifier.report, *counts, task.image)
    table_console.print(table)
    return report_faults(faults, len(tasks))


@app.command()
def show(taskset: TaskSet, config: ConfigFile = None, state_dir: StateDir = None, as_json: AsJson = False) -> int:
    """Show all of the tasks of a set except the tests and the gold solution. Nothing is downloaded, built or run."""
    tasks, faults = _read(taskset, read_config(config, state_dir))
    if as_json:
        print_json([{**_public_fields(read.task), **_summary(read)} for read in tasks])
        return report_faults(faults, len(tasks))
    for read in tasks:
        task = read.task
        table_console.rule(task.id, align="left")
        for name, value in _summary(read).items():
            table_console.print(f"{name:16} {value}")
        table_console.print(f"\n{task.instruction}")
    return report_faults(faults, len(tasks))


@app.command("new")
def new(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="The directory to make; its last part names the task.")],
    as_json: AsJson = False,
) -> None:
    """Write a small, complete and valid task directory, to be filled with a task of your own."""
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
    out: Annotated[Path | None, typer.Option(help="The directory to write; ./PACKAGE-NEW by default.")] = None,
    instruction: Annotated[
        Path | None, typer.Option(help="A file with the instruction; a draft is written by default.")
    ] = None,
    require: Annotated[
        list[str] | None, typer.Option(help="Requirement of the tests beside pytest; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Pattern of test ids that need not pass; repeatable.")
    ] = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a task of two consecutive releases: the older is the repository, the newer has tests and solution."""
    from farm.task_generation.release_pair import ReleasePairSpec, make_release_pair
    from farm.task_generation.services import GenerationServices

    settings = read_config(config, state_dir)
    spec = ReleasePairSpec(
        package=package,
        old=old,
        new=new,
        out=out or Path(f"{package}-{new}"),
        requirements=tuple(require or ()),
        exclude=tuple(exclude or ()),
        instruction=_read_text(instruction) if instruction else None,
    )

    async def work(images: "ImageStore", runtime: "Runtime", on_progress: OnProgress) -> "ReleasePairTask":
        return await make_release_pair(spec, GenerationServices(settings.state_dir, images, runtime, on_progress))

    task = with_sandboxes(settings, work)
    if as_json:
        print_json(asdict(task))
        return
    counts = f"{len(task.fail_to_pass)} tests in fail_to_pass, {len(task.pass_to_pass)} in pass_to_pass"
    table_console.print(f"{task.directory}: {counts}")
    for test in task.flaky:
        table_console.print(f"  left out, flaky: {test}")
    if spec.instruction is None:
        table_console.print(
            f"{task.directory}/instruction.md is a draft: describe there what each hidden test asks for."
        )


@make.command("retrieval")
def retrieval(
    tasks: Annotated[list[Path], typer.Argument(metavar="TASK_DIR...", help="Tasks with a gold solution, or sets.")],
    out: Annotated[Path, typer.Option(help="The directory of the new tasks; existing ones stay.")],
    calls_per_turn: Annotated[int, typer.Option(min=1, max=64, help="Maximum tool calls of one message.")] = 8,
    max_turns: Annotated[int, typer.Option(min=1, max=100, help="Maximum messages, including the answer.")] = 4,
    beta: Annotated[float, typer.Option(min=0.01, max=100, help="Weight of recall over precision.")] = 0.5,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Make retrieval tasks: the code is to be found, not changed. The answer is what the gold solution changes."""
    from farm.task_generation.retrieval import RetrievalSpec, make_retrieval
    from farm.task_generation.services import GenerationServices
    from farm.tasks import task_directories

    settings = read_config(config, state_dir)
    sources = [directory for path in tasks for directory in task_directories(path)]
    spec = RetrievalSpec(sources, out, calls_per_turn, max_turns, beta)

    async def work(images: "ImageStore", runtime: "Runtime", on_progress: OnProgress) -> "RetrievalSummary":
        return await make_retrieval(spec, GenerationServices(settings.state_dir, images, runtime, on_progress))

    summary = with_sandboxes(settings, work)
    if as_json:
        print_json(asdict(summary))
    else:
        for task in summary.made:
            table_console.print(f"{task.directory}: {task.files} files, {task.ranges} ranges of lines to find")
        for directory in summary.there:
            table_console.print(f"{directory}: exists already")
        for problem in summary.problems:
            table_console.print(problem)
    return 1 if summary.problems else 0


def _read(taskset: Path, config: Config) -> "tuple[list[LoadedTask], list[TaskFault]]":
    from farm.tasks import read_usable_tasks, resolve_taskset

    return read_usable_tasks(resolve_taskset(taskset, config.tasksets))


def _public_fields(task: "Task") -> dict[str, Any]:
    """Return the fields of a task without the expected answer."""
    fields = asdict(task)
    if fields["retrieval"] is not None:
        del fields["retrieval"]["expected"]
    return fields


def _graded_by(task: "Task") -> str:
    """Return the grading mode, or ``answer`` for a retrieval task."""
    return task.verifier.mode.value if task.retrieval is None else "answer"


def _summary(read: "LoadedTask") -> dict[str, object]:
    task, verifier = read.task, read.task.verifier
    return {
        "task_id": task.id,
        "digest": task.digest,
        "image": task.image,
        "workspace": task.workspace,
        "grading": _graded_by(task),
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
