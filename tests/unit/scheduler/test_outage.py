"""Why a run stands still although its episodes run: their policy's endpoint, as the nodes tell it."""

from dataclasses import replace

from farm.scheduler.messages import NodeLost, RunSubmitted
from farm.scheduler.state_machine import Scheduler
from tests.support.farm.scheduler_values import beat, run_spec


def test_outage_lasts_while_a_node_reports_it() -> None:
    scheduler = Scheduler()
    scheduler.handle(RunSubmitted(run_spec("r")), 0.0)
    scheduler.handle(beat("quiet"), 0.0)
    assert scheduler.outage("r") == ""
    out = replace(beat("n"), outages={"r": "http://h answers 503"})
    scheduler.handle(out, 1.0)
    assert scheduler.outage("r") == "http://h answers 503"
    assert scheduler.outage("other") == ""
    scheduler.handle(beat("n"), 2.0)
    assert scheduler.outage("r") == ""
    scheduler.handle(out, 3.0)
    scheduler.handle(NodeLost("n"), 4.0)
    assert scheduler.outage("r") == ""
