"""Panels of the dashboards."""

from __future__ import annotations

from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, stat
from grafana_foundation_sdk.builders import prometheus, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = model.DataSourceRef("prometheus", "${datasource}")

# Units, by Grafana's names.
SECONDS, PER_SECOND, ROWS_PER_SECOND = "s", "reqps", "rowsps"
RATIO, BYTES, BYTES_PER_SECOND = "percentunit", "bytes", "binBps"
WATTS, CELSIUS, HERTZ, DATE = "watt", "celsius", "hertz", "dateTimeAsIso"
# 1234 as "1.23 K" and as "1234".
PLAIN, EXACT = "short", "none"
STEPS_PER_SECOND, BATCHES_PER_SECOND = "suffix:steps/s", "suffix:batches/s"
PER_MINUTE = "suffix:/min"

GREEN, YELLOW, RED = "green", "orange", "red"

# Thresholds and their colours. Values below the first are green.
Limits = tuple[tuple[float, str], ...]


class Query(NamedTuple):
    expression: str
    # In Grafana's syntax, for example "{{model}}".
    legend: str = ""


def graph(
    title: str,
    unit: str,
    description: str,
    *queries: Query,
    width: int = 8,
    height: int = 9,
    stacked: bool = False,
    most: float | None = None,
    limits: Limits = (),
    dashed: str = "",
    signed: bool = False,
    calcs: tuple[str, ...] = ("mean", "max", "lastNotNull"),
) -> timeseries.Panel:
    """Makes a graph of values over time.

    most: the axis extends to at least this value.
    limits: drawn as dashed lines.
    dashed: regular expression, between slashes, of the series that are drawn as dashed lines.
    signed: the axis may extend below zero.
    calcs: columns of the legend. Without any, the legend is a compact list: for graphs with more
        series than a table has room for.
    """
    legend = common.VizLegendOptions().show_legend(True).calcs(list(calcs))
    mode = looks.LegendDisplayMode.TABLE if calcs else looks.LegendDisplayMode.LIST
    legend.display_mode(mode).placement(looks.LegendPlacement.BOTTOM)
    order = looks.SortOrder.DESCENDING
    tooltip = common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(order)
    panel = _configure(timeseries.Panel(), title, unit, description, width, height)
    panel.legend(legend).tooltip(tooltip).line_width(1)
    panel.show_points(looks.VisibilityMode.NEVER).fill_opacity(30 if stacked else 8)
    if not signed:
        panel.min(0)
    if most is not None:
        panel.axis_soft_max(most)
    if dashed:
        line = model.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
        panel.override_by_regexp(dashed, [line, model.DynamicConfigValue("custom.fillOpacity", 0)])
    if stacked:
        panel.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL))
    if limits:
        style = looks.GraphThresholdsStyleMode.DASHED
        panel.thresholds(_thresholds(limits))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(style))
    return _query(panel, queries)


def number(
    title: str,
    unit: str,
    description: str,
    query: Query,
    *,
    limits: Limits = (),
    none: str = "-",
    width: int = 4,
) -> stat.Panel:
    """Shows the last value. none: text if there is no value."""
    panel = _configure(stat.Panel(), title, unit, description, width, height=4)
    panel.graph_mode(looks.BigValueGraphMode.NONE).color_mode(looks.BigValueColorMode.VALUE)
    panel.reduce_options(_last()).thresholds(_thresholds(limits)).no_value(none)
    return _query(panel, (query,))


def bars(
    title: str,
    unit: str,
    description: str,
    *queries: Query,
    most: float,
    limits: Limits = (),
    width: int = 8,
    height: int = 9,
) -> bargauge.Panel:
    """Shows the last value of each series as a bar; `most` is the full length."""
    panel = _configure(bargauge.Panel(), title, unit, description, width, height)
    panel.text(common.VizTextDisplayOptions().title_size(14).value_size(24))
    panel.display_mode(looks.BarGaugeDisplayMode.GRADIENT).reduce_options(_last())
    panel.orientation(looks.VizOrientation.HORIZONTAL).min(0).max(most)
    panel.thresholds(_thresholds(limits))
    return _query(panel, queries)


def states(
    title: str,
    description: str,
    query: Query,
    *,
    zero: tuple[str, str],
    one: tuple[str, str],
    none: str = "No data",
    width: int = 12,
) -> statetimeline.Panel:
    """Shows 0 and 1 of each series over time.

    zero, one: word and colour.
    none: text if there is no series.
    """
    words = {
        str(value): model.ValueMappingResult(text=text, color=color)
        for value, (text, color) in enumerate((zero, one))
    }
    panel = _configure(statetimeline.Panel(), title, PLAIN, description, width, height=9)
    panel.legend(common.VizLegendOptions().show_legend(True).placement(looks.LegendPlacement.BOTTOM)
                 .display_mode(looks.LegendDisplayMode.LIST)).no_value(none)  # fmt: skip
    panel.mappings([model.ValueMap(words)]).show_value(looks.VisibilityMode.NEVER)
    panel.thresholds(_thresholds(())).merge_values(True)
    return _query(panel, (query,))


def spread(
    title: str, unit: str, description: str, query: Query, *, width: int = 8
) -> heatmap.Panel:
    """Makes a heatmap of a histogram's buckets. `query` groups by `le`."""
    scheme = heatmap.HeatmapColorOptions().mode(heatmap_model.HeatmapColorMode.SCHEME)
    panel = _configure(heatmap.Panel(), title, unit, description, width, height=9)
    panel.color(scheme.scheme("Blues").steps(64)).calculate(False)
    panel.y_axis(heatmap.YAxisConfig().unit(unit))
    return _query(panel, (query,), PromQueryFormat.HEATMAP)


def listing(
    title: str,
    description: str,
    columns: dict[str, tuple[str, str]],
    *queries: Query,
    width: int = 12,
    height: int = 9,
) -> table.Panel:
    """Makes a table with a row per set of labels and a column per query.

    columns: labels and values to show, in order, mapped to heading and unit. Values are named
    "Value #A", "Value #B" and so on by query, or "Value" for a single query.
    """
    panel = _configure(table.Panel(), title, PLAIN, description, width, height)
    panel.show_header(True).frame_index(0).align(looks.FieldTextAlignment.AUTO).inspect(False)
    panel.cell_options(looks.TableAutoCellOptions())
    panel.with_transformation(model.DataTransformerConfig("merge", options={}))
    shown = {
        "includeByName": {name: True for name in columns},
        "indexByName": {name: index for index, name in enumerate(columns)},
        "renameByName": {name: heading for name, (heading, _) in columns.items()},
    }
    panel.with_transformation(model.DataTransformerConfig("organize", options=shown))
    for heading, unit in columns.values():
        panel.override_by_name(heading, [model.DynamicConfigValue("unit", unit)])
    return _query(panel, queries, PromQueryFormat.TABLE)


def _configure(panel: Any, title: str, unit: str, text: str, width: int, height: int) -> Any:
    panel.title(title).description(text).unit(unit).datasource(DATASOURCE)
    return panel.span(width).height(height)


def _query(
    panel: Any, queries: tuple[Query, ...], form: PromQueryFormat = PromQueryFormat.TIME_SERIES
) -> Any:
    for letter, (expression, legend) in zip("ABCDEFGH", queries, strict=False):
        target = prometheus.Dataquery().expr(expression).legend_format(legend or "__auto")
        target.ref_id(letter).datasource(DATASOURCE).format(form)
        panel.with_target(target.instant() if form is PromQueryFormat.TABLE else target.range())
    return panel


def _thresholds(limits: Limits) -> dashboard.ThresholdsConfig:
    steps = [model.Threshold(None, GREEN), *(model.Threshold(*limit) for limit in limits)]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])
