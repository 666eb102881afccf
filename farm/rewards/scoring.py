"""Computation of a reward from raw components; pure."""

import math
from collections.abc import Mapping
from dataclasses import replace

from farm.core.rollout import Rollout
from farm.rewards.components import EFFORT
from farm.rewards.effort import effort_cost
from farm.rewards.rules import Effort, RewardGate, Rules, Transform


class Unscored(ValueError):
    """No rules can give a reward, because a component is not a finite number."""


def score(components: Mapping[str, float], rules: Rules) -> float:
    """Return the reward by ``rules``; it is finite for all rules and all finite components.

    Raises Unscored if a component is not finite.
    """
    not_finite = next((name for name, value in components.items() if not math.isfinite(value)), None)
    if not_finite is not None:
        raise Unscored(f"the component {not_finite[:100]} is {components[not_finite]}, which is not a finite number")
    values = dict(components)
    if rules.effort is not None:
        values[EFFORT] = _effort(components, rules.effort)
    total = math.fsum(
        weight * _transform(values.get(name), rules.transforms.get(name, _IDENTITY))
        for name, weight in rules.weights.items()
        if _passes_gate(name, components, rules.gate)
    )
    if rules.clip.min is not None:
        total = max(total, rules.clip.min)
    return total if rules.clip.max is None else min(total, rules.clip.max)


def apply_rules(rollout: Rollout, rules: Rules) -> Rollout:
    """Return the rollout with its reward by ``rules``; a rollout that was not judged keeps the reward None.

    Raises Unscored if a component is not finite.
    """
    reward = None if rollout.reward is None else score(rollout.reward_components, rules)
    return replace(rollout, reward=reward, reward_version=rules.version)


BEFORE_RULES = ("tests-1", "retrieval-1")
"""Reward versions from before there were rules. Such a reward is the verifier's, and no component repeats it."""


def score_again(components: Mapping[str, float], reward: float | None, version: str, rules: Rules) -> float:
    """Return the reward by other rules of a rollout that had ``reward`` by the rules ``version``.

    ``reward`` is None if the stored one cannot be used. Raises Unscored if a component is not finite.
    """
    if reward is not None and "verdict" not in components and version in BEFORE_RULES:
        components = {"verdict": reward, **components}
    return score(components, rules)


_IDENTITY = Transform()
_MAX_COMPONENT = 1e12
"""Components are clamped to ±``_MAX_COMPONENT``, before and after the division."""


def _passes_gate(name: str, components: Mapping[str, float], gate: RewardGate | None) -> bool:
    if gate is None or name in gate.otherwise:
        return True
    gate_value = components.get(gate.component)
    return gate_value is not None and gate_value >= gate.at_least


def _transform(value: float | None, transform: Transform) -> float:
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
    return min(max(value, -_MAX_COMPONENT), _MAX_COMPONENT)
