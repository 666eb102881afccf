"""``farm tasks validate``: validate tasks, and print the results of each and of the set."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from farm.cli.errors import shown
from farm.cli.local_runtime import OnProgress, progress, with_sandboxes
from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, progress_console, read_config, table_console

if TYPE_CHECKING:
    from farm.task_validation.result import ValidationResult, ValidationSummary
    from farm.tasks.validation_file import ValidatedSet
    from sandboxes import Runtime
    from sandboxes.images.store import ImageStore


def validate_tasks(
    taskset: Annotated[
        Path, typer.Argument(metavar="TASKSET", help="A directory of tasks, one task, a .jsonl file, or a name.")
    ],
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Remove flaky tests, set time-outs, and write validated.json, against which runs are checked.",
        ),
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Maximum gradings at one time; by default one per core.")
    ] = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Validate each task: doing nothing must earn 0, the gold solution 1 in any order and under load, and cheats 0.

    A stopped validation continues from its last result. Tasks that cannot be read, or whose image is not available, are
    unfit.
    """
    from farm.task_validation.result import summarize
    from farm.task_validation.validate_set import ValidationContext, unreadable_tasks, validate_set, validated_tasks
    from farm.tasks import load_usable_tasks, resolve_taskset
    from farm.tasks.validation_file import set_digest, write_validated

    settings = read_config(config, state_dir)
    path = resolve_taskset(taskset, settings.tasksets)
    with progress() as on_progress:
        tasks, faults = load_usable_tasks(path, state_dir=settings.state_dir, on_progress=on_progress)

    async def work(images: "ImageStore", runtime: "Runtime", on_progress: OnProgress) -> "list[ValidationResult]":
        max_gradings = jobs or os.cpu_count() or 1
        context = ValidationContext(settings.state_dir, images, runtime, max_gradings, write, on_progress)
        return await validate_set(path, tasks, context, bar.advance)

    bar = _Bar(len(tasks))
    results = with_sandboxes(settings, work, open_progress=bar.open) if tasks else []
    results += unreadable_tasks(faults)
    summary = summarize(results)
    written = write_validated(path, validated_tasks(results, _previous(path))) if write else None
    if as_json:
        document = {
            "fit": summary.fit == summary.tasks,
            "digest": set_digest({result.task_id: result.digest for result in results if result.judged}),
            "summary": asdict(summary),
            "tasks": [result.row() for result in results],
        }
        print_json(document)
    else:
        _print_results(results)
        _print_summary(summary)
        if written is not None:
            table_console.print(f"{written}: runs of {path} are checked against it from now on")
    return 0 if summary.fit == summary.tasks else 1


def _previous(path: Path) -> "ValidatedSet | None":
    """Return the report that the new one replaces; None if there is none, or it cannot be read."""
    from farm.tasks import TaskError
    from farm.tasks.validation_file import read_validated

    try:
        return read_validated(path)
    except TaskError:
        return None


class _Bar:
    """A progress bar on standard error, or plain lines if that is no terminal."""

    def __init__(self, total: int) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=progress_console,
        )
        self._bar = self._progress.add_task("", total=total)
        self._unfit = 0

    @contextmanager
    def open(self) -> Iterator[Callable[[str], None]]:
        if not progress_console.is_terminal:
            yield self._write
            return
        with self._progress:
            yield self._write

    def advance(self, result: "ValidationResult") -> None:
        self._progress.advance(self._bar)
        self._unfit += not result.fit
        unfit = f" ({self._unfit} unfit so far)" if self._unfit else ""
        self._write(f"{result.task_id}: {'fit' if result.fit else 'unfit'}{unfit}")

    def _write(self, line: str) -> None:
        if progress_console.is_terminal:
            self._progress.update(self._bar, description=shown(line))
        else:
            progress_console.print(line)


def _print_results(results: "Sequence[ValidationResult]") -> None:
    names = ("task", "fit", "nothing done", "gold", "slowest", "time-out", "wrong that pass", "flaky", "took")
    table = Table(*names, box=None, pad_edge=False)
    for result in results:
        table.add_row(
            result.task_id,
            Text("yes", style="green") if result.fit else Text("no", style="red"),
            " ".join(f"{reward:g}" for reward in result.nop),
            " ".join(f"{reward:g}" for reward in result.gold),
            f"{result.slowest_s:.1f} s" if result.slowest_s is not None else "-",
            f"{result.timeout_s:g} s" if result.timeout_s is not None else "-",
            f"{len(result.weak)} of {result.wrong}" if result.wrong else "-",
            str(len(result.flaky)),
            f"{result.took_s:.1f} s",
        )
    table_console.print(table)
    for result in results:
        for problem in result.problems:
            table_console.print(f"{result.task_id}: {problem}")
        for test in result.removed:
            table_console.print(f"{result.task_id}: --write removed {test} from pass_to_pass", markup=False)
        if result.fit and result.new_timeout_s is not None:
            table_console.print(f"{result.task_id}: a time-out of {result.new_timeout_s:g} s would do; --write sets it")
        for note in result.notes:
            table_console.print(f"{result.task_id}: {note}")
        if result.weak:
            table_console.print(
                f"{result.task_id}: weak tests: {len(result.weak)} of {result.wrong} wrong solutions pass: "
                + "; ".join(result.weak)
            )


def _print_summary(summary: "ValidationSummary") -> None:
    table_console.print(
        f"{summary.fit} of {summary.tasks} fit; {summary.weak} with weak tests ({summary.wrong_passed} of "
        f"{summary.wrong} wrong solutions pass); {summary.flaky} flaky tests, {summary.order_dependent} that depend on "
        f"the order; {summary.seconds:.0f} s in all"
    )
    for reason, count in summary.unfit.items():
        table_console.print(f"  unfit by {reason}: {count}")
