"""The gateway put together."""

from fastapi import FastAPI

import farm
from farm.config import Config
from farm.gateway import health, leases, refusals, rollouts, runs
from farm.gateway.auth import Gatekeeper
from farm.gateway.intake import Intake
from farm.gateway.scheduler_port import SchedulerPort
from farm.gateway.tasksets import Prepare
from farm.store import Store


def make_app(store: Store, scheduler: SchedulerPort, config: Config, *, prepare: Prepare) -> FastAPI:
    """The ASGI application. It opens and closes nothing: store and scheduler belong to the caller."""
    app = FastAPI(
        title="farm",
        version=farm.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    app.state.store = store
    app.state.scheduler = scheduler
    app.state.config = config
    app.state.prepare = prepare
    app.state.series = health.Series()
    refusals.install(app)
    for router in (health.router, runs.router, leases.router, rollouts.router):
        app.include_router(router)
    app.add_middleware(Intake, gatekeeper=Gatekeeper(config.tokens))
    app.add_middleware(health.Counted, series=app.state.series)
    return app
