"""Write the files of all dashboards."""

from tests.support.dashboards import DASHBOARDS, as_json, path_of

for dashboard in DASHBOARDS:
    path_of(dashboard).write_text(as_json(dashboard))
