"""The assignment and the journals of an episode that a benchmark runs without a scheduler."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from farm.core.harness import DEFAULT_HARNESS, Harness
from farm.core.rollout import Split
from farm.core.run import EpisodeAssignment, EpisodeLimits, PolicySpec, group_id, rollout_id
from farm.episode import JournalDirectory
from farm.tasks import TaskBundle, task_ref

_LIMITS = EpisodeLimits()


def make_assignment(
    bundle: TaskBundle,
    number: int,
    policy: PolicySpec,
    limits: EpisodeLimits = _LIMITS,
    harness: Harness = DEFAULT_HARNESS,
) -> EpisodeAssignment:
    """Return the assignment of an episode in a group of its own. ``number`` is its seed, and part of its ids."""
    group = group_id("bench", number)
    return EpisodeAssignment(
        rollout_id=rollout_id(group, 0),
        attempt=0,
        final=True,
        run_id="bench",
        group_id=group,
        group_index=0,
        group_size=1,
        task=task_ref(bundle),
        split=Split.EVAL,
        policy=policy,
        limits=limits,
        seed=number,
        harness=harness,
    )


@asynccontextmanager
async def temporary_journals() -> AsyncIterator[JournalDirectory]:
    """Yield a directory of journals, which is removed at the end."""
    with TemporaryDirectory(prefix="farm-journals-") as directory:
        yield JournalDirectory(Path(directory))
