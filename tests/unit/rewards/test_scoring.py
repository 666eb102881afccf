"""Tests of scoring: the effort formula, the weighted sum, and limits that hold for all rules."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from farm.rewards import BadRules, Unscored, apply_rules, default_rules, effort_cost, parse_rules, score
from farm.rewards.components import COMPONENTS, EFFORT
from tests.support.rollouts import make_rollout

amounts = st.just(0.0) | st.floats(1e-6, 1e9)
ks = st.floats(1e-6, 1e3)
qs = st.floats(0, 10)
numbers = st.floats(allow_nan=False, allow_infinity=False)
vectors = st.dictionaries(st.sampled_from(sorted(COMPONENTS)), numbers)


@given(amounts, ks, qs)
def test_effort_cost_lies_between_zero_and_amount(x: float, k: float, q: float) -> None:
    assert 0 <= effort_cost(x, k, q) <= x * (1 + 1e-9)


@given(amounts, amounts, ks, qs)
def test_more_work_never_has_lower_cost(x: float, y: float, k: float, q: float) -> None:
    less, more = sorted((x, y))
    assert effort_cost(less, k, q) <= effort_cost(more, k, q) * (1 + 1e-9)


@given(amounts, ks, qs, qs)
def test_larger_q_never_raises_cost(x: float, k: float, p: float, q: float) -> None:
    smaller, larger = sorted((p, q))
    assert effort_cost(x, k, larger) <= effort_cost(x, k, smaller) * (1 + 1e-6)


@given(amounts, ks, st.floats(0, 1e-5))
def test_effort_cost_is_continuous_at_q_one(x: float, k: float, step: float) -> None:
    limit = math.log1p(k * x) / k
    slope = math.log1p(k * x)
    for q in (1 - step, 1 + step):
        assert effort_cost(x, k, q) == pytest.approx(limit, rel=1e-9 + slope * step)


@given(amounts, ks, qs)
def test_effort_cost_equals_formula_away_from_one(x: float, k: float, q: float) -> None:
    assume(abs(1 - q) > 0.01)
    plain = ((1 + k * x) ** (1 - q) - 1) / (k * (1 - q))
    assert effort_cost(x, k, q) == pytest.approx(plain, rel=1e-6, abs=1e-9 / k)


def test_effort_cost_at_reference_points() -> None:
    assert effort_cost(7.0, 0.5, 0.0) == pytest.approx(7.0)
    assert effort_cost(3.0, 1.0, 0.5) == pytest.approx(2 * (math.sqrt(4) - 1))
    assert effort_cost(1e12, 0.5, 2.0) == pytest.approx(2.0)
    assert effort_cost(0.0, 1.0, 1.0) == 0.0


@given(vectors)
def test_default_rules_give_verdict_as_reward(components: dict[str, float]) -> None:
    assume(abs(components.get("verdict", 0.0)) <= 1e6)  # as the parser of reward files has it
    assert score(components, default_rules()) == components.get("verdict", 0.0)


RICH = parse_rules("""
name = "rich"
[weights]
verdict = 1.0
style_new = -0.02
effort = -0.1
diff_added = -0.001
misuse_malformed = -0.05
plugin.length.words = 0.5
[transforms.style_new]
over = 2.0
cap = 10.0
[transforms.diff_added]
over = 100
per = 50
[transforms.misuse_malformed]
missing = 3.0
[effort]
k = 0.01
q = 1
weights = { completion_tokens = 1, calls = 10 }
[gate]
component = "resolved"
otherwise = ["verdict", "misuse_malformed"]
[clip]
min = -1
max = 1
""")


@given(vectors)
@example({"effort_calls": 1.7e307})
@example(dict.fromkeys(COMPONENTS, -1.7e308))
def test_any_components_give_finite_reward_within_clip(components: dict[str, float]) -> None:
    assert -1 <= score(components, RICH) <= 1
    assert math.isfinite(score(components, RICH.model_copy(update={"clip": type(RICH.clip)()})))


PLUGIN = "plugin.length.words"
weighable = st.sampled_from([*COMPONENTS, PLUGIN])
amount = st.floats(-1e12, 1e12)
weight = st.floats(-1e6, 1e6)
price = st.floats(0, 1e6)
divisor = st.floats(0, 1e12)
"""Includes values that are too near to 0 to be accepted."""


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Generate rule documents with all tables and with numbers up to their limits."""
    weights = draw(st.dictionaries(weighable, weight, min_size=1, max_size=8))
    counted = [f"turns = {draw(price)!r}", f"completion_tokens = {draw(price)!r}"]
    effort = draw(st.booleans())
    lines = ['name = "any"', "[weights]", *(f'"{name}" = {value!r}' for name, value in weights.items())]
    if effort:
        lines.append(f"{EFFORT} = {draw(weight)!r}")
    for name in weights:
        keys = draw(
            st.fixed_dictionaries({}, optional={"over": amount, "per": divisor, "cap": amount, "missing": amount})
        )
        lines += [f'[transforms."{name}"]', *(f"{key} = {value!r}" for key, value in keys.items())]
    if effort:
        k, q = draw(st.floats(0, 1e6)), draw(st.floats(0, 10))
        lines += ["[effort]", f"k = {k!r}", f"q = {q!r}", f"weights = {{ {', '.join(counted)} }}"]
    if draw(st.booleans()):
        kept = ", ".join(f'"{name}"' for name in draw(st.lists(st.sampled_from(sorted(weights)))))
        lines += ["[gate]", f'component = "{draw(weighable)}"', f"at_least = {draw(amount)!r}", f"otherwise = [{kept}]"]
    lines += ["[clip]", *(f"{end} = {draw(amount)!r}" for end in ("min", "max") if draw(st.booleans()))]
    return "\n".join(lines)


@given(documents(), st.dictionaries(weighable, numbers))
@example('name = "a"\n[weights]\nverdict = 1.0\n[transforms.verdict]\nper = 1e-310\n', {"verdict": 1.0})
@example('name = "a"\n[weights]\nverdict = 0.0\n[transforms.verdict]\nper = 1e-6\n', {"verdict": 1.7e308})
def test_accepted_rules_give_finite_reward(document: str, components: dict[str, float]) -> None:
    try:
        rules = parse_rules(document)
    except BadRules as refused:
        assume("per" not in str(refused) and "effort.k" not in str(refused) and "above max" not in str(refused))
        raise
    assert math.isfinite(score(components, rules))


@pytest.mark.parametrize("endless", [math.inf, -math.inf, math.nan])
def test_component_that_is_not_finite_raises(endless: float) -> None:
    with pytest.raises(Unscored, match=r"audit_tests is -?(inf|nan)"):
        score({"verdict": 1.0, "audit_tests": endless}, default_rules())


def test_each_part_of_rules_changes_reward() -> None:
    solved = {"verdict": 1.0, "resolved": 1.0, "misuse_malformed": 0.0}
    assert score(solved, RICH) == 1.0
    assert score({**solved, "style_new": 2.0}, RICH) == 1.0, "two are free"
    assert score({**solved, "style_new": 5.0}, RICH) == pytest.approx(1 - 0.02 * 3)
    assert score({**solved, "style_new": 99.0}, RICH) == pytest.approx(1 - 0.02 * 10)
    assert score({**solved, "diff_added": 150.0}, RICH) == pytest.approx(1 - 0.001)
    assert score({**solved, "plugin.length.words": -1.0}, RICH) == pytest.approx(0.5)
    worked = {**solved, "effort_completion_tokens": 90.0, "effort_calls": 1.0}
    assert score(worked, RICH) == pytest.approx(max(-1, 1 - 0.1 * math.log1p(1.0) / 0.01))
    del solved["misuse_malformed"]
    assert score(solved, RICH) == pytest.approx(1 - 0.05 * 3), "what is missing counts as the rules say"


def test_failed_gate_counts_only_named_components() -> None:
    failed = {"verdict": 0.0, "resolved": 0.0, "misuse_malformed": 2.0, "style_new": 50.0, "plugin.length.words": 9.0}
    assert score(failed, RICH) == pytest.approx(-0.1)
    assert score({"misuse_malformed": 2.0}, RICH) == pytest.approx(-0.1), "nothing known of it is not enough"


def test_unjudged_rollout_stays_unjudged_under_any_rules() -> None:
    generous = parse_rules('name = "generous"\n[weights]\nverdict = 1\n[transforms.verdict]\nmissing = 5\n')
    lost = make_rollout(reward=None)
    assert apply_rules(lost, generous).reward is None
    assert apply_rules(lost, generous).reward_version == generous.version
    judged = replace(make_rollout(), reward_components={})
    assert apply_rules(judged, generous).reward == 5.0
