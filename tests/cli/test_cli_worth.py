"""What `pyrometer worth` prints, and how it refuses."""

from __future__ import annotations

import pytest

from nights import cluster
from pyrometer.cli.sparks import sparkline
from pyrometer.store import Store
from swept import trained
from traced import Trained


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worth") / "data"
    Trained(slow_rank=None, bad_sample=None).store(folder).close()
    return folder


def test_experiments_and_the_sentence_at_the_end(told, finetuned):
    lines = told("worth", "--data", finetuned).lines
    assert lines[0].split()[:3] == ["experiment", "team", "last"]
    assert lines[1].startswith("sft         speech")
    assert lines[-1] == "$0.47 went into 1 run of 1 experiment."


def test_runs_of_one_with_a_target(told, finetuned):
    lines = told("worth", "sft", "--data", finetuned, "--price", "2", "--target", "2.2").lines
    assert lines[1].startswith("★  llama-sft  succeeded")
    assert "to target" in lines[0]
    assert "$0.07" in lines[1]
    assert lines[-2] == "Metric: loss, less is better."
    assert lines[-1] == "$0.14 in all; there is no other run to compare with."


def test_the_table_says_which_runs_were_beaten(pyrometer, tmp_path):
    with Store(tmp_path / "data", create=True) as store:
        store.append(
            [*cluster(), *trained("good", 0, 60, [3.0, 1.0]), *trained("bad", 1, 100, [3.0, 2.0], metric="val/loss")]
        )
    lines = pyrometer("worth", "sweep", "--data", tmp_path / "data").lines
    assert [line.split()[0] for line in lines[1:3]] == ["bad", "★"]
    assert lines[-1] == "$6.00 of $9.60 went to runs that another one beat for less."


def test_another_experiment_or_metric_is_refused_with_what_there_is(pyrometer, finetuned):
    said = pyrometer("worth", "sftt", "--data", finetuned).failed(1)
    assert said == "There is no experiment 'sftt' in that time. Did you mean 'sft'?"
    said = pyrometer("worth", "sft", "--metric", "acc", "--data", finetuned).failed(1)
    assert said == "No run has a metric 'acc' in that time. Known: loss."
    assert "'soon' is not a number" in pyrometer("worth", "sft", "--target", "soon", "--data", finetuned).failed(2)
    assert "say which" in pyrometer("worth", "--target", "1", "--data", finetuned).failed(2)


def test_a_folder_without_runs(pyrometer, autumn):
    assert pyrometer("worth", "--data", autumn).lines == [
        "No training run has sent steps here. `pyrometer cost --by experiment` shows what held GPUs."
    ]


def test_a_sparkline_is_between_its_ends():
    assert sparkline([0, 1, None, 7]) == "▁▂ █"
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([0.5, 1], low=0.0, high=1.0) == "▅█"
    assert sparkline([]) == ""
