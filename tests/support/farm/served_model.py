"""The model server on a free port of the loopback, in the event loop of the test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from farm.model_server import Engine, EngineConfig, Fault, Faults, ServerConfig, listen, make_app, running_engine
from farm.model_server import serving as serving_app


@dataclass(frozen=True, slots=True)
class ServedModel:
    """``url`` has no ``/v1``."""

    url: str
    engine: Engine
    faults: Faults

    def plan(self, **fault: object) -> None:
        """Plan one fault."""
        self.faults.add([Fault.model_validate(fault)])


@asynccontextmanager
async def serving(
    dialect: str = "vllm", config: EngineConfig | None = None, *, api_key: str | None = None
) -> AsyncIterator[ServedModel]:
    """Serve a model for the length of the block."""
    faults = Faults()
    async with running_engine(config or EngineConfig()) as engine:
        app = make_app(engine, ServerConfig(dialect, api_key), faults)
        async with serving_app(app, engine, listen("127.0.0.1", 0)) as url:
            yield ServedModel(url, engine, faults)
