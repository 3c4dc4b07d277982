"""The JSON of every read command: the documented keys, money as integers, rows that add up to their total."""

from __future__ import annotations

import json

import pytest

from pyrometer.account.query.groupings import GROUPINGS

ENERGY = {"energy_wh", "kwh", "energy_usd_micro", "energy_usd", "co2e_g"}
TOTAL = {
    "gpu_ms",
    "gpu_hours",
    "usd_micro",
    "usd",
    "unpriced_gpu_ms",
    *ENERGY,
    "energy_gpu_ms",
    "energy_estimated_gpu_ms",
    "activity",
}
FINDING = {
    "id",
    "cause",
    "workload",
    "experiment",
    "team",
    "culprit",
    "from",
    "to",
    "gpu_ms",
    "usd_micro",
    "usd",
    "confidence",
    "evidence",
    "suggestion",
}
WORKLOAD = {"uid", "kind", "namespace", "name"}
RUN = {
    "run",
    "experiment",
    "team",
    "workload",
    "attempts",
    "ranks",
    "steps",
    "started",
    "ended",
    "outcome",
    "gpu_hours",
    "usd",
    "goodput",
}
BY = (
    "team",
    "experiment",
    "workload",
    "namespace",
    "user",
    "queue",
    "node",
    "pool",
    "gpu_model",
    "state",
    "cause",
    "hour",
    "day",
    "month",
)
MONEY = (
    "usd_micro",
    "usd",
    "waste_usd_micro",
    "waste_usd",
    "saved_usd_micro",
    "saved_usd",
    "sentence",
    "prices_assumed",
    "unpriced_gpu_ms",
)


@pytest.fixture
def ask(cached_pyrometer):
    """The JSON answer of a command about everything in a folder."""

    def answer(folder, *arguments):
        return cached_pyrometer(*arguments, "--data", folder, "--all", "-o", "json").json

    return answer


def each(value):
    """Every dictionary in an answer."""
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from each(one)
    elif isinstance(value, list):
        for one in value:
            yield from each(one)


def without_money(value):
    if isinstance(value, dict):
        return {name: without_money(one) for name, one in value.items() if name not in MONEY}
    if isinstance(value, list):
        return [without_money(one) for one in value]
    return value


# -- documented keys --------------------------------------------------------------------------------------------------


def test_why_json_has_the_documented_keys(ask, recorded):
    answer = ask(recorded, "why")
    assert {"window", "total", "states", "findings", "evidence"} <= answer.keys()
    assert answer["window"].keys() == {"from", "to"}
    assert answer["total"].keys() == TOTAL
    assert all({"state", "family", "gpu_ms", "usd_micro", "usd"} <= row.keys() for row in answer["states"])
    assert len(answer["findings"]) >= 5
    for finding in answer["findings"]:
        assert finding.keys() >= FINDING
        assert finding["workload"].keys() == WORKLOAD
        assert finding["culprit"] is None or finding["culprit"].keys() <= {"rank", "node", "gpu", "pod", "user"}
        assert finding["evidence"]
        assert all(isinstance(one, str) and one for one in finding["evidence"])
        assert finding["suggestion"].endswith(".")
        assert 0 < finding["confidence"] <= 1
        assert finding["from"] < finding["to"]
    assert answer["evidence"].keys() == {"kubernetes", "gpu", "sdk"}
    assert all(0 <= share <= 1 for share in answer["evidence"].values())


def test_findings_keep_their_ids(ask, recorded):
    findings = {finding["id"]: finding["title"] for finding in ask(recorded, "why")["findings"]}
    assert len(findings) == len(ask(recorded, "why")["findings"])
    again = {finding["id"]: finding["title"] for finding in ask(recorded, "show", "recording-a")["findings"]}
    assert again == findings


@pytest.mark.parametrize("by", BY)
def test_cost_json_has_the_documented_keys(ask, recorded, by):
    answer = ask(recorded, "cost", "--by", by)
    assert answer.keys() == {"window", "by", "rows", "total", "books"}
    assert answer["by"] == [by]
    assert answer["total"].keys() == TOTAL
    for row in answer["rows"]:
        assert row.keys() == {by, "gpu_ms", "gpu_hours", "usd_micro", "usd", "adjusts", "activity", *ENERGY}


def test_cost_has_every_documented_grouping():
    assert set(BY) <= set(GROUPINGS)


def test_runs_json_has_the_documented_keys(ask, recorded):
    (row,) = ask(recorded, "runs")["rows"]
    assert row.keys() >= RUN
    assert row["run"] == "recording-a"
    assert row["workload"].keys() == WORKLOAD
    assert (row["attempts"], row["ranks"], row["steps"]) == (2, 1, 2_273)
    assert 0 < row["goodput"] < 1


def test_show_json_has_the_documented_keys(ask, recorded):
    answer = ask(recorded, "show", "recording-a")
    (row,) = ask(recorded, "runs")["rows"]
    assert {name: answer[name] for name in row} == row
    assert answer.keys() >= RUN | {"windows", "metrics", "lifecycle", "findings"}
    assert len(answer["windows"]) > 10
    assert {finding["cause"] for finding in answer["findings"]} >= {"hang", "lost_work", "data_stall", "idle_held"}
    assert [mark["what"] for mark in answer["lifecycle"]].count("started") == 2
    for step, time_ms, value, gpu_ms, usd_micro in answer["metrics"]["loss"]:
        assert isinstance(step, int)
        assert isinstance(time_ms, int)
        assert value is None or isinstance(value, float)
        assert isinstance(gpu_ms, int)
        assert isinstance(usd_micro, int)


def test_outcome_of_a_run_is_that_of_its_last_attempt(ask, recorded):
    """The first attempt was killed; the second one trained on to the end of the recording, 40 s later."""
    (row,) = ask(recorded, "runs")["rows"]
    assert row["outcome"] != "killed"
    assert row["ended"] is None or row["ended"] > "2026-11-15T06:19:50"


def test_nonfinite_loss_is_null(ask, recorded):
    points = ask(recorded, "show", "recording-a")["metrics"]["loss"]
    assert points[0][2] > 10
    assert points[-1][2] is None
    assert len(points) == 2_934


def test_cost_of_a_metric_never_decreases(ask, recorded):
    points = ask(recorded, "show", "recording-a")["metrics"]["loss"]
    for column in (1, 3, 4):
        values = [point[column] for point in points]
        assert values == sorted(values)


# -- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["recorded", "recorded_without_steps", "autumn", "unpriced"])
def test_states_add_up_to_the_total(ask, request, folder):
    answer = ask(request.getfixturevalue(folder), "why")
    assert sum(row["gpu_ms"] for row in answer["states"]) == answer["total"]["gpu_ms"]
    assert sum(row["usd_micro"] or 0 for row in answer["states"]) == (answer["total"]["usd_micro"] or 0)
    assert sum(sum(bucket["states"].values()) for bucket in answer["timeline"]["rows"]) == answer["total"]["gpu_ms"]


@pytest.mark.parametrize("by", [*BY, "team,state", "day,workload", "cause,state"])
@pytest.mark.parametrize("folder", ["recorded", "autumn"])
def test_every_grouping_adds_up_to_the_total(ask, request, folder, by):
    path = request.getfixturevalue(folder)
    answer = ask(path, "cost", "--by", by)
    assert answer["total"] == ask(path, "why")["total"]
    assert sum(row["gpu_ms"] for row in answer["rows"]) == answer["total"]["gpu_ms"]
    assert sum(row["usd_micro"] or 0 for row in answer["rows"]) == answer["total"]["usd_micro"]
    keys = [json.dumps([row[name] for name in by.split(",")]) for row in answer["rows"]]
    assert len(keys) == len(set(keys))  # each group once
    assert all(row["gpu_ms"] > 0 for row in answer["rows"])


def test_money_is_an_integer_with_a_rounded_figure(ask, recorded, autumn):
    for folder, name, *arguments in (
        (recorded, "why"),
        (recorded, "cost", "--by", "state"),
        (recorded, "runs"),
        (recorded, "show", "recording-a"),
        (autumn, "why"),
        (autumn, "cost", "--by", "node"),
    ):
        priced = 0
        for one in each(ask(folder, name, *arguments)):
            for micro, rounded in (("usd_micro", "usd"), ("waste_usd_micro", "waste_usd")):
                if micro in one:
                    assert (one[micro] is None) == (one[rounded] is None)
                    if one[micro] is not None:
                        assert type(one[micro]) is int
                        assert one[rounded] == round(one[micro] / 1e6, 2)
                        priced += 1
            if "gpu_ms" in one:
                assert type(one["gpu_ms"]) is int
                assert one["gpu_hours"] == round(one["gpu_ms"] / 3.6e6, 4)
        assert priced


def test_findings_claim_at_most_the_time_of_their_state(ask, recorded):
    answer = ask(recorded, "why")
    states = {row["state"]: row["gpu_ms"] for row in answer["states"]}
    for cause in ("hang", "lost_work", "data_stall", "idle_held"):
        claimed = sum(finding["gpu_ms"] for finding in answer["findings"] if finding["cause"] == cause)
        assert 0 < claimed <= states[cause]


def test_cost_by_cause_equals_the_time_of_findings(ask, recorded):
    claimed = {}
    for finding in ask(recorded, "why")["findings"]:
        claimed[finding["cause"]] = claimed.get(finding["cause"], 0) + finding["gpu_ms"]
    rows = {row["cause"]: row["gpu_ms"] for row in ask(recorded, "cost", "--by", "cause")["rows"]}
    assert rows.pop(None) > 0  # most time has no cause: nothing went wrong
    assert rows == claimed


# -- allocation to teams ----------------------------------------------------------------------------------------------


def test_unallocated_time_belongs_to_the_platform(ask, autumn):
    teams = {row["team"]: row["gpu_ms"] // 3_600_000 for row in ask(autumn, "cost", "--by", "team")["rows"]}
    assert teams == {"nlp": 8, "vision": 3, "platform": 3 * 30 - 11}
    rows = ask(autumn, "cost", "--by", "workload")["rows"]
    assert {row["workload"] and row["workload"]["name"] for row in rows} == {"job-llama", "job-yolo", None}


def test_time_without_a_price_is_unpriced(ask, autumn):
    nodes = {row["node"]: row for row in ask(autumn, "cost", "--by", "node")["rows"]}
    assert nodes["strange"]["usd_micro"] is None
    assert nodes["known"]["usd_micro"] == 60 * 6_880_000  # the public list price
    total = ask(autumn, "cost")["total"]
    assert total["usd_micro"] == 60 * 6_880_000
    assert total["unpriced_gpu_ms"] == 30 * 3_600_000


def test_money_is_null_without_any_price(ask, unpriced):
    for name, *arguments in (("why",), ("cost", "--by", "team,state"), ("runs",)):
        answer = ask(unpriced, name, *arguments)
        money = [one[key] for one in each(answer) for key in ("usd", "usd_micro") if key in one]
        assert set(money) <= {None}
    total = ask(unpriced, "why")["total"]
    assert total["usd_micro"] is total["usd"] is None
    assert total["unpriced_gpu_ms"] == total["gpu_ms"] == 30 * 3_600_000
    assert ask(unpriced, "why")["prices_assumed"] is False


# -- a price for all GPUs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("why", ()),
        ("cost", ("--by", "state")),
        ("cost", ("--by", "cause,day")),
        ("runs", ()),
        ("show", ("recording-a",)),
    ],
)
def test_price_option_changes_only_dollars(ask, recorded, name, arguments):
    listed, own = (ask(recorded, name, *arguments, *price) for price in ((), ("--price", "2.50")))
    for answer in (listed, own):
        for points in answer.get("metrics", {}).values():
            for point in points:
                point[4] = None
    assert without_money(own) == without_money(listed)
    amounts = [one for one in each(own) if "usd_micro" in one and "gpu_ms" in one]
    assert amounts
    for one in amounts:
        assert one["usd_micro"] == pytest.approx(one["gpu_ms"] * 2_500_000 / 3_600_000, abs=1)


def test_price_option_prices_unpriced_gpus(ask, unpriced, autumn):
    assert ask(unpriced, "why", "--price", "2.50")["total"] == {
        "gpu_ms": 30 * 3_600_000,
        "gpu_hours": 30.0,
        "usd_micro": 75_000_000,
        "usd": 75.0,
        "unpriced_gpu_ms": 0,
        "energy_gpu_ms": 0,
        "energy_estimated_gpu_ms": 0,
        "activity": None,
        **dict.fromkeys(ENERGY),
    }
    answer = ask(autumn, "cost", "--by", "node", "--price", "$1")
    assert {row["node"]: row["usd"] for row in answer["rows"]} == {"known": 60, "strange": 30}


def test_price_of_zero_is_a_price(ask, unpriced):
    assert ask(unpriced, "why", "--price", "0")["total"]["usd_micro"] == 0
