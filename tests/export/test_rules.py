"""The Prometheus rules, checked by promtool: they are well-formed, and alerts fire only on their conditions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from pyrometer.model.states import STATES

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"
RUN = 'run="r", experiment="e", team="t", instance="i"'
OWNER = 'experiment="e", workload="ml/w", team="t", instance="i"'
HOUR = 60  # samples, one per minute


@pytest.fixture(autouse=True)
def _promtool() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool: apt-get install prometheus")


def gpus(state: str, number: float) -> tuple[str, str]:
    """A number of GPUs in a state, from the first minute on."""
    return f'pyrometer_gpu_seconds_total{{state="{state}", {OWNER}}}', f"0+{60 * number}x{2 * HOUR}"


def gauge(name: str, labels: str, value: float) -> tuple[str, str]:
    return f"pyrometer_{name}{{{labels}}}", f"{value}x{8 * HOUR}"


class Case(NamedTuple):
    """Time series that fire the alert, and slightly lower ones that do not."""

    wrong: list[tuple[str, str]]
    well: list[tuple[str, str]]
    minutes: int = 90  # after which it must have fired


CASES = {
    "PyrometerRunStuck": Case([gauge("run_stuck_ranks", RUN, 2)], [gauge("run_stuck_ranks", RUN, 0)], 3),
    "PyrometerLossNotFinite": Case([gauge("run_nonfinite_loss", RUN, 1)], [gauge("run_nonfinite_loss", RUN, 0)], 2),
    "PyrometerCheckpointOld": Case(
        [gauge("run_last_checkpoint_timestamp_seconds", RUN, 60), gauge("run_outcome", f'outcome="running", {RUN}', 1)],
        [gauge("run_last_checkpoint_timestamp_seconds", RUN, 60), gauge("run_outcome", f'outcome="running", {RUN}', 0)],
        3 * HOUR + 10,
    ),
    "PyrometerGpusHang": Case([gpus("hang", 8)], [gpus("hang", 0.1)], 25),
    "PyrometerWasteHigh": Case(
        [gpus("train", 6), gpus("starved", 4), gpus("free", 90)],
        [gpus("train", 8), gpus("starved", 2), gpus("free", 1)],
    ),
    "PyrometerGpusIdleHeld": Case([gpus("idle_held", 1)], [gpus("idle_held", 0.5), gpus("train", 3)]),
    "PyrometerFindingExpensive": Case(
        [gauge("finding_usd", f'cause="hang", {OWNER}', 1200)], [gauge("finding_usd", f'cause="hang", {OWNER}', 900)]
    ),
    "PyrometerGpusUnhealthy": Case([gpus("unhealthy", 1)], [gpus("unhealthy", 0.5)]),
    "PyrometerGpusUnobserved": Case(
        [gpus("unobserved", 3), gpus("train", 7)], [gpus("unobserved", 1), gpus("train", 9)]
    ),
    "PyrometerDown": Case([], [gauge("build_info", 'version="1"', 1)], 11),
    "PyrometerNotAccounting": Case(
        [gauge("accounted_timestamp_seconds", 'instance="i"', 60)],
        [("pyrometer_accounted_timestamp_seconds{instance='i'}", f"0+60x{2 * HOUR}")],
    ),
    "PyrometerLedgerBehind": Case(
        [gauge("ledger_end_timestamp_seconds", 'instance="i"', 60)],
        [gauge("ledger_end_timestamp_seconds", 'instance="i"', 0)],  # there is nothing yet
    ),
    "PyrometerSourcesMissing": Case([gauge("shortcomings", "", 2)], [gauge("shortcomings", "", 0)]),
}


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def test_every_alert_has_a_test_and_a_remedy() -> None:
    assert set(CASES) == set(alerts())
    for rule in alerts().values():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert {"summary", "description"} == set(rule["annotations"])
        assert rule["for"]


def test_rules_pass_promtool() -> None:
    result = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(RULES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.heavy
def test_alerts_fire_only_on_their_conditions(tmp_path: Path) -> None:
    families = [gauge("state_info", f'state="{state.name}", family="{state.family}"', 1) for state in STATES]

    def rule_test(name: str, series: list[tuple[str, str]], minutes: int, fires: bool) -> dict[str, Any]:
        values = [{"series": series, "values": text} for series, text in [*families, *series]]
        expected = [{"labels": "{}", "value": 1}] if fires else []
        expr = f'max(ALERTS{{alertname="{name}", alertstate="firing"}})'
        query = {"expr": expr, "eval_time": f"{minutes}m", "exp_samples": expected}
        return {"name": f"{name} {fires}", "interval": "1m", "input_series": values, "promql_expr_test": [query]}

    tests = [
        rule_test(name, series, case.minutes, fires)
        for name, case in CASES.items()
        for series, fires in ((case.wrong, True), (case.well, False))
    ]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    result = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_recording_rules_give_gpus_and_dollars(tmp_path: Path) -> None:
    """Eight GPUs train and two hang at $3 per GPU-hour, so one fifth of the team's cost is waste."""
    families = [gauge("state_info", f'state="{state.name}", family="{state.family}"', 1) for state in STATES]
    dollars = (f'pyrometer_cost_usd_total{{state="hang", {OWNER}}}', f"0+0.1x{HOUR}")
    series = [*families, gpus("train", 8), gpus("hang", 2), dollars]
    expected = {
        'state:pyrometer_gpus:rate10m{state="train"}': 8,
        'team_family:pyrometer_gpus:rate10m{team="t", family="waste"}': 2,
        'team_family:pyrometer_usd_per_hour:rate10m{team="t", family="waste"}': 6,
        "pyrometer:waste:ratio_rate10m": 0.2,
    }
    queries = [
        {
            "expr": f"round({expr}, 0.001)",
            "eval_time": "45m",
            "exp_samples": [{"labels": expr[expr.index("{") :] if "{" in expr else "{}", "value": value}],
        }
        for expr, value in expected.items()
    ]
    values = [{"series": name, "values": text} for name, text in series]
    file = tmp_path / "test.yaml"
    test = {"interval": "1m", "input_series": values, "promql_expr_test": queries}
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    result = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
