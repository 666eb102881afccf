"""The progress and the summary of ``farm rollouts rescore``."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from farm.cli.options import progress_console, table_console

if TYPE_CHECKING:
    from farm.client import FarmClient
    from farm.rewards.distribution import Distribution
    from farm.schemas.responses import DistributionAnswer

LEFT = {
    "leased": "leased",
    "settled": "acked or dropped",
    "busy": "being written to",
    "unreadable": "a record of theirs cannot be read; the farm's log says which",
}
"""Groups that stay as they are, and why."""


def follow(client: "FarmClient", runs: Sequence[str], version: str | None, *, dry_run: bool) -> dict[str, Any]:
    """Rescore the runs one after the other with a progress bar. Return the figures of all together."""
    groups: Counter[str] = Counter()
    before, after = _Sum(), _Sum()
    rollouts = 0
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bar, console=progress_console) as progress:
        for run in runs:
            task = progress.add_task(run, total=None)
            for answer in client.rescore(run, version, dry_run=dry_run):
                version = answer.version
                groups.update(answer.groups)
                rollouts += answer.rollouts
                before.add(answer.before)
                after.add(answer.after)
                progress.update(task, total=answer.of, completed=answer.of if answer.next is None else answer.next)
    return {
        "runs": list(runs),
        "version": version,
        "dry_run": dry_run,
        "groups": dict(groups),
        "rollouts": rollouts,
        "before": before.document(),
        "after": after.document(),
    }


def figures_of(distributions: "Iterable[Distribution]") -> dict[str, Any]:
    """Return the figures of distributions together."""
    together = _Sum()
    for one in distributions:
        together.add(one)
    return together.document()


class _Sum:
    """The sum of distributions."""

    def __init__(self) -> None:
        self._judged = 0
        self._total = 0.0
        self._ends: list[float] = []
        self._bounds: Sequence[float] = ()
        self._counts: list[int] = []

    def add(self, one: "DistributionAnswer | Distribution") -> None:
        self._judged += one.judged
        self._total += one.total
        self._ends += [end for end in (one.lowest, one.highest) if end is not None]
        self._bounds = one.bounds
        self._counts = [sum(pair) for pair in zip(self._counts or [0] * len(one.counts), one.counts, strict=True)]

    def document(self) -> dict[str, Any]:
        return {
            "judged": self._judged,
            "mean": self._total / self._judged if self._judged else None,
            "lowest": min(self._ends, default=None),
            "highest": max(self._ends, default=None),
            "bounds": list(self._bounds),
            "counts": self._counts,
        }


def summary(found: dict[str, Any]) -> None:
    """Print the figures for a person."""
    groups, would = found["groups"], "would change" if found["dry_run"] else "changed"
    changed, same = groups.get("changed", 0), groups.get("same", 0)
    table_console.print(f"{found['version']}: {changed} groups {would} ({found['rollouts']} rollouts), {same} had it")
    for name, why in LEFT.items():
        if groups.get(name):
            table_console.print(f"{groups[name]} groups stay as they are: {why}")
    if not changed:
        return
    table = Table("", box=None, pad_edge=False)
    for name in ("judged", "mean", "lowest", "highest"):
        table.add_column(name, justify="right")
    for when in ("before", "after"):
        figures = found[when]
        table.add_row(when, *(_shown(figures[name]) for name in ("judged", "mean", "lowest", "highest")))
    table_console.print(table)
    _histogram(found)


def _histogram(found: dict[str, Any]) -> None:
    table = Table("reward", box=None, pad_edge=False)
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    bounds = found["after"]["bounds"]
    names = [*(f"to {bound:g}" for bound in bounds), f"above {bounds[-1]:g}"]
    for name, before, after in zip(names, found["before"]["counts"], found["after"]["counts"], strict=True):
        if before or after:
            table.add_row(name, str(before), str(after))
    table_console.print(table)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
