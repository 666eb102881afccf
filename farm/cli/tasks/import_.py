"""``farm tasks import``: import tasks of public data sets."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli.local_runtime import progress
from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, read_config, table_console

if TYPE_CHECKING:
    from farm.task_import.importer import ImportSummary

_MAX_SHOWN = 20


def import_tasks(
    format_: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="harbor, swebench, swesmith, swegym, rebench, r2e, multiswe or swebenchpro.",
        ),
    ],
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A .json, .jsonl or .parquet file, or a directory.")],
    out: Annotated[Path, typer.Option(help="The directory of the new tasks; existing ones stay.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum tasks.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="ID", help="Import only this task; repeatable.")] = None,
    test_command: Annotated[
        str | None, typer.Option(help="The test command for rows without one, such as a plain pytest command.")
    ] = None,
    report: Annotated[str | None, typer.Option(help="The report format of that command; pytest by default.")] = None,
    commands: Annotated[
        Path | None, typer.Option(metavar="FILE", help='TOML: command and report below ["owner/name@version"].')
    ] = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Make task directories of a data set's rows, or copy Harbor's tasks. Nothing is downloaded, built or run."""
    from farm.task_import.draft import read_commands
    from farm.task_import.importer import FORMATS, ImportOptions, import_all

    if format_ not in FORMATS:
        raise typer.BadParameter(f"{format_!r} is not a format; choose one of {', '.join(FORMATS)}")
    settings = read_config(config, state_dir)
    options = ImportOptions(
        format_, source, out, frozenset(only or ()), limit, read_commands(commands, test_command, report)
    )
    with progress() as on_progress:
        summary = import_all(options, state_dir=settings.state_dir, on_progress=on_progress)
    if as_json:
        print_json(asdict(summary))
    else:
        _print(summary)
    has_tasks = bool(summary.taken or summary.there)
    return 0 if has_tasks and not summary.missing and not (only and summary.refused) else 1


def _print(summary: "ImportSummary") -> None:
    for task in summary.taken[:_MAX_SHOWN]:
        notes = [f"{task.fail_to_pass} tests in fail_to_pass, {task.pass_to_pass} in pass_to_pass"]
        if task.left_out:
            notes.append(f"{len(task.left_out)} left out, because no report can have their ids")
        table_console.print(f"{task.directory}: {'; '.join(notes)}")
    for task in summary.taken:
        for feature in task.unheeded:
            table_console.print(f"warning: {task.directory}: {feature}")
    if len(summary.taken) > _MAX_SHOWN:
        table_console.print(f"… and {len(summary.taken) - _MAX_SHOWN} more")
    for refused in summary.refused:
        name = f"{refused.place} ({refused.id})" if refused.id else refused.place
        table_console.print(f"refused: {name}: {refused.reason}")
    for id_ in summary.missing:
        table_console.print(f"not in the source: {id_}")
    counts = f"{len(summary.taken)} taken, {len(summary.there)} existed already, {len(summary.refused)} refused"
    table_console.print(counts)
