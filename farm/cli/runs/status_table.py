"""The runs in ``farm status``: those that have not ended come first, then the newest of the others."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from farm.schemas.responses import RunAnswer

_MOST_ENDED = 20
_STATES = ("running", "paused", "finished", "cancelled", "failed")


def ordered(runs: "Sequence[RunAnswer]") -> "list[RunAnswer]":
    """Return the running runs, then the paused ones, then the newest that have ended; each part newest first."""
    parts = {state: [run for run in runs if run.state == state] for state in ("running", "paused")}
    ended = [run for run in runs if run.state not in parts]
    return [*parts["running"], *parts["paused"], *ended[:_MOST_ENDED]]


def counts_line(runs: "Sequence[RunAnswer]") -> str:
    """Return how many runs there are in each state, and how many are not listed."""
    states = Counter[str](run.state for run in runs)
    told = ", ".join(f"{states[state]} {state}" for state in _STATES if states[state])
    left_out = len(runs) - len(ordered(runs))
    older = "1 older one is" if left_out == 1 else f"{left_out} older ones are"
    more = f"; {older} not shown, `farm status --json` lists all" if left_out else ""
    number = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"{number}: {told}{more}" if runs else "no runs"


def run_table(runs: "Sequence[RunAnswer]") -> Table:
    table = Table("run", "state", box=None, pad_edge=False)
    for name in ("rollouts", "running", "waiting", "failed", "solved", "reward", "groups waiting"):
        table.add_column(name, justify="right")
    table.add_column("note")
    for run in ordered(runs):
        counts = run.summary
        table.add_row(
            run.run_id,
            run.state,
            f"{counts.accepted}/{counts.expected or '∞'}",
            str(run.running),
            str(run.waiting),
            str(counts.statuses.get("failed", 0)),
            str(counts.solved),
            "-" if counts.reward_mean is None else f"{counts.reward_mean:.2f}",
            str(counts.groups_waiting),
            run.reason or run.outage or run.why_waiting,
        )
    return table
