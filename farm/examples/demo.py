"""The demo of the quickstart: the gold solution and doing nothing on every task, pulled by the sample learner."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from farm.cli.connection import connected
from farm.cli.errors import CliError
from farm.cli.options import progress_console, table_console
from farm.cli.runs.summary import totals_by_task
from farm.client import FarmClient
from farm.config import ConfigError, load_config
from farm.examples.sample_learner import learn
from farm.schemas.rollout import RolloutHead

EXPECTED = {"oracle": 1.0, "nop": 0.0}


def demo(farm: FarmClient, taskset: Path, group_size: int) -> bool:
    """Run both policies, let the sample learner drain them, print what came of it. True when every reward is right."""
    began = time.monotonic()
    runs: dict[str, str] = {}
    try:
        for policy in EXPECTED:
            runs[policy] = farm.create_run(str(taskset), policy, group_size).run_id
        _follow(farm, runs)
    except KeyboardInterrupt:
        for run_id in runs.values():
            farm.cancel(run_id)
        raise CliError("interrupted; the demo's runs are cancelled") from None
    heads = {policy: list(farm.rollouts(run_id)) for policy, run_id in runs.items()}
    table_console.print(_table(heads))
    for policy, run_id in runs.items():
        got = learn(farm, run_id, "sample-learner", say=lambda line: None)
        table_console.print(
            f"sample learner, {policy}: {got['groups']} groups with {got['rollouts']} rollouts leased and acked, "
            f"mean reward {got['reward_mean']}, stream {got['stream']}"
        )
    table_console.print(f"{time.monotonic() - began:.1f} s in all")
    wrong = faults(heads)
    for line, count in Counter(wrong).items():
        progress_console.print(f"{count} x {line}", style="red", soft_wrap=True)
    return not wrong


def _table(heads: Mapping[str, Sequence[RolloutHead]]) -> Table:
    table = Table("policy", "task", title="what the farm did", title_justify="left", box=None, pad_edge=False)
    for name in ("episodes", "solved", "reward", "not judged", "seconds each"):
        table.add_column(name, justify="right")
    for policy, seen in heads.items():
        for task_id, totals in totals_by_task(seen).items():
            mean = f"{totals.reward / totals.judged:.2f}" if totals.judged else "-"
            unjudged = totals.episodes - totals.judged
            counts = (str(totals.episodes), str(totals.solved), mean)
            each = f"{totals.seconds / totals.episodes:.1f}"
            table.add_row(policy, task_id, *counts, Text(str(unjudged), style="red" if unjudged else ""), each)
    return table


def faults(heads: Mapping[str, Sequence[RolloutHead]]) -> list[str]:
    """What is wrong, a line for each episode that was not judged or whose reward is not what it must be."""
    lines = []
    for policy, seen in heads.items():
        if not seen:
            lines.append(f"{policy}: no episode at all")
        for head in seen:
            if head.reward is None:
                why = f"{head.error.origin}: {head.error.message}" if head.error else head.stop_reason
                lines.append(f"{policy} {head.task_id}: not judged: {why}")
            elif head.reward != EXPECTED[policy]:
                lines.append(f"{policy} {head.task_id}: reward {head.reward:g}, not {EXPECTED[policy]:g}")
    return lines


def _follow(farm: FarmClient, runs: dict[str, str]) -> None:
    columns = (TextColumn("{task.description:7}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console) as progress:
        for policy, run_id in runs.items():
            bar = progress.add_task(policy, total=None)
            for seen in farm.wait_run(run_id, poll_s=0.2):
                progress.update(bar, total=seen.summary.expected, completed=seen.summary.accepted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("taskset", type=Path)
    parser.add_argument("--group-size", type=int, default=4)
    given = parser.parse_args()
    try:
        with connected(load_config()) as farm:
            right = demo(farm, given.taskset.resolve(), given.group_size)
    except (CliError, ConfigError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        return 130
    if not right:
        remedy = "to look closer: deploy/quickstart.sh --keep, then .venv/bin/farm rollouts list"
        sys.stderr.write(f"error: not every episode was rewarded as it must be (oracle 1, nop 0); {remedy}\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
