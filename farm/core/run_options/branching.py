"""Branching: an episode forks before a turn, so that several rollouts of a group share what came before it."""

import random
from dataclasses import dataclass

MOST_LEAVES = 64
"""Limit of the rollouts of one tree, because a tree holds one slot until its last rollout."""


@dataclass(frozen=True, slots=True)
class Branching:
    """The branching of a run. An episode forks into ``siblings`` branches before each of some turns.

    ``turns`` names these turns, which count from 0 and rise. If it is empty, ``depth`` turns are drawn from the first
    ``within`` turns after turn 0, by the seed of each tree.
    """

    siblings: int
    turns: tuple[int, ...] = ()
    depth: int = 1
    within: int = 0

    @property
    def levels(self) -> int:
        """The number of branchings on the way from the first turn to the end of an episode."""
        return len(self.turns) or self.depth

    @property
    def leaves(self) -> int:
        """The number of rollouts of one whole tree."""
        leaves: int = self.siblings**self.levels
        return leaves

    def turns_of(self, seed: int) -> tuple[int, ...]:
        """Return the turns before which a tree branches. Equal seeds give equal turns."""
        if self.turns:
            return self.turns
        drawn = random.Random(f"branching {seed}").sample(range(1, self.within + 1), self.depth)
        return tuple(sorted(drawn))
