"""``farm tasks import``: tasks in the formats that exist."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli.local_runtime import progress
from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, read_config, table_console

if TYPE_CHECKING:
    from farm.task_import.importer import ImportSummary

_SHOWN = 20


def import_tasks(
    format_: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="harbor, swebench, swesmith, swegym, rebench, r2e, multiswe or swebenchpro.",
        ),
    ],
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A .json, .jsonl or .parquet file, or a directory.")],
    out: Annotated[Path, typer.Option(help="Where the task directories go; those that are there already stay.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Stop at so many tasks.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="ID", help="This task alone; repeatable.")] = None,
    test_command: Annotated[
        str | None, typer.Option(help="What runs the tests, for rows that do not say; a plain pytest command will do.")
    ] = None,
    report: Annotated[str | None, typer.Option(help="What that command reports; pytest by default.")] = None,
    commands: Annotated[
        Path | None, typer.Option(metavar="FILE", help='TOML: command and report below ["owner/name@version"].')
    ] = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Make task directories of a data set's rows, or take Harbor's as they are; nothing is fetched, built or run."""
    from farm.task_import.draft import read_commands
    from farm.task_import.importer import FORMATS, ImportOptions, import_all

    if format_ not in FORMATS:
        raise typer.BadParameter(f"{format_!r} is no format; choose one of {', '.join(FORMATS)}")
    settings = read_config(config, state_dir)
    wish = ImportOptions(
        format_, source, out, frozenset(only or ()), limit, read_commands(commands, test_command, report)
    )
    with progress() as say:
        summary = import_all(wish, state_dir=settings.state_dir, say=say)
    if as_json:
        print_json(asdict(summary))
    else:
        _print(summary)
    stands = bool(summary.taken or summary.there)
    return 0 if stands and not summary.missing and not (only and summary.refused) else 1


def _print(summary: "ImportSummary") -> None:
    for task in summary.taken[:_SHOWN]:
        notes = [f"{task.fail_to_pass} tests to mend, {task.pass_to_pass} to keep"]
        if task.left_out:
            notes.append(f"{len(task.left_out)} left out, for no report can have their ids")
        table_console.print(f"{task.directory}: {'; '.join(notes)}")
    for task in summary.taken:
        for asked in task.unheeded:
            table_console.print(f"warning: {task.directory}: {asked}")
    if len(summary.taken) > _SHOWN:
        table_console.print(f"… and {len(summary.taken) - _SHOWN} more")
    for refused in summary.refused:
        name = f"{refused.place} ({refused.id})" if refused.id else refused.place
        table_console.print(f"refused: {name}: {refused.reason}")
    for id_ in summary.missing:
        table_console.print(f"not there: {id_}")
    counts = f"{len(summary.taken)} taken, {len(summary.there)} there already, {len(summary.refused)} refused"
    table_console.print(counts)
