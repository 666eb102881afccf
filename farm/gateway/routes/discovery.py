"""Prometheus's discovery of the farm, and the metrics of each node."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse

from farm.gateway.auth import AsViewer
from farm.gateway.errors import ApiError
from farm.gateway.routes.nodes import NodeIdPath, refuse_unknown_node
from farm.gateway.routes.runs import ask_scheduler
from farm.scheduler.client import NodeMetricsSource, NodeMetricsUnavailable, SchedulerClient
from farm.schemas.problems import ProblemType
from farm.schemas.responses import PrometheusTargets

router = APIRouter(tags=["health"])


@router.get("/v1/discovery/prometheus")
async def prometheus_targets(request: Request, role: AsViewer) -> list[PrometheusTargets]:
    """Return the targets of Prometheus's HTTP service discovery: the farm, and each node that is not lost.

    All have the address by which the caller reached the gateway, because the gateway answers for the nodes. While the
    scheduler is away the call fails, and Prometheus keeps the targets that it has.
    """
    scheduler: SchedulerClient = request.app.state.scheduler
    status = await ask_scheduler(scheduler.status())
    address = (request.headers.get("host") or request.url.netloc,)
    farm = PrometheusTargets(targets=address, labels={"__metrics_path__": "/metrics", "source": "farm"})
    nodes = (
        PrometheusTargets(
            targets=address,
            labels={
                "__metrics_path__": f"/metrics/nodes/{node.node_id}",
                "source": "node",
                "instance": node.node_id,
                "node": node.node_id,
            },
        )
        for node in status.present
    )
    return [farm, *nodes]


@router.get("/metrics/nodes/{node_id}", response_class=PlainTextResponse)
async def node_metrics(node_id: NodeIdPath, request: Request, role: AsViewer) -> Response:
    """Return Prometheus text: the series of one node's agent."""
    source: NodeMetricsSource = request.app.state.node_metrics
    try:
        text = await source.read(node_id)
    except NodeMetricsUnavailable as error:
        await refuse_unknown_node(request, node_id)
        raise ApiError(ProblemType.NODE_UNAVAILABLE, str(error), headers={"Retry-After": "1"}) from None
    return Response(text, media_type=CONTENT_TYPE_LATEST)
