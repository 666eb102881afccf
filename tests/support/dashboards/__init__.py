"""The Grafana dashboards of the farm, from which the files in deploy/grafana/dashboards are made.

.venv/bin/python -m tests.support.dashboards     # writes them
"""

from pathlib import Path

from tests.support.dashboards.farm import FARM
from tests.support.dashboards.grafana import as_json
from tests.support.dashboards.learning import LEARNING
from tests.support.dashboards.node import NODE
from tests.support.dashboards.panels import Dashboard, Panel
from tests.support.dashboards.tasks import TASKS
from tests.support.pages import ROOT

__all__ = ["DASHBOARDS", "Dashboard", "Panel", "as_json", "path_of"]

DASHBOARDS = (FARM, LEARNING, NODE, TASKS)


def path_of(dashboard: Dashboard) -> Path:
    """Return the file of a dashboard."""
    return ROOT / "deploy" / "grafana" / "dashboards" / f"{dashboard.name}.json"
