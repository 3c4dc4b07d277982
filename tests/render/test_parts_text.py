"""Pipelines and sweeps in text: steps on a time axis, trials with their cost, and a summary."""

from __future__ import annotations

from pyrometer.render.parts_text import FRONT, print_pipeline, print_sweep
from pyrometer.render.why_text import plain

COST = {"gpu_ms": 3_600_000, "gpu_hours": 1.0, "usd_micro": 4_000_000, "wasted_usd_micro": 1_000_000, "goodput": 0.75}
FROM, MIDDLE, TO = (f"2026-10-08T{hour}:00:00+00:00" for hour in (20, 21, 22))


def step(name: str, started: str, ended: str, **more):
    return {
        "step": name,
        "state": "succeeded",
        "started": started,
        "ended": ended,
        "duration_ms": 3_600_000,
        "attempts": [],
        **COST,
        **more,
    }


def trial(name: str, **more):
    return {
        "trial": name,
        "state": "succeeded",
        "pareto": False,
        "best": False,
        "parameters": {"lr": "0.001"},
        "value": 0.25,
        **COST,
        **more,
    }


def sweep(**more):
    return {
        "name": "lr-search",
        "state": "succeeded",
        "namespace": "speech",
        "started": FROM,
        "ended": TO,
        "algorithm": "random",
        "metric": "loss",
        "goal": "min",
        "target": 0.2,
        "total": COST,
        "trials": [trial("a", best=True, pareto=True), trial("b", value=None, parameters={"lr": "x" * 20})],
        "best_trial": "a",
        "best_usd_micro": 4_000_000,
        "losers_usd_micro": 4_000_000,
        "going_on_usd_micro": None,
        "early_stopped": 1,
        "early_stopped_usd_micro": 500_000,
        "early_stopped_saved_usd_micro": 3_500_000,
        **more,
    }


def test_pipeline_shows_steps_on_a_time_axis_with_attempts_and_findings(capsys):
    failed = {**step("", MIDDLE, TO), "attempt": 1, "state": "failed", "message": "exit code 1\ntrace"}
    again = {**step("", MIDDLE, TO), "attempt": 2, "message": None}
    run = {
        "name": "nightly",
        "state": "succeeded",
        "pipeline": "retrain",
        "namespace": "search",
        "id": "42",
        "started": FROM,
        "ended": TO,
        "total": COST,
        "steps": [step("train", FROM, MIDDLE), step("evaluate", MIDDLE, TO, attempts=[failed, again])],
    }
    findings = [{"usd_micro": 1_000_000, "title": "train waited for data", "step": "train"}]
    print_pipeline({"pipeline": run, "findings": findings}, plain)
    out = capsys.readouterr().out
    assert out.startswith("nightly: succeeded\n$4.00 for 1.00 GPU-hours, $1.00 wasted, 75% of the time training\n")
    assert "run of pipeline retrain in search, Oct 8, 20:00 – Oct 8, 22:00 (2 h), ID 42" in out
    assert "  attempt 2" in out
    assert "evaluate, attempt 1: exit code 1\n" in out
    assert "$1.00  train waited for data (step train)." in out


def test_sweep_shows_the_winner_and_a_summary(capsys):
    print_sweep({"sweep": sweep()}, plain)
    out = capsys.readouterr().out
    assert f"{FRONT}  a won" in out
    assert "xxxxxxxxxxx…" in out
    assert "Metric: loss, lower is better; target 0.2." in out
    assert "a won and cost $4.00. The other trials cost $4.00." in out
    assert "1 trial stopped early: $0.50, $3.50 less than at the cost of the median trial." in out


def test_sweep_without_a_winner_names_running_trials(capsys):
    print_sweep({"sweep": sweep(best_trial=None, going_on_usd_micro=2_000_000, early_stopped=0)}, plain)
    out = capsys.readouterr().out
    assert "won and cost" not in out
    assert "$2.00 spent on trials that are still running." in out
