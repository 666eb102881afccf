"""How long a learner sandbox lives."""

import pytest

from farm.learner_sandboxes.lifetime import IDLE_S, Lifetime


def life(*, idle_s: float = 100.0, timeout_s: float = 1000.0) -> Lifetime:
    return Lifetime.begin(0.0, idle_s=idle_s, timeout_s=timeout_s)


def test_call_prolongs_the_life() -> None:
    one = life()
    assert one.expires_at(50.0) == 100.0
    one.call_began(50.0)
    one.call_ended(70.0)
    assert one.expires_at(80.0) == 170.0
    assert not one.is_over(169.0)
    assert one.is_over(170.0)


def test_running_call_keeps_sandbox_from_idling() -> None:
    one = life()
    one.call_began(10.0)
    one.call_began(20.0)
    one.call_ended(30.0)
    assert not one.is_over(500.0)
    one.call_ended(500.0)
    assert one.expires_at(500.0) == 600.0


def test_timeout_ends_also_a_busy_sandbox() -> None:
    one = life()
    one.call_began(10.0)
    assert one.is_over(1000.0)
    assert one.reason(1000.0) == "it reaches its timeout_s"


def test_drain_stops_calls_from_prolonging_life() -> None:
    one = life()
    one.drain(50.0)
    one.drain(120.0)
    one.call_began(140.0)
    assert one.expires_at(140.0) == 150.0
    assert one.reason(140.0) == "its node drains"
    one.resume()
    assert one.expires_at(140.0) == 240.0


def test_drain_does_not_wait_for_long_idle_time() -> None:
    one = life(idle_s=5000.0, timeout_s=9000.0)
    one.drain(50.0)
    assert one.expires_at(60.0) == 50.0 + IDLE_S


@pytest.mark.parametrize(("now", "warning"), [(80.0, ""), (81.0, "the sandbox expires in 19 s, when it has no calls")])
def test_warning_comes_with_last_fifth(now: float, warning: str) -> None:
    found = life().warning(now)
    assert found.startswith(warning)
    assert bool(found) == bool(warning)
