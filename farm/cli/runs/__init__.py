"""``farm runs``: list runs, show one and its learners, pause, resume, cancel and delete it. ``run`` has the command
``farm run``.

The page is farm/docs/operating.md.
"""

import typer

from farm.cli.runs.control import cancel, delete, pause, resume
from farm.cli.runs.listing import learners, list_runs, show_run

app = typer.Typer(help="List, pause, resume, cancel and delete runs.", no_args_is_help=True)
app.command("list")(list_runs)
app.command("show")(show_run)
for command in (learners, pause, resume, cancel, delete):
    app.command()(command)
