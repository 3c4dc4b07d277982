"""A curve is one rank's, however many tell the same metric; and what is not finite is seen whoever tells it."""

from __future__ import annotations

from datetime import UTC
from itertools import chain

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.experiments.worth import worth
from pyrometer.answers.fleet.top import top
from pyrometer.answers.runs.metric_curves import MetricGoal, ReportedMetric, aim_of, chosen
from pyrometer.answers.runs.overview import show
from pyrometer.answers.runs.progress import Progress
from pyrometer.answers.why import why
from pyrometer.model.records import Event, Metric
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import START_MS, all_ranks, at, cluster, job, run

FIRST_HOUR = TimeRange(START_MS, at(60))
FIRST, OTHERS = 0.5, 0.1  # what the rank that logs says, and what others see of their own part


def metrics(name: str, rank: int, value: float, minutes=range(60)) -> list[Metric]:
    return [Metric(at(minute) + rank, "run", 1, rank, name, value, minute, "min") for minute in minutes]


@pytest.fixture
def answers(tmp_path):
    """The answers about a run whose ranks report some metrics."""

    def of(*metrics: list[Metric], events: list[Event] = ()) -> tuple:
        with Store(tmp_path / "data", create=True) as store:
            store.append([*cluster(), *job(), *run(), *all_ranks(0, 60), *chain(*metrics), *events])
            build(store, Settings(), now_ms=at(60))
            progress = Progress()
            for minute in (50, 59, 60):
                progress.read(store, at(minute), at(minute - 10))
            (line,) = top(store, FIRST_HOUR, zone=UTC)["rows"]
            shown = show(store, "run", FIRST_HOUR, Settings(), zone=UTC)
            (of_run,) = worth(store, "llama-sft", FIRST_HOUR, zone=UTC)["runs"]
            findings = why(store, FIRST_HOUR, Settings(), zone=UTC)["findings"]
            return shown, of_run, progress.runs["run"].metrics, line["metric"], findings

    return of


def test_curve_excludes_sdk_losses_before_the_first_logged_loss(answers):
    """The Hugging Face Trainer logs its first mean after ten steps."""
    own = [one._replace(source="backward", value=OTHERS) for one in metrics("loss", 0, OTHERS, range(10))]
    logged = [one._replace(source="transformers") for one in metrics("loss", 0, FIRST, range(10, 60, 10))]
    shown, of_run, _, _, _ = answers(own, logged)
    assert [(step, value) for step, _, value, *_ in shown["metrics"]["loss"]] == [
        (step, FIRST) for step in range(10, 60, 10)
    ]
    assert (shown["best"]["loss"]["best"], of_run["best"], of_run["final"]) == (FIRST, FIRST, FIRST)


@pytest.mark.parametrize("name", ["loss", "train/loss"])
@pytest.mark.parametrize("seldom", [1, 25])
def test_curve_has_only_the_values_of_the_logging_rank(answers, name, seldom):
    others = (metrics("loss", rank, OTHERS) for rank in (1, 2, 3))
    shown, of_run, live, line, _ = answers(metrics(name, 0, FIRST, range(0, 60, seldom)), *others)
    assert {called: [value for _, _, value, *_ in points] for called, points in shown["metrics"].items()} == {
        name: [FIRST] * len(range(0, 60, seldom))
    }
    assert (list(shown["best"]), shown["best"][name]["best"], shown["best"][name]["final"]) == ([name], FIRST, FIRST)
    assert (of_run["best"], of_run["final"]) == (FIRST, FIRST)
    assert live == {name: FIRST}
    assert line == {"name": name, "value": FIRST}


def test_curve_belongs_to_the_first_rank_with_a_loss(answers):
    """The last stage of a pipeline."""
    shown, of_run, live, *_ = answers(
        metrics("loss", 2, FIRST), metrics("loss", 3, OTHERS), metrics("val_loss", 0, 0.7)
    )
    assert {value for _, _, value, *_ in shown["metrics"]["loss"]} == {FIRST}
    assert live == {"loss": FIRST, "val_loss": 0.7}
    assert of_run["best"] == 0.7


def test_nonfinite_loss_on_another_rank_is_found(answers):
    begins = Event(at(20), "nonfinite_loss", run="run", attempt=1, rank=3, node_uid="n1", step=20, reason="nan")
    shown, *_, findings = answers(
        metrics("loss", 0, FIRST), metrics("loss", 3, float("nan"), range(20, 60)), events=[begins]
    )
    assert {value for _, _, value, *_ in shown["metrics"]["loss"]} == {FIRST}
    assert [finding["cause"] for finding in findings] == ["diverged"]


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["loss", "val/loss", "accuracy"], "val/loss"),
        (["train_loss", "eval_loss"], "eval_loss"),
        (["train/loss", "eval/accuracy"], "train/loss"),
        (["lr", "grad_norm", "validLoss"], "validLoss"),
        (["lr", "mAP", "epoch"], "mAP"),
        (["lr", "top1_acc", "test_f1"], "test_f1"),
        (["lr", "grad_norm", "progress"], None),
        ([], None),
    ],
)
def test_chosen_prefers_evaluation_loss_then_training_loss(names, wanted):
    found = chosen([ReportedMetric(name, None) for name in names])
    assert (found.name if found else None) == wanted


def test_aim_of_prefers_the_goal_of_a_record_over_its_name():
    assert aim_of(ReportedMetric("score", "min")) == MetricGoal("score", "min", False)
    assert aim_of(ReportedMetric("score", None)) == MetricGoal("score", "max", True)
    assert aim_of(ReportedMetric("perplexity", None)) == MetricGoal("perplexity", "min", True)
    assert aim_of(ReportedMetric("grad_norm", None)) == MetricGoal("grad_norm", None, False)
    assert chosen([ReportedMetric("sharpness", "max"), ReportedMetric("bleu", None)]).name == "sharpness"
    assert chosen([ReportedMetric("loss", None, 1), ReportedMetric("train/loss", None, 3)]).name == "train/loss"
