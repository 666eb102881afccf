"""A minimal learner: lease groups until the run is drained, and compute advantages as GRPO does."""

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Callable

from farm.client import FarmClient, FarmError, Group, LeaseLost


def advantages(group: Group) -> dict[str, float]:
    """Return (reward - mean) / deviation of each judged member. Members that were not judged are left out, not counted
    as 0.
    """
    rewards = {rollout.rollout_id: rollout.reward for rollout in group.rollouts if rollout.reward is not None}
    if not rewards:
        return {}
    mean, deviation = statistics.fmean(rewards.values()), statistics.pstdev(rewards.values())
    return {name: (reward - mean) / (deviation or 1.0) for name, reward in rewards.items()}


def learn(farm: FarmClient, run_id: str, consumer: str, on_line: Callable[[str], object] = print) -> dict[str, object]:
    """Lease groups, learn from them, then ack them; return the totals. The ack comes last, so that no group is lost."""
    learned: set[str] = set()
    rewards: list[float | None] = []
    while (lease := farm.lease(consumer, run_id=run_id, max_groups=4, wait_s=30)) is None or lease.groups:
        if lease is None:
            continue
        for group in (group for group in lease.groups if group.group_id not in learned):
            by_rollout_id = advantages(group)
            signs = " ".join(
                f"{by_rollout_id[r.rollout_id]:+.2f}" if r.rollout_id in by_rollout_id else "n/a"
                for r in group.rollouts
            )
            on_line(f"{group.group_id}  {group.rollouts[0].task_id}  advantages {signs}")
            learned.add(group.group_id)
            rewards += [rollout.reward for rollout in group.rollouts]
        with contextlib.suppress(LeaseLost):  # expired: the groups are delivered again, to any learner
            farm.ack(lease.lease_id)
    judged = [reward for reward in rewards if reward is not None]
    mean = statistics.fmean(judged) if judged else None
    totals = {"groups": len(learned), "rollouts": len(rewards), "judged": len(judged)}
    return {**totals, "stream": lease.stream, "reward_mean": mean}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8710")
    parser.add_argument("--run", required=True)
    parser.add_argument("--token")
    parser.add_argument("--consumer", default="sample-learner")
    arguments = parser.parse_args()
    farm = FarmClient(arguments.url, arguments.token, on_wait=lambda why: print("waiting:", why, file=sys.stderr))
    try:
        with farm:
            print(json.dumps(learn(farm, arguments.run, arguments.consumer)))
    except (FarmError, KeyboardInterrupt) as error:
        raise SystemExit(f"error: {str(error) or 'interrupted'}") from None


if __name__ == "__main__":
    main()
