"""Which metric measures the quality of a model, in which direction it improves, and which values are its curve."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

# Names are split into words: "val/loss", "eval_loss", "validLoss", "top1.acc".
_PART = re.compile(r"[^\W_]+")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_EVALUATED = {"val", "valid", "validation", "eval", "evaluation", "test", "dev", "heldout", "holdout"}
_LESS = {"loss", "error", "err", "perplexity", "ppl", "nll", "mse", "mae", "rmse", "wer", "cer", "fid", "bpb", "bpc"}
_MORE = {
    "acc",
    "accuracy",
    "f1",
    "bleu",
    "rouge",
    "reward",
    "score",
    "map",
    "auc",
    "auroc",
    "recall",
    "precision",
    "iou",
    "miou",
    "ndcg",
    "return",
    "elo",
}


class ReportedMetric(NamedTuple):
    """A metric that runs have reported."""

    name: str
    goal: str | None  # min or max, if a record has it
    runs: int = 1
    values: int = 1


class MetricGoal(NamedTuple):
    """A metric and its direction. `guessed`: the direction follows from its name."""

    name: str
    goal: str | None
    guessed: bool

    @property
    def sign(self) -> int:
        """The factor that makes lower values better."""
        return -1 if self.goal == "max" else 1


def aim_of(reported: ReportedMetric) -> MetricGoal:
    """The reported direction of a metric, or the one that its name implies; None if neither is known."""
    if reported.goal in ("min", "max"):
        return MetricGoal(reported.name, reported.goal, False)
    words = _words(reported.name)
    guess = "min" if words & _LESS else "max" if words & _MORE else None
    return MetricGoal(reported.name, guess, guess is not None)


def chosen(reported: Iterable[ReportedMetric]) -> MetricGoal | None:
    """The most informative metric: an evaluation loss, then a training loss, then any other with a direction; then the
    one that most runs report."""
    aimed = [(aim_of(one), one) for one in reported]
    ranked = [(*_place(aim), -one.runs, -one.values, aim.name, aim) for aim, one in aimed if aim.goal is not None]
    return min(ranked)[-1] if ranked else None


def _place(aim: MetricGoal) -> tuple[int, int]:
    words = _words(aim.name)
    evaluated, loss = bool(words & _EVALUATED), "loss" in words and aim.goal == "min"
    return (0 if evaluated else 1) if loss else 2 + aim.guessed, not evaluated


def _words(name: str) -> set[str]:
    parts = _PART.findall(name)  # "f1" and "mAP" are whole, "validLoss" is two
    return {word.lower() for part in parts for word in (part, *_WORD.findall(part))}


# -- curves ------------------------------------------------------------------------------------------------------------

# A curve belongs to one rank: the first that reports the metric. A rank that logs nothing reports the loss that its own
# backward begins with, so that a jump is found in whichever rank's data it was (`spikes.py`). Where one rank logs for
# all, those losses do not belong to its curve. Where it names its loss differently, they are not a second curve.
# A loss that is not finite is reported by any rank as an event: `diverged.py` does not read curves.
# A program that logs a loss under the same name has a curve of its own values: those that the SDK read before the
# first log do not belong to it.
OWN_LOSS = "loss"  # the SDK's name for the loss of a backward pass
OWN_SOURCE = "backward"
NOT_OWN = f"coalesce(source, '') != '{OWN_SOURCE}'"
_TRAINING_LOSS = "contains(lower(name), 'loss') AND NOT regexp_matches(lower(name), 'val|test')"

# A condition that excludes losses that the SDK read before a rank began to log one with the same name.
_LOGGED = f"""({NOT_OWN} OR (run, attempt, rank) NOT IN (
    SELECT DISTINCT (run, attempt, rank) FROM metric WHERE name = '{OWN_LOSS}' AND {NOT_OWN}
))"""
LOGGED = f"(FROM metric WHERE {_LOGGED})"  # the rows of `metric` without them


def is_evaluation(name: str) -> bool:
    """Whether the name is that of an evaluation metric."""
    return bool(_words(name) & _EVALUATED)


def is_training_loss(name: str) -> bool:
    """Whether the name is that of a training loss."""
    lower = name.lower()
    return "loss" in lower and "val" not in lower and "test" not in lower


def curves(where: str) -> str:
    """A query for the rows of `metric` that belong to curves, for the runs and the time that a condition selects."""
    return f"""(
    SELECT metric.* FROM metric SEMI JOIN (
        SELECT run, attempt, name, min(rank) AS rank FROM metric WHERE {where} GROUP BY run, attempt, name
        QUALIFY name != '{OWN_LOSS}' OR min(rank) =
            min(CASE WHEN {_TRAINING_LOSS} THEN min(rank) END) OVER (PARTITION BY run, attempt)
    ) reported USING (run, attempt, name, rank) WHERE {where} AND {_LOGGED}
)"""
