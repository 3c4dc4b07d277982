"""Builds dashboards in Grafana's JSON: panels, variables, positions on the grid. `dashboards.py` says what they show."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import count
from typing import Any, NamedTuple

from pyrometer.model.states import FAMILIES, STATES

SCHEMA_VERSION = 39  # Grafana 10.4 and later
WIDTH = 24  # columns of Grafana's grid
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


class Query(NamedTuple):
    """An expression, how its series are named in the legend, and whether only its newest value counts."""

    expr: str
    legend: str = ""
    instant: bool = False


class Row(NamedTuple):
    """Panels next to each other under a title, each with its width."""

    title: str
    height: int
    panels: tuple[tuple[int, Json], ...]


def colors() -> dict[str, str]:
    """The color of every state and family on a light background, from colors.css."""
    css = files("pyrometer.render").joinpath("colors.css").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for selectors, color in re.findall(r"^([^{}\n]*) \{ --c: light-dark\((#[0-9a-f]{6}),", css, re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"\.[sf]-(\w+)", selectors), color)
    return found


COLORS = colors()
GOOD, WARN, BAD = COLORS["useful"], COLORS["overhead"], COLORS["waste"]


def _panel(kind: str, title: str, meaning: str, queries: tuple[Query, ...], unit: str, **options: Any) -> Json:
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": SOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "instant": query.instant,
            "range": not query.instant,
            "format": "table" if kind == "table" else "time_series",
        }
        for place, query in enumerate(queries)
    ]
    return {
        "type": kind,
        "title": title,
        "description": meaning,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "options": options,
    }


def steps(*limits: tuple[float, str], first: str = GOOD) -> Json:
    """Colors by limit; `first` applies below all limits."""
    return {
        "mode": "absolute",
        "steps": [{"color": first, "value": None}, *({"color": c, "value": v} for v, c in limits)],
    }


def stat(title: str, meaning: str, expr: str, unit: str, thresholds: Json | None = None, legend: str = "") -> Json:
    """The newest value as one number."""
    panel = _panel(
        "stat",
        title,
        meaning,
        (Query(expr, legend, instant=True),),
        unit,
        reduceOptions={"calcs": ["lastNotNull"], "fields": "", "values": False},
        colorMode="value" if thresholds else "none",
        graphMode="none",
        textMode="name" if legend else "value",
        justifyMode="auto",
        orientation="auto",
    )
    panel["fieldConfig"]["defaults"]["thresholds"] = thresholds or steps(first="text")
    return panel


def over_time(
    title: str,
    meaning: str,
    *queries: Query,
    unit: str,
    stacked: bool = False,
    least: float | None = 0,
    colored: bool = False,
    limits: Json | None = None,
    most: float | None = None,
) -> Json:
    """Series over time. Colored series are named after states."""
    panel = _panel(
        "timeseries",
        title,
        meaning,
        queries,
        unit,
        legend={"displayMode": "table", "placement": "right", "calcs": ["lastNotNull", "max"], "showLegend": True},
        tooltip={"mode": "multi", "sort": "desc"},
    )
    defaults = panel["fieldConfig"]["defaults"]
    defaults["custom"] = {
        "drawStyle": "line",
        "lineWidth": 0 if stacked else 1,
        "fillOpacity": 85 if stacked else 0,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "showPoints": "never",
        "spanNulls": False,  # unknown values are gaps
        "thresholdsStyle": {"mode": "line" if limits else "off"},
    }
    defaults |= {name: value for name, value in (("min", least), ("max", most)) if value is not None}
    if limits:
        defaults["thresholds"] = limits
    if colored:
        panel["fieldConfig"]["overrides"] = [
            {
                "matcher": {"id": "byName", "options": name},
                "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": COLORS[name]}}],
            }
            for name in (*(state.name for state in STATES), *FAMILIES)
        ]
    return panel


def table(title: str, meaning: str, *queries: Query, unit: str, columns: dict[str, tuple[str, str]]) -> Json:
    """A row a combination of labels. `columns` say what the value of each query is called, and its unit; one without a
    name is not shown: it brings its labels."""
    panel = _panel("table", title, meaning, queries, unit, showHeader=True, cellHeight="sm", sortBy=_first(columns))
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True, **{value: True for value, (name, _) in columns.items() if not name}},
                "renameByName": {value: name for value, (name, _) in columns.items() if name},
            },
        },
    ]
    panel["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": kind}]}
        for name, kind in columns.values()
        if name
    ]
    return panel


def _first(columns: dict[str, tuple[str, str]]) -> list[Json]:
    return [{"displayName": next(iter(columns.values()))[0], "desc": True}]


def variable(name: str, metric: str, meaning: str, *, label: str = "", chosen: str = "") -> Json:
    """What the viewer chooses: values of a label of a metric, at first all of them or the one that is given."""
    return {
        "name": name,
        "type": "query",
        "label": name,
        "description": meaning,
        "datasource": SOURCE,
        "query": {"query": f"label_values({metric}, {label or name})", "refId": name},
        "refresh": 2,  # when the time changes, too
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": [chosen or "All"], "value": [chosen or "$__all"]},
    }


def dashboard(uid: str, title: str, meaning: str, variables: tuple[Json, ...], rows: tuple[Row, ...]) -> Json:
    """Rows of panels, from top to bottom."""
    numbers, y, panels = count(1), 0, []
    for row in rows:
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        panels.append(
            {"id": next(numbers), "type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": place}
        )
        x, y = 0, y + 1
        for width, panel in row.panels:
            panels.append({"id": next(numbers), **panel, "gridPos": {"x": x, "y": y, "w": width, "h": row.height}})
            x += width
        y += row.height
    source = {
        "name": "datasource",
        "type": "datasource",
        "label": "data source",
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "multi": False,
        "includeAll": False,
        "hide": 0,
        "current": {},
    }
    links = [
        {
            "title": "Pyrometer",
            "type": "dashboards",
            "tags": ["pyrometer"],
            "asDropdown": True,
            "keepTime": True,
            "includeVars": True,
            "targetBlank": False,
            "icon": "external link",
            "tooltip": "",
            "url": "",
        }
    ]
    return {
        "uid": uid,
        "title": title,
        "description": meaning,
        "tags": ["pyrometer"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "id": None,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "1m",
        "time": {"from": "now-12h", "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "weekStart": "",
        "links": links,
        "annotations": {"list": []},
        "templating": {"list": [source, *variables]},
        "panels": panels,
    }
