"""A learner in miniature: leases groups until the run is drained, and does with them what GRPO would."""

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Callable

from farm.client import FarmClient, FarmError, Group, LeaseLost


def advantages(group: Group) -> dict[str, float]:
    """Group-relative: (reward - mean) / deviation over the judged members; the unjudged are left out, never 0."""
    rewards = {rollout.rollout_id: rollout.reward for rollout in group.rollouts if rollout.reward is not None}
    if not rewards:
        return {}
    mean, deviation = statistics.fmean(rewards.values()), statistics.pstdev(rewards.values())
    return {name: (reward - mean) / (deviation or 1.0) for name, reward in rewards.items()}


def learn(farm: FarmClient, run_id: str, consumer: str, say: Callable[[str], object] = print) -> dict[str, object]:
    """Lease, learn, and only then ack; returns the totals."""
    learned: set[str] = set()
    rewards: list[float | None] = []
    while (lease := farm.lease(consumer, run_id=run_id, max_groups=4, wait_s=30)) is None or lease.groups:
        if lease is None:
            continue
        for group in (group for group in lease.groups if group.group_id not in learned):
            found = advantages(group)
            signs = " ".join(f"{found[r.rollout_id]:+.2f}" if r.rollout_id in found else "n/a" for r in group.rollouts)
            say(f"{group.group_id}  {group.rollouts[0].task_id}  advantages {signs}")
            learned.add(group.group_id)
            rewards += [rollout.reward for rollout in group.rollouts]
        with contextlib.suppress(LeaseLost):  # too late: they are delivered again, here or to another learner
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
    given = parser.parse_args()
    farm = FarmClient(given.url, given.token, on_wait=lambda why: print("waiting:", why, file=sys.stderr))
    try:
        with farm:
            print(json.dumps(learn(farm, given.run, given.consumer)))
    except (FarmError, KeyboardInterrupt) as error:
        raise SystemExit(f"error: {str(error) or 'interrupted'}") from None


if __name__ == "__main__":
    main()
