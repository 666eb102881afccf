"""Hold the Prometheus series of the scheduler's process in one registry.

The gateway and each node agent have a registry too. The page is farm/docs/metrics.md.
"""

from farm.scheduler.metrics.farm_metrics import FarmMetrics
from farm.scheduler.metrics.gauges import FarmSnapshot

__all__ = ["FarmMetrics", "FarmSnapshot"]
