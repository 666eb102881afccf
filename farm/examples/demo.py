"""The demo of the quickstart: the gold solution and doing nothing on every task, pulled by the sample learner."""

import argparse
import sys
import time
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from farm.cli.connection import connected
from farm.cli.errors import CliError
from farm.cli.options import progress_console, table_console
from farm.cli.run import totals_by_task
from farm.client import FarmClient
from farm.config import ConfigError, load_config
from farm.examples.sample_learner import learn

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
    table = Table("policy", "task", title="what the farm did", title_justify="left", box=None, pad_edge=False)
    for name in ("episodes", "solved", "reward", "seconds each"):
        table.add_column(name, justify="right")
    right = True
    for policy, run_id in runs.items():
        for task_id, totals in totals_by_task(farm.rollouts(run_id)).items():
            mean = totals.reward / totals.judged if totals.judged else float("nan")
            right = right and totals.judged == totals.episodes and mean == EXPECTED[policy]
            each_s = totals.seconds / totals.episodes
            table.add_row(policy, task_id, str(totals.episodes), str(totals.solved), f"{mean:.2f}", f"{each_s:.1f}")
    table_console.print(table)
    for policy, run_id in runs.items():
        got = learn(farm, run_id, "sample-learner", say=lambda line: None)
        table_console.print(
            f"sample learner, {policy}: {got['groups']} groups with {got['rollouts']} rollouts leased and acked, "
            f"mean reward {got['reward_mean']}, stream {got['stream']}"
        )
    table_console.print(f"{time.monotonic() - began:.1f} s in all")
    return right


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
        sys.stderr.write("error: a reward is not what it must be (oracle 1.0, nop 0.0); see `farm rollouts list`\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
