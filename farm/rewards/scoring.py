"""From raw components to a reward; pure."""

import math
from collections.abc import Mapping
from dataclasses import replace

from farm.core.rollout import Rollout
from farm.rewards.components import EFFORT
from farm.rewards.effort import effort_cost
from farm.rewards.rules import Effort, RewardGate, Rules, Transform


class Unscored(ValueError):
    """There is no reward by any rules: a component is no finite number."""


def score(components: Mapping[str, float], rules: Rules) -> float:
    """A finite number, whatever the rules, and whatever finite numbers the components are. Raises Unscored."""
    endless = next((name for name, value in components.items() if not math.isfinite(value)), None)
    if endless is not None:
        raise Unscored(f"the component {endless[:100]} is {components[endless]}, and no finite number")
    known = dict(components)
    if rules.effort is not None:
        known[EFFORT] = _effort(components, rules.effort)
    total = math.fsum(
        weight * _transformed(known.get(name), rules.transforms.get(name, _AS_IT_IS))
        for name, weight in rules.weights.items()
        if _counts(name, components, rules.gate)
    )
    if rules.clip.min is not None:
        total = max(total, rules.clip.min)
    return total if rules.clip.max is None else min(total, rules.clip.max)


def apply_rules(rollout: Rollout, rules: Rules) -> Rollout:
    """The rollout with its reward by ``rules``; one that nothing was judged of stays without, whatever they say.

    Raises Unscored.
    """
    reward = None if rollout.reward is None else score(rollout.reward_components, rules)
    return replace(rollout, reward=reward, reward_version=rules.version)


_AS_IT_IS = Transform()
_MOST = 1e12
"""So far from 0 a component counts, whoever measured it and whatever it is divided by."""


def _counts(name: str, components: Mapping[str, float], gate: RewardGate | None) -> bool:
    if gate is None or name in gate.otherwise:
        return True
    found = components.get(gate.component)
    return found is not None and found >= gate.at_least


def _transformed(value: float | None, transform: Transform) -> float:
    if value is None:
        return transform.missing or 0.0
    value = _bounded(value)
    if transform.over is not None:
        value = max(0.0, value - transform.over)
    value = _bounded(value / transform.per)
    return value if transform.cap is None else min(value, transform.cap)


def _effort(components: Mapping[str, float], effort: Effort) -> float:
    counts = effort.weights.model_dump()
    spent = math.fsum(weight * _bounded(components.get(f"effort_{name}", 0.0)) for name, weight in counts.items())
    return effort_cost(max(0.0, spent), effort.k, effort.q)


def _bounded(value: float) -> float:
    return min(max(value, -_MOST), _MOST)
