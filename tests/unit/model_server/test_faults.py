"""Fault plans: which requests they hit, and documents that are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from farm.model_server.faults import Fault, FaultDocument, Faults


def kinds(faults: Faults, number: int) -> list[str | None]:
    taken = [faults.take() for _ in range(number)]
    return [fault.kind if fault else None for fault in taken]


def planned(*faults: dict[str, Any]) -> Faults:
    plan = Faults()
    plan.add([Fault.model_validate(fault) for fault in faults])
    return plan


def test_next_hits_the_first_requests() -> None:
    assert kinds(planned({"kind": "hang", "next": 2}), 4) == ["hang", "hang", None, None]


def test_every_hits_each_kth_request() -> None:
    assert kinds(planned({"kind": "garbage", "every": 3}), 6) == [None, None, "garbage"] * 2


def test_probability_hits_by_its_seed() -> None:
    fault = {"kind": "garbage", "probability": 0.5, "seed": 4}
    first = kinds(planned(fault), 200)
    assert first == kinds(planned(fault), 200)
    assert 70 < first.count("garbage") < 130
    assert kinds(planned({"kind": "garbage", "probability": 0.0}), 9) == [None] * 9


def test_first_planned_fault_wins_and_is_counted() -> None:
    plan = planned({"kind": "hang", "next": 1}, {"kind": "garbage", "next": 1})
    assert kinds(plan, 3) == ["hang", "garbage", None]
    document = plan.document()
    assert [(fault["kind"], fault["seen"], fault["hits"]) for fault in document["faults"]] == [
        ("hang", 3, 1),
        ("garbage", 2, 1),
    ]
    plan.clear()
    assert plan.document() == {"faults": [], "injected": {"hang": 1, "garbage": 1}}


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"kind": "hang"}, "exactly one of"),
        ({"kind": "hang", "next": 1, "every": 2}, "exactly one of"),
        ({"kind": "hang", "next": 0}, "greater than 0"),
        ({"kind": "hang", "next": 1, "seconds": 3}, "has no seconds"),
        ({"kind": "status", "next": 1}, "needs status"),
        ({"kind": "status", "status": 418, "next": 1}, "429, 500 or 503"),
        ({"kind": "stall", "seconds": 1, "next": 1}, "needs after_tokens"),
        ({"kind": "hang", "next": 1, "seed": 3}, "seed belongs to probability"),
        ({"kind": "hang", "next": 1, "wait": 3}, "Extra inputs"),
        ({"kind": "sleep", "next": 1}, "Input should be"),
    ],
)
def test_wrong_documents_are_refused(fault: dict[str, Any], cause: str) -> None:
    with pytest.raises(ValidationError, match=cause):
        FaultDocument.model_validate({"faults": [fault]})
