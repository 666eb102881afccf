"""``farm tasks validate``: tasks proven fit, with what was found of each and of the set."""

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
from farm.cli.local_runtime import chosen_taskset, fetch_each, with_sandboxes
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
            "--write", help="Take flaky tests out, set time-outs, and leave validated.json, by which runs are checked."
        ),
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Gradings at once; by default one a core.")] = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Prove each task fit: nothing done is judged 0, the gold solution 1 whatever the order and the load, cheats 0.

    One that was stopped goes on where it was. Tasks that cannot be read, or whose image cannot be had, are unfit.
    """
    from farm.task_validation.result import summarize
    from farm.task_validation.validate_set import ValidationContext, unreadable, validate_set, validated_tasks
    from farm.tasks.validation_file import set_digest, write_validated

    settings = read_config(config, state_dir)
    path = chosen_taskset(taskset, settings)
    tasks, faults = fetch_each(path, settings)

    async def work(images: "ImageStore", runtime: "Runtime", say: Callable[[str], None]) -> "list[ValidationResult]":
        bench = ValidationContext(settings.state_dir, images, runtime, jobs or os.cpu_count() or 1, write, say)
        return await validate_set(path, tasks, bench, bar.done)

    bar = _Bar(len(tasks))
    findings = with_sandboxes(settings, work, show=bar.shown) if tasks else []
    findings += unreadable(faults)
    summary = summarize(findings)
    written = write_validated(path, validated_tasks(findings, _former(path))) if write else None
    if as_json:
        document = {
            "fit": summary.fit == summary.tasks,
            "digest": set_digest({finding.task_id: finding.digest for finding in findings if finding.judged}),
            "summary": asdict(summary),
            "tasks": [finding.row() for finding in findings],
        }
        print_json(document)
    else:
        _print_findings(findings)
        _print_summary(summary)
        if written is not None:
            table_console.print(f"{written}: by which runs of {path} are checked from now on")
    return 0 if summary.fit == summary.tasks else 1


def _former(path: Path) -> "ValidatedSet | None":
    """Return the report that the new one takes the place of; None if there is none, or it cannot be read."""
    from farm.tasks import TaskError
    from farm.tasks.validation_file import read_validated

    try:
        return read_validated(path)
    except TaskError:
        return None


class _Bar:
    """How far it is, on standard error; plain lines where that is no terminal."""

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
    def shown(self) -> Iterator[Callable[[str], None]]:
        if not progress_console.is_terminal:
            yield self._say
            return
        with self._progress:
            yield self._say

    def done(self, finding: "ValidationResult") -> None:
        self._progress.advance(self._bar)
        self._unfit += not finding.fit
        unfit = f" ({self._unfit} unfit so far)" if self._unfit else ""
        self._say(f"{finding.task_id}: {'fit' if finding.fit else 'unfit'}{unfit}")

    def _say(self, line: str) -> None:
        if progress_console.is_terminal:
            self._progress.update(self._bar, description=shown(line))
        else:
            progress_console.print(line)


def _print_findings(findings: "Sequence[ValidationResult]") -> None:
    names = ("task", "fit", "nothing done", "gold", "slowest", "time-out", "wrong that pass", "flaky", "took")
    table = Table(*names, box=None, pad_edge=False)
    for finding in findings:
        table.add_row(
            finding.task_id,
            Text("yes", style="green") if finding.fit else Text("no", style="red"),
            " ".join(f"{reward:g}" for reward in finding.nop),
            " ".join(f"{reward:g}" for reward in finding.gold),
            f"{finding.slowest_s:.1f} s" if finding.slowest_s is not None else "-",
            f"{finding.timeout_s:g} s" if finding.timeout_s is not None else "-",
            f"{len(finding.weak)} of {finding.wrong}" if finding.wrong else "-",
            str(len(finding.flaky)),
            f"{finding.took_s:.1f} s",
        )
    table_console.print(table)
    for finding in findings:
        for problem in finding.problems:
            table_console.print(f"{finding.task_id}: {problem}")
        for test in finding.removed:
            table_console.print(f"{finding.task_id}: --write took {test} out of pass_to_pass", markup=False)
        if finding.fit and finding.new_timeout_s is not None:
            table_console.print(
                f"{finding.task_id}: a time-out of {finding.new_timeout_s:g} s would do; --write sets it"
            )
        for note in finding.notes:
            table_console.print(f"{finding.task_id}: {note}")
        if finding.weak:
            table_console.print(
                f"{finding.task_id}: weak tests: {len(finding.weak)} of {finding.wrong} wrong solutions pass: "
                + "; ".join(finding.weak)
            )


def _print_summary(summary: "ValidationSummary") -> None:
    table_console.print(
        f"{summary.fit} of {summary.tasks} fit; {summary.weak} with weak tests ({summary.wrong_passed} of "
        f"{summary.wrong} wrong solutions pass); {summary.flaky} flaky tests, {summary.order_dependent} that depend on "
        f"the order; {summary.seconds:.0f} s in all"
    )
    for reason, count in summary.unfit.items():
        table_console.print(f"  unfit by {reason}: {count}")
