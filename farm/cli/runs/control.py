"""``farm runs pause``, ``resume``, ``cancel`` and ``delete``."""

from typing import Annotated

import typer

from farm.cli.connection import connected
from farm.cli.errors import CliError
from farm.cli.options import ConfigFile, StateDir, progress_console, read_config
from farm.cli.runs.listing import RunId


def pause(run_id: RunId, config: ConfigFile = None, state_dir: StateDir = None) -> None:
    """Start no more episodes of a run; running ones go on."""
    with connected(read_config(config, state_dir)) as client:
        run = client.pause(run_id)
    progress_console.print(f"{run_id} is {run.state}; `farm runs resume {run_id}` starts its episodes again")


def resume(run_id: RunId, config: ConfigFile = None, state_dir: StateDir = None) -> None:
    """Start episodes of a paused run again."""
    with connected(read_config(config, state_dir)) as client:
        run = client.resume(run_id)
    progress_console.print(f"{run_id} is {run.state}")


def cancel(run_id: RunId, config: ConfigFile = None, state_dir: StateDir = None) -> None:
    """End a run for good: its episodes are stopped. Complete groups can still be leased."""
    with connected(read_config(config, state_dir)) as client:
        run = client.cancel(run_id)
    waiting = run.summary.groups_waiting
    progress_console.print(f"{run_id} is {run.state}; {waiting} complete groups of it can be leased")


def delete(
    run_id: RunId,
    yes: Annotated[bool, typer.Option("--yes", help="Ask no question.")] = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
) -> None:
    """Delete an ended run with its rollouts, for good."""
    with connected(read_config(config, state_dir)) as client:
        run = client.run(run_id)
        if run.state in ("running", "paused"):
            raise CliError(f"{run_id} is {run.state}; end it first with `farm runs cancel {run_id}`")
        if not yes:
            lost = f"{run.summary.accepted} rollouts and {run.summary.groups_waiting} groups that were never leased"
            typer.confirm(f"Delete {run_id} with {lost}?", abort=True, err=True)
        client.delete_run(run_id)
    progress_console.print(f"{run_id} is deleted")
