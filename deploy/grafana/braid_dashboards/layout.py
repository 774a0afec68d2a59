"""Builds dashboards from panels: rows, variables and links."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model

from braid_dashboards.panels import DATASOURCE
from braid_dashboards.queries import select

TAG = "braid"

# Panels by the title of their row.
Rows = dict[str, list[Any]]


def build(
    uid: str,
    title: str,
    description: str,
    rows: Rows,
    variables: tuple[dashboard.QueryVariable, ...] = (),
) -> model.Dashboard:
    """Builds a dashboard. uid: part of the dashboard's URL; must not change."""
    board = dashboard.Dashboard(title).uid(uid).description(description).tags([TAG]).editable()
    board.time("now-1h", "now").refresh("30s").timezone("browser")
    board.tooltip(model.DashboardCursorSync.CROSSHAIR).link(_others())
    for variable in (_datasource(), *_servers(), *variables):
        board.with_variable(variable)
    number = 0
    for row, panels in rows.items():
        number += 1
        board.with_row(dashboard.Row(row).id(number))
        for panel in panels:
            number += 1
            board.with_panel(panel.id(number))
    return board.build()


def choice(name: str, label: str, metric: str) -> dashboard.QueryVariable:
    """Makes a variable with the values of label `name` in `metric`, for the selected servers."""
    return _values(name, label, select(metric))


def _datasource() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def _servers() -> tuple[dashboard.QueryVariable, dashboard.QueryVariable]:
    return (
        _values("job", "Job", "braid_build_info"),
        _values("instance", "Server", 'braid_build_info{job=~"$job"}'),
    )


def _values(name: str, label: str, selector: str) -> dashboard.QueryVariable:
    everything = model.VariableOption(True, ["All"], ["$__all"])
    variable = dashboard.QueryVariable(name).label(label).datasource(DATASOURCE)
    variable.query(f"label_values({selector}, {name})").sort(model.VariableSort.NATURAL_ASC)
    variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    # A pattern instead of the list of all values, so that series without the label match.
    return variable.multi(True).include_all(True).all_value(".*").current(everything)


def _others() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("Braid").type(model.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(False).include_vars(True).keep_time(True)
