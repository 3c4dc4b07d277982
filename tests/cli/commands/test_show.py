"""`pyrometer show`: a recorded run, and a night with two pipeline runs, a sweep and a TrainJob."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pyrometer as sdk
from pyrometer.cli import main
from pyrometer.serve.http.openapi import document


@pytest.fixture(scope="module")
def night(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kubeflow") / "data"
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "kubeflow", "--hours", "6", "--out", str(folder)])
    assert ended.value.code == 0
    return folder


def test_notebook_answers_have_steps_and_trials_as_tables(night):
    asking = sdk.connect(night)
    for by, table in (("pipeline_run", "steps"), ("sweep", "trials")):
        named = next(row[by] for row in asking.cost(by=by, all=True)["rows"] if row[by])
        shown = asking.show(named)
        assert shown.tables[0] == table
        total = (shown["pipeline"] or shown["sweep"])["total"]
        assert sum(shown.arrow()["usd_micro"].to_pylist()) == total["usd_micro"]


@pytest.mark.heavy
def test_cost_by_pipeline_and_trial_adds_up_to_the_total(cached_pyrometer, night):
    whole = cached_pyrometer("cost", "--data", night, "--all", "-o", "json").json["total"]
    for by in ("pipeline,pipeline_run,pipeline_step", "sweep,trial", "pipeline_step,team,state"):
        answer = cached_pyrometer("cost", "--by", by, "--data", night, "--all", "-o", "json").json
        assert answer["total"] == whole
        assert sum(row["usd_micro"] for row in answer["rows"]) == whole["usd_micro"]
        names = {row[by.split(",")[0]] for row in answer["rows"]}
        assert None in names
        assert names & {"retrain-ranker", "lr-search", "train"}


def test_show_prints_the_steps_of_a_pipeline_run(cached_pyrometer, night):
    lines = cached_pyrometer("show", "nightly 2026-10-08", "--data", night).lines
    assert lines[0] == "nightly 2026-10-08: succeeded"
    assert re.fullmatch(r"\$\d+ for [\d.]+ GPU-hours, \$[\d.]+ wasted, \d+% of the time training", lines[1])
    steps = {line.split()[0]: line for line in lines[5:]}
    assert [name for name in steps if name != "attempt"] == [
        "prepare",
        "train",
        "evaluate",
        "deploy-canary",
        "register",
    ]
    assert "87%" in steps["train"]
    assert "skipped" in steps["deploy-canary"]
    assert "\n".join(lines).count("attempt ") == 2  # of the evaluation, which was tried again
    assert "  attempt 1    retried" in "\n".join(lines)


@pytest.mark.heavy
def test_show_finds_a_pipeline_run_by_id_and_suggests_a_name(cached_pyrometer, night):
    about = cached_pyrometer("show", "nightly 2026-10-08", "--data", night, "-o", "json").json["pipeline"]
    again = cached_pyrometer("show", about["id"], "--data", night, "-o", "json").json["pipeline"]
    assert again == about
    assert sum(row["usd_micro"] for row in about["steps"]) == about["total"]["usd_micro"]
    error = cached_pyrometer("show", "nightly 2026-10-09", "--data", night).failed(1)
    assert error == "Run 'nightly 2026-10-09' not found in this time range. Did you mean 'nightly 2026-10-08'?"


def test_show_prints_the_trials_of_a_sweep(cached_pyrometer, night):
    lines = cached_pyrometer("show", "lr-search", "--data", night).lines
    sweep = cached_pyrometer("show", "lr-search", "--data", night, "-o", "json").json["sweep"]
    assert lines[0] == "lr-search: succeeded"
    assert f"{sweep['best_trial']} won" in lines[5]
    assert len(sweep["trials"]) == 10
    assert lines[-2].startswith(f"{sweep['best_trial']} won and cost $")
    assert lines[-1].startswith("2 trials stopped early: $")
    assert sweep["best_usd_micro"] + sweep["losers_usd_micro"] == sweep["total"]["usd_micro"]


@pytest.mark.heavy
def test_run_of_a_pipeline_step_names_its_pipeline(cached_pyrometer, night):
    (run,) = [
        row
        for row in cached_pyrometer("runs", "--data", night, "-o", "json").json["rows"]
        if row["run"].endswith("train-x2k9d")
    ]
    assert (run["pipeline"]["name"], run["pipeline"]["step"]) == ("nightly 2026-10-08", "train")
    lines = cached_pyrometer("show", run["run"], "--data", night).lines
    assert "step train of pipeline run nightly 2026-10-08" in lines


@pytest.mark.heavy
def test_show_prints_the_progress_of_a_trainjob(cached_pyrometer, night):
    lines = cached_pyrometer("show", "gemma-sft", "--data", night).lines
    assert re.search(r"\d+% done, .* left \(reported by Kubeflow Trainer\)", "\n".join(lines))
    assert any(line.startswith("  loss: ") for line in lines)
    assert not any(line.startswith("  progress: ") for line in lines)
    listed = cached_pyrometer("runs", "--data", night).lines
    assert "done" in listed[0]
    (row,) = [line for line in listed if "trainjob-gemma-sft" in line]
    assert re.search(r"\d+%  +\d+ h \d+ min", row)


@pytest.mark.heavy
def test_kubeflow_night_has_no_findings(cached_pyrometer, night):
    assert cached_pyrometer("why", "--data", night, "--all", "-o", "json").json["findings"] == []
    assert cached_pyrometer("score", night, "-o", "json").json["state_error"] < 0.01
    assert cached_pyrometer("check", night).lines[-1].endswith(": no problems found.")


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["nightly 2026-10-08", "lr-search", "gemma-sft"])
def test_show_answers_match_the_openapi_schema(cached_pyrometer, night, name):
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema: pip install jsonschema")
    described = document()["paths"]["/api/v1/show"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(cached_pyrometer("show", name, "--data", night, "-o", "json").json, described)


def test_show_prints_cost_lifecycle_and_metrics(cached_pyrometer, recorded):
    text = cached_pyrometer("show", "recording-a", "--data", recorded).out
    for words in (
        "recording-a",
        "$0.57",
        "2 attempt",
        "06:18:40",
        "stuck (step 2,272)",
        "resumed (step 1,106)",
        "loss:",
    ):
        assert words in text
    spark = next(line for line in text.splitlines() if "▁" in line)
    assert spark.rstrip().endswith("×")  # the loss is not a number at the end
