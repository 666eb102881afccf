"""Names of metrics, the configuration of Prometheus and the alerts, checked by promtool."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from farm.gateway.routes.health import GatewayMetrics
from farm.node.image_cache import ImageCache
from farm.node.metrics import NodeMetrics
from farm.scheduler.metrics import FarmMetrics
from farm.tasks import TaskBundle
from tests.support.dashboards import DASHBOARDS
from tests.support.pages import ROOT, anchors
from tests.support.services import missing

DEPLOYED = ROOT / "deploy" / "prometheus"
SERIES = re.compile(r"\b(?:farm|process)_[a-z_]+\b")
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
}
PAGE = re.compile(r"(farm/docs/[a-z-]+\.md)#([a-z-]+)")


def promtool(*arguments: str | Path, text: str = "") -> str:
    """Return what promtool says. It fails the test if promtool finds a fault."""
    if shutil.which("promtool") is None:
        missing("promtool", "apt-get install prometheus, or run tests/run.sh")
    done = subprocess.run(["promtool", *map(str, arguments)], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


async def no_image(bundle: TaskBundle) -> None:
    """No image is needed to name the series."""


def test_names_and_types_of_series_are_as_prometheus_asks(tmp_path: Path) -> None:
    node = NodeMetrics()
    node.follow(ImageCache(no_image), None, tmp_path, tmp_path)
    for registry in (FarmMetrics().registry, GatewayMetrics().registry, node.registry):
        text = generate_latest(registry).decode()
        assert promtool("check", "metrics", text=text) == ""
        assert "_created" not in text


def test_series_that_alerts_and_panels_name_exist(tmp_path: Path) -> None:
    node = NodeMetrics()
    node.follow(ImageCache(no_image), None, tmp_path, tmp_path)
    known = {
        f"{family.name}{suffix}"
        for registry in (FarmMetrics().registry, GatewayMetrics().registry, node.registry)
        for family in registry.collect()
        for suffix in SUFFIXES[family.type]
    }
    alerts = {rule["alert"]: str(rule["expr"]) for rule in rules()}
    panels = {
        f"{dashboard.name}: {panel.title}: {legend}": query
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for legend, query in panel.queries.items()
    }
    unknown = {
        where: sorted(names - known)
        for where, query in (alerts | panels).items()
        if (names := set(SERIES.findall(query))) - known
    }
    assert unknown == {}


def test_no_series_has_a_label_that_prometheus_adds(tmp_path: Path) -> None:
    """Prometheus would rename it to ``exported_…``."""
    node = NodeMetrics()
    node.follow(ImageCache(no_image), None, tmp_path, tmp_path)
    added = {"job", "instance", "source"}
    for registry, labels in (
        (FarmMetrics().registry, added),
        (GatewayMetrics().registry, added),
        (node.registry, added | {"node"}),
    ):
        used = {label for collector in registry._collector_to_names for label in getattr(collector, "_labelnames", ())}
        for family in registry.collect():
            used.update(getattr(family, "_labelnames", ()), *(sample.labels for sample in family.samples))
        assert used & labels == set()


def test_configuration_of_prometheus_is_valid(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(DEPLOYED / name, tmp_path)
    (tmp_path / "viewer-token").write_text("a token")
    said = promtool("check", "config", tmp_path / "prometheus.yml")
    assert "SUCCESS: 1 rule files found" in said


def test_alerts_fire_on_faults_alone() -> None:
    assert "SUCCESS" in promtool("test", "rules", DEPLOYED / "alerts_test.yml")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOYED / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_alert_names_the_section_to_read_and_is_tested(rule: dict[str, Any]) -> None:
    found = PAGE.fullmatch(rule["annotations"]["page"])
    assert found is not None
    page, anchor = found.groups()
    assert anchor == str(rule["alert"]).lower()
    assert anchor in anchors(ROOT / page)
    assert re.search(rf'alertname(="|: ){rule["alert"]}\b', (DEPLOYED / "alerts_test.yml").read_text())
