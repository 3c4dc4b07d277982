"""The dashboards: the files match the code, have the format of Grafana, and use existing metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards import DASHBOARDS, prometheus_rule, text
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from grafana_panels import COLORS, WIDTH

from pyrometer.model.states import FAMILIES, STATES

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = {"short", "percentunit", "currencyUSD", "s", "bytes", "ops", "bool_yes_no"}  # of Grafana's own list
Json = dict[str, Any]


@pytest.fixture(params=sorted(DASHBOARDS))
def dashboard(request: pytest.FixtureRequest) -> Json:
    return DASHBOARDS[request.param]()


def shown(dashboard: Json) -> list[Json]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("name", sorted(DASHBOARDS))
def test_dashboard_file_is_up_to_date(name: str) -> None:
    written = (DEPLOY / "grafana" / f"{name}.json").read_text()
    assert written == text(DASHBOARDS[name]()), "run `make dashboards`"


def test_no_file_of_a_removed_dashboard_exists() -> None:
    assert {path.stem for path in (DEPLOY / "grafana").glob("*.json")} == set(DASHBOARDS)


def test_operator_rules_equal_the_rules_file() -> None:
    rules = (DEPLOY / "prometheus" / "rules.yaml").read_text()
    made = (DEPLOY / "prometheus" / "prometheusrule.yaml").read_text()
    assert made == prometheus_rule(rules), "run `make dashboards`"
    assert yaml.safe_load(made)["spec"] == yaml.safe_load(rules)


def test_dashboard_has_a_stable_uid(dashboard: Json) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", dashboard["uid"])
    assert dashboard["id"] is None  # given by the database that imports it
    assert dashboard["schemaVersion"] >= 36  # data sources as objects
    assert len({make()["uid"] for make in DASHBOARDS.values()}) == len(DASHBOARDS)
    assert json.loads(text(dashboard)) == dashboard


def unknown(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """What Grafana's own types lose or change. Fields that are null may be absent."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            if value is not None:
                yield from unknown(value, theirs.get(name), f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from unknown(one, other, f"{path}[{place}]")
    elif ours != theirs:
        yield f"{path}: {ours!r} is {theirs!r}"


def test_dashboard_fields_are_grafana_fields(dashboard: Json) -> None:
    register_default_plugins()  # types of panels and of Prometheus' queries
    theirs = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    assert not list(unknown(dashboard, theirs))
    misspelt = json.loads(text(dashboard).replace('"gridPos"', '"gridpos"', 1).replace('"legendFormat"', '"legend"', 1))
    theirs = json.loads(JSONEncoder().encode(Dashboard.from_json(misspelt)))
    assert len(list(unknown(misspelt, theirs))) == 2


def test_panels_fill_the_grid_and_do_not_overlap(dashboard: Json) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert 0 < place["w"] <= WIDTH - place["x"]
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    area = sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in panels)
    assert area == WIDTH * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels), "there is a hole"


def test_every_panel_has_a_description(dashboard: Json) -> None:
    for panel in shown(dashboard):
        assert panel["type"] in {"stat", "timeseries", "table"}
        assert panel["title"]
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert [target["refId"] for target in panel["targets"]] == [chr(65 + n) for n in range(len(panel["targets"]))]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert target["instant"] != target["range"]
        limits = panel["fieldConfig"]["defaults"].get("thresholds", {"steps": [{"value": None}]})["steps"]
        assert limits[0]["value"] is None
        values = [limit["value"] for limit in limits[1:]]
        assert values == sorted(values)


def test_variables_are_used_and_used_variables_exist(dashboard: Json) -> None:
    variables = dashboard["templating"]["list"]
    assert variables[0]["type"] == "datasource"
    names = {variable["name"] for variable in variables}
    queries = json.dumps([panel["targets"] for panel in shown(dashboard)])
    used = set(re.findall(r"\$\{?(\w+)\}?", queries)) - {"__range"}
    assert used == names
    for place, variable in enumerate(variables[1:], 1):
        known = {earlier["name"] for earlier in variables[:place]}
        assert set(re.findall(r"\$(\w+)", variable["query"]["query"])) <= known


def test_every_state_has_one_unique_color() -> None:
    assert set(COLORS) >= {state.name for state in STATES} | set(FAMILIES)
    assert len({COLORS[state.name] for state in STATES}) == len(STATES)
    for make in DASHBOARDS.values():
        for panel in shown(make()):
            by_state = any(target["legendFormat"] == "{{state}}" for target in panel["targets"])
            painted = {
                override["matcher"]["options"]: one["value"]["fixedColor"]
                for override in panel["fieldConfig"]["overrides"]
                for one in override["properties"]
                if one["id"] == "color"
            }
            assert bool(painted) == by_state, panel["title"]
            assert painted.items() <= COLORS.items()
