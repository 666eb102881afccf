"""``farm rollouts``: list, show, export and rescore stored rollouts.

The page is farm/docs/operating.md.
"""

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress
from rich.table import Column, Table

from farm.cli.connection import connected
from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, progress_console, read_config, table_console
from farm.cli.rollouts.transcript import transcript
from farm.core.rollout import Status
from farm.core.untrainable_reasons import untrainable

if TYPE_CHECKING:
    from farm.core.rollout import Rollout
    from farm.schemas.rollout import RolloutHead

app = typer.Typer(help="Look at stored rollouts, export them, judge them anew.", no_args_is_help=True)


@app.command("list")
def list_rollouts(
    run: Annotated[str | None, typer.Option("--run", help="Only this run.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only this task.")] = None,
    status: Annotated[Status | None, typer.Option(help="How they ended.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="The newest so many.")] = 50,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """List rollouts, newest first."""
    with connected(read_config(config, state_dir)) as client:
        if run is not None:
            client.run(run)
        found = client.rollouts(run, task_id=task, status=status, on_unreadable=_left_out)
        heads = list(itertools.islice(found, limit))
    if not heads:
        wanted = (("of the run", run), ("of the task", task), ("with the status", status))
        filters = "".join(f" {words} {value}" for words, value in wanted if value is not None)
        progress_console.print(f"no rollouts{filters}")
    if as_json:
        print_json([head.model_dump(mode="json") for head in heads])
    elif heads:
        _print_table(heads)


def _left_out(rollout_id: str, why: str = "") -> None:
    progress_console.print(
        f"{rollout_id} is left out: its record cannot be read{why and f' ({why})'}; "
        "where its reward alone is at fault, `farm rollouts rescore --run RUN` by other rules mends it"
    )


def _print_table(heads: "list[RolloutHead]") -> None:
    table = Table(
        Column("rollout", no_wrap=True, min_width=30),
        "task",
        "status",
        "stop reason",
        "reward",
        "turns",
        "error",
        box=None,
        pad_edge=False,
    )
    for head in heads:
        table.add_row(
            head.rollout_id,
            head.task_id,
            head.status,
            head.stop_reason,
            "-" if head.reward is None else f"{head.reward:g}",
            f"{head.metrics.get('turns', 0):g}",
            f"{head.error.origin}: {head.error.message}" if head.error else "",
        )
    table_console.print(table)


@app.command("show")
def show(
    rollout_id: str,
    lines: Annotated[
        int,
        typer.Option(
            min=0, help="At most so many of each result or argument, and four times as many of the change; 0: all."
        ),
    ] = 20,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Show one rollout: its verdict, its turns, and the agent's change."""
    with connected(read_config(config, state_dir)) as client:
        rollout, sidecar = client.rollout(rollout_id), client.turns(rollout_id)
    if as_json:
        print_json(
            {
                "rollout_id": rollout.rollout_id,
                "status": rollout.status,
                "stop_reason": rollout.stop_reason,
                "error": asdict(rollout.error) if rollout.error else None,
                "reward": rollout.reward,
                "reward_components": dict(rollout.reward_components),
                "reward_version": rollout.reward_version,
                "policy": rollout.policy,
                "trainable": rollout.trainable,
                "untrainable": _untrainable(rollout),
                "metrics": dict(rollout.metrics),
                "audit": [asdict(flag) for flag in rollout.audit],
                "tool_pack": rollout.tool_pack,
                "tools": list(rollout.tools),
                "harness_digest": rollout.harness_digest,
                "branches": [asdict(point) for point in rollout.branches],
                **sidecar.model_dump(mode="json"),
            }
        )
        return
    for line in transcript(rollout, sidecar, lines):
        table_console.print(line, soft_wrap=True)


def _untrainable(rollout: "Rollout") -> str:
    if rollout.trainable or rollout.reward is None:
        return ""
    return untrainable(rollout.policy, rollout.metrics)


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="Ends in .jsonl.zst, .jsonl or .parquet.")],
    run: Annotated[str | None, typer.Option("--run", help="Only this run.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only this task.")] = None,
    status: Annotated[Status | None, typer.Option(help="How they ended.")] = None,
    turns: Annotated[bool, typer.Option("--turns", help="With what was said and done, and the change.")] = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Write rollouts to a file, one per row, newest first. Unreadable records are listed and left out."""
    from farm.cli.rollouts.export import fetch_all, writer

    left_out: list[str] = []
    written = 0

    def leave_out(rollout_id: str, why: str = "") -> None:
        left_out.append(rollout_id)
        _left_out(rollout_id, why)

    with connected(read_config(config, state_dir)) as client:
        if run is not None:
            client.run(run)
        heads = list(client.rollouts(run, task_id=task, status=status, on_unreadable=leave_out))
        with writer(file, with_turns=turns) as write, Progress(console=progress_console) as progress:
            names = (head.rollout_id for head in progress.track(heads, description="exporting"))
            for row in fetch_all(client, names, with_turns=turns, on_unreadable=leave_out):
                write(row)
                written += 1
    if as_json:
        print_json({"file": str(file), "rollouts": written, "left_out": left_out})
    else:
        table_console.print(f"{written} rollouts in {file}")


@app.command("rescore")
def rescore(
    run: Annotated[list[str] | None, typer.Option("--run", help="This run; may be given again.")] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Every run.")] = False,
    rules: Annotated[str | None, typer.Option(help="A version, or a rule document; the current one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would come of it.")] = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Score stored rollouts by other rules, from their recorded components.

    Only groups that are neither leased nor acked change, each as a whole. A repeated call continues with the rest.
    """
    from farm.cli.rewards import meant_version
    from farm.cli.rollouts.rescore import follow, summary

    if all_runs == bool(run):
        raise typer.BadParameter("name a run, or take --all", param_hint="--run")
    with connected(read_config(config, state_dir)) as client:
        version = None if rules is None else meant_version(client, rules)
        names = list(run or [one.run_id for one in client.runs()])
        found = follow(client, names, version, dry_run=dry_run)
    if as_json:
        print_json(found)
    else:
        summary(found)
