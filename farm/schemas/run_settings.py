"""Settings of a run that are documents of their own: its agent and its branching."""

import itertools
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, StringConstraints, model_validator

from farm.core.agent import AGENT_NAME, Agent
from farm.core.run_options.branching import MOST_LEAVES, Branching
from farm.schemas.request_body import MOST_ITEMS, NO_NUL, RequestBody, few

AgentName = Annotated[str, StringConstraints(strict=True, pattern=AGENT_NAME)]
_Line = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=4096, pattern=r"^[^\x00\n\r]*$")]
_Argument = Annotated[str, StringConstraints(strict=True, max_length=8192, pattern=NO_NUL)]
_Variable = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class AgentBody(RequestBody):
    """An agent: how it is installed and started. See ``farm.core.agent.Agent``."""

    name: AgentName
    command: Annotated[tuple[_Argument, ...], Field(min_length=1, max_length=MOST_ITEMS), BeforeValidator(few)]
    env: Annotated[dict[_Variable, _Argument], Field(max_length=MOST_ITEMS), BeforeValidator(few)] = Field(
        default_factory=dict
    )
    pip: Annotated[tuple[_Line, ...], Field(max_length=MOST_ITEMS), BeforeValidator(few)] = ()
    install: Annotated[str, StringConstraints(strict=True, max_length=32_768, pattern=NO_NUL)] = ""
    model: Annotated[str, StringConstraints(strict=True, min_length=1, max_length=256)] = "policy"
    fixed_model: StrictBool = False

    def to_core(self) -> Agent:
        return Agent(**dict(self))


MOST_TURNS = 100_000
MOST_LEVELS = 6
_LATEST = "should be the number of a turn from 1 on, rising turns such as [3, 6], or random"


def _turns(value: Any) -> Any:
    """Return the turns as a tuple, or ``random``. Refuse all else with one message."""
    if value == "random":
        return value
    turns = [value] if isinstance(value, int) else value
    if not isinstance(turns, list | tuple) or not 1 <= len(turns) <= MOST_LEVELS:
        raise ValueError(f"{_LATEST}; at most {MOST_LEVELS} turns are allowed")
    if any(isinstance(turn, bool) or not isinstance(turn, int) or not 1 <= turn <= MOST_TURNS for turn in turns):
        raise ValueError(_LATEST)
    if any(later <= earlier for earlier, later in itertools.pairwise(turns)):
        raise ValueError(f"{_LATEST}; these do not rise")
    return tuple(turns)


class BranchingBody(RequestBody):
    """Branching: an episode forks into ``siblings`` before each of the turns ``at``, which count from 0.

    With ``at: random``, ``depth`` turns are drawn from turn 1 to turn ``within``, for each tree.
    """

    siblings: Annotated[StrictInt, Field(ge=2, le=MOST_LEAVES)]
    at: Annotated[Literal["random"] | tuple[StrictInt, ...], BeforeValidator(_turns)]
    depth: Annotated[StrictInt, Field(ge=1, le=MOST_LEVELS)] | None = None
    within: Annotated[StrictInt, Field(ge=1, le=MOST_TURNS)] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.at != "random" and (self.depth is not None or self.within is not None):
            raise ValueError("depth and within belong to at: random; leave them out if at names turns")
        if self.at == "random" and self.within is None:
            raise ValueError("at: random needs within, the last turn that may be drawn")
        if (self.within or MOST_TURNS) < (self.depth or 1):
            raise ValueError(f"{self.depth} turns cannot be drawn from {self.within}; lower depth or raise within")
        leaves = self.to_core().leaves
        if leaves > MOST_LEAVES:
            raise ValueError(
                f"{leaves} rollouts of one tree are too many, at most {MOST_LEAVES} are allowed; "
                "lower siblings or the number of turns"
            )
        return self

    def to_core(self) -> Branching:
        turns = () if self.at == "random" else self.at
        return Branching(self.siblings, turns, self.depth or 1, self.within or 0)

    def check_run(self, group_size: int, max_turns: int | None, *, has_agent: bool) -> None:
        """Raise ValueError if the episodes of a run cannot branch like this."""
        branching = self.to_core()
        if has_agent:
            raise ValueError(
                "branching needs the farm's own turn loop, because the state of an agent cannot be copied; "
                "leave out branching or agent"
            )
        if group_size % branching.leaves:
            raise ValueError(
                f"group_size is {group_size}, but one tree has {branching.leaves} rollouts; "
                f"make group_size a multiple of {branching.leaves}"
            )
        last = max(branching.turns, default=branching.within)
        if max_turns is not None and last >= max_turns:
            raise ValueError(
                f"branching before turn {last} leaves no turn to the branches, because max_turns is {max_turns} "
                "and turns count from 0; branch earlier or raise max_turns"
            )
