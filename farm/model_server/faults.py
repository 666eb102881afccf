"""Faults on demand: which request fails, and how. A document posted to ``/faults`` plans them."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from farm.model_server.generation import Disturbance

Kind = Literal["status", "garbage", "hang", "delay", "stall", "drop_before", "drop_during", "abort", "slow_tokens"]

_NEEDED: Mapping[str, tuple[str, ...]] = {
    "status": ("status",),
    "delay": ("seconds",),
    "stall": ("seconds", "after_tokens"),
    "abort": ("after_tokens",),
    "slow_tokens": ("latency_ms",),
}
_OPTIONAL: Mapping[str, tuple[str, ...]] = {"status": ("retry_after_s",), "drop_during": ("after_tokens",)}
_OPTIONS = ("status", "retry_after_s", "seconds", "after_tokens", "latency_ms")
_TRIGGERS = ("next", "every", "probability")


class Fault(BaseModel):
    """One kind of fault and the requests that it hits: the ``next`` N, ``every`` k-th, or each with a ``probability``.

    - ``status``: answer ``status`` (429, 500 or 503), with ``Retry-After`` if ``retry_after_s`` is set
    - ``garbage``: answer 200 with a body that is not JSON
    - ``hang``: answer nothing until the client leaves
    - ``delay``: answer nothing for ``seconds``, then normally
    - ``stall``: sample nothing for ``seconds`` after ``after_tokens``
    - ``drop_before``: close the connection without an answer
    - ``drop_during``: close it in the middle of the answer; a stream after ``after_tokens``
    - ``abort``: end the reply after ``after_tokens`` with the finish reason ``abort``
    - ``slow_tokens``: sample one token in ``latency_ms``
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    status: Literal[429, 500, 503] | None = None
    retry_after_s: Annotated[int, Field(ge=0)] | None = None
    seconds: Annotated[float, Field(ge=0, le=86_400)] | None = None
    after_tokens: PositiveInt | None = None
    latency_ms: Annotated[float, Field(ge=0, le=60_000)] | None = None
    next: PositiveInt | None = None
    every: PositiveInt | None = None
    probability: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None

    @model_validator(mode="after")
    def _options_fit(self) -> "Fault":
        needed, optional = _NEEDED.get(self.kind, ()), _OPTIONAL.get(self.kind, ())
        missing = [name for name in needed if getattr(self, name) is None]
        foreign = [name for name in _OPTIONS if getattr(self, name) is not None and name not in (*needed, *optional)]
        triggers = [name for name in _TRIGGERS if getattr(self, name) is not None]
        if missing:
            raise ValueError(f"a fault of kind {self.kind} needs {', '.join(missing)}")
        if foreign:
            raise ValueError(f"a fault of kind {self.kind} has no {', '.join(foreign)}")
        if len(triggers) != 1:
            raise ValueError(f"exactly one of {', '.join(_TRIGGERS)} is needed, got {len(triggers)}")
        if self.seed is not None and self.probability is None:
            raise ValueError("seed belongs to probability")
        return self

    def disturbance(self) -> Disturbance:
        """Return the fault's part inside the engine."""
        match self.kind:
            case "stall":
                return Disturbance(stall_after=self.after_tokens, stall_s=self.seconds or 0.0)
            case "abort":
                return Disturbance(abort_after=self.after_tokens)
            case "slow_tokens":
                return Disturbance(latency_s=(self.latency_ms or 0.0) / 1000)
            case _:
                return Disturbance()


class FaultDocument(BaseModel):
    model_config = ConfigDict(extra="forbid")

    faults: list[Fault]


@dataclass(slots=True)
class _Planned:
    fault: Fault
    random: random.Random
    seen: int = 0
    hits: int = 0

    def hits_next(self) -> bool:
        """Count one request. Return whether the fault hits it."""
        self.seen += 1
        fault = self.fault
        if fault.next is not None:
            hit = self.hits < fault.next
        elif fault.every is not None:
            hit = self.seen % fault.every == 0
        else:
            hit = self.random.random() < (fault.probability or 0.0)
        self.hits += hit
        return hit


class Faults:
    """The planned faults. ``injected`` counts the faults so far by their kind, also those of earlier plans."""

    def __init__(self) -> None:
        self._planned: list[_Planned] = []
        self.injected: Counter[str] = Counter()

    def add(self, faults: Sequence[Fault]) -> None:
        self._planned += [_Planned(fault, random.Random(fault.seed)) for fault in faults]

    def clear(self) -> None:
        self._planned.clear()

    def take(self) -> Fault | None:
        """Count one request. Return the fault that hits it: of several, the one that was planned first."""
        for planned in self._planned:
            if planned.hits_next():
                self.injected[planned.fault.kind] += 1
                return planned.fault
        return None

    def document(self) -> dict[str, Any]:
        """Return the plan with the number of requests that each fault met and hit."""
        return {
            "faults": [
                {**planned.fault.model_dump(exclude_none=True), "seen": planned.seen, "hits": planned.hits}
                for planned in self._planned
            ],
            "injected": dict(self.injected),
        }
