"""`pyrometer worth`: its tables, charts and errors."""

from __future__ import annotations

import pytest

from pyrometer.render.tables import sparkline
from pyrometer.store import Store
from tests.support.clusters import cluster, job
from tests.support.sweep_runs import run_records
from tests.support.traced_run import TrainingRecords


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worth") / "data"
    TrainingRecords(slow_rank=None, bad_sample=None).store(folder).close()
    return folder


def test_worth_lists_experiments_and_a_summary(cached_pyrometer, finetuned):
    lines = cached_pyrometer("worth", "--data", finetuned).lines
    assert lines[0].split()[:3] == ["experiment", "team", "last"]
    assert lines[1].startswith("sft         speech")
    assert lines[-1] == "$0.47 spent on 1 run of 1 experiment."


def test_worth_of_an_experiment_has_the_cost_to_the_target(cached_pyrometer, finetuned):
    lines = cached_pyrometer("worth", "sft", "--data", finetuned, "--price", "2", "--target", "2.2").lines
    assert lines[1].startswith("★  llama-sft  succeeded")
    assert "to target" in lines[0]
    assert "$0.07" in lines[1]
    assert lines[-2] == "Metric: loss, lower is better."
    assert lines[-1] == "$0.14 in total. There is no other run to compare with."


def test_worth_table_marks_dominated_runs(pyrometer, tmp_path):
    with Store(tmp_path / "data", create=True) as store:
        store.append(
            [
                *cluster(),
                *run_records("good", 0, 60, [3.0, 1.0]),
                *run_records("bad", 1, 100, [3.0, 2.0], metric="val/loss"),
            ]
        )
    lines = pyrometer("worth", "sweep", "--data", tmp_path / "data").lines
    assert [line.split()[0] for line in lines[1:3]] == ["bad", "★"]
    assert lines[-2:] == [
        "$6.00 of $9.60 went to runs that a cheaper run outperformed.",
        "$3.00 was spent after another run had already reached the same result for less.",
    ]


def test_worth_of_an_experiment_without_runs_has_a_cost(pyrometer, tmp_path):
    with Store(tmp_path / "data", create=True) as store:
        store.append([*cluster(), *job()])
    result = pyrometer("worth", "llama-sft", "--data", tmp_path / "data")
    assert result.lines == ["llama-sft has no training runs in this time range. It cost $29."]
    assert pyrometer("worth", "llama-sft", "--data", tmp_path / "data", "-o", "json").json["runs"] == []
    chart = pyrometer("worth", "llama-sft", "--data", tmp_path / "data", "-o", "chart")
    assert "Traceback" not in chart.err


def test_unknown_experiment_or_metric_names_the_known_ones(pyrometer, finetuned):
    error = pyrometer("worth", "sftt", "--data", finetuned).failed(1)
    assert error == "Experiment 'sftt' not found in this time range. Did you mean 'sft'?"
    error = pyrometer("worth", "sft", "--metric", "acc", "--data", finetuned).failed(1)
    assert error == "No run reported a metric 'acc' in this time range. Reported: loss."
    assert "'soon' is not a number" in pyrometer("worth", "sft", "--target", "soon", "--data", finetuned).failed(2)
    assert "needs an experiment" in pyrometer("worth", "--target", "1", "--data", finetuned).failed(2)


def test_worth_of_a_folder_without_runs_prints_a_sentence(pyrometer, autumn):
    assert pyrometer("worth", "--data", autumn).lines == [
        "No training runs in this time range. `pyrometer cost --by experiment` shows what held GPUs."
    ]


@pytest.mark.parametrize(
    ("by", "below"), [("dollars", "$0.15"), ("gpu-hours", "0.08"), ("time", "10"), ("step", "100")]
)
def test_chart_has_every_choice_of_x_axis(pyrometer, finetuned, monkeypatch, by, below):
    monkeypatch.setenv("COLUMNS", "80")
    result = pyrometer(
        "worth", "sft", "--data", finetuned, "--price", "2", "--target", "2.2", "-o", "chart", "--by", by
    )
    assert result.lines[0].startswith("loss, lower is better, against ")
    assert max(map(len, result.lines)) <= 80
    assert any(line.lstrip().startswith("2.2┤") and "╌" in line for line in result.lines)
    assert any("A ★ llama-sft" in line and "target after $0.07" in line for line in result.lines)
    (ticks,) = [result.lines[n + 1].split() for n, line in enumerate(result.lines) if line.lstrip().startswith("└")]
    assert below in ticks


def test_chart_needs_an_experiment_a_metric_and_a_price(pyrometer, finetuned, tmp_path):
    assert "pass its name" in pyrometer("worth", "-o", "chart", "--data", finetuned).failed(2)
    assert "--by needs -o chart" in pyrometer("worth", "sft", "--by", "step", "--data", finetuned).failed(2)
    with Store(tmp_path / "data", create=True) as store:
        priceless = [record for record in cluster() if type(record).__name__ != "Price"]
        store.append([*priceless, *run_records("quiet", 0, 9, []), *run_records("a", 1, 9, [1.0], experiment="priced")])
    error = pyrometer("worth", "sweep", "-o", "chart", "--data", tmp_path / "data").failed(1)
    assert error == "No run of 'sweep' has reported a metric, so there is no curve to draw."
    assert "set one per GPU-hour with --price" in pyrometer(
        "worth", "priced", "-o", "chart", "--data", tmp_path / "data"
    ).failed(1)


def test_sparkline_is_between_its_ends():
    assert sparkline([0, 1, None, 7]) == "▁▂ █"
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([0.5, 1], low=0.0, high=1.0) == "▅█"
    assert sparkline([]) == ""
