"""The cost of effort, with a marginal price that falls as effort grows."""

import math

_MIN_EXPONENT = 1e-12


def effort_cost(x: float, k: float, q: float) -> float:
    """Return ``C(x) = ((1 + kx)^(1-q) - 1) / (k(1-q))``, or its limit ``ln(1 + kx) / k`` at q = 1.

    Requires ``x`` ≥ 0, ``k`` > 0 and ``q`` ≥ 0; ``k`` has the inverse unit of ``x``. C(0) = 0 and C'(0) = 1. C grows
    with x and is at most x. It is x if q = 0, and below 1 / (k(q-1)) if q > 1.
    """
    log_growth = math.log1p(k * x)
    power = 1.0 - q
    if abs(power) * log_growth < _MIN_EXPONENT:
        return log_growth / k
    return math.expm1(power * log_growth) / (k * power)
