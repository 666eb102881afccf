"""``farm rollouts``: look at what is stored."""

import itertools
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from farm.cli.connection import connected
from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, progress_console, read_config, table_console
from farm.core.rollout import Status

if TYPE_CHECKING:
    from farm.wire.record import RolloutHead, Sidecar

app = typer.Typer(help="Look at stored rollouts.", no_args_is_help=True)


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
        heads = list(itertools.islice(client.rollouts(run, task_id=task, status=status), limit))
    if not heads:
        wanted = (("of the run", run), ("of the task", task), ("with the status", status))
        filters = "".join(f" {words} {value}" for words, value in wanted if value is not None)
        progress_console.print(f"no rollouts{filters}")
    if as_json:
        print_json([head.model_dump(mode="json") for head in heads])
    elif heads:
        _print_table(heads)


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
def show(rollout_id: str, config: ConfigFile = None, state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """Show one rollout: its verdict, what was said and done, and the change it left."""
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
                "metrics": dict(rollout.metrics),
                "tool_pack": rollout.tool_pack,
                "tools": list(rollout.tools),
                **sidecar.model_dump(mode="json"),
            }
        )
        return
    reward = "not judged" if rollout.reward is None else f"{rollout.reward:g}"
    table_console.print(f"{rollout.rollout_id}  {rollout.task_id}  {rollout.status}: {rollout.stop_reason}")
    table_console.print(f"reward {reward}  {sidecar.reason}")
    if rollout.error:
        table_console.print(f"{rollout.error.origin}: {rollout.error.message}")
    if rollout.tool_pack:
        table_console.print(f"tools of {rollout.tool_pack}: {', '.join(rollout.tools)}")
    _print_turns(sidecar)
    if sidecar.patch:
        table_console.rule("change", align="left")
        table_console.print(sidecar.patch, soft_wrap=True)


def _print_turns(sidecar: "Sidecar") -> None:
    for turn in sidecar.turns:
        table_console.rule(f"turn {turn.index}", align="left")
        if turn.content:
            table_console.print(turn.content, soft_wrap=True)
        for use in turn.tool_uses:
            table_console.print(f"→ {use.name} {use.arguments}", style="cyan", soft_wrap=True)
            table_console.print(use.result, soft_wrap=True)
