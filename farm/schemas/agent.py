"""The document of an agent, as the field ``agent`` of a run."""

from typing import Annotated

from pydantic import BeforeValidator, Field, StrictBool, StringConstraints

from farm.core.agent import AGENT_NAME, Agent
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
