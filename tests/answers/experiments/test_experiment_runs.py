"""The runs of experiments and their metrics."""

from __future__ import annotations

import pytest

from pyrometer.answers.experiments.experiment_runs import choose_goal, goal_json, main_team
from pyrometer.answers.runs.metric_curves import MetricGoal, ReportedMetric

REPORTED = [ReportedMetric("lr", None), ReportedMetric("loss", None), ReportedMetric("score", "max")]


def test_choose_goal_prefers_the_requested_metric() -> None:
    assert choose_goal(REPORTED, "loss") == MetricGoal("loss", "min", True)
    assert choose_goal(REPORTED, "no-such-metric") is None


def test_choose_goal_without_a_request_takes_the_most_informative_metric() -> None:
    assert choose_goal(REPORTED, None) == MetricGoal("loss", "min", True)
    assert choose_goal([REPORTED[0], REPORTED[2]], None) == MetricGoal("score", "max", False)
    assert choose_goal([], None) is None


def test_goal_json_marks_a_guessed_direction() -> None:
    assert goal_json(MetricGoal("loss", "min", True)) == {"metric": "loss", "goal": "min", "goal_guessed": True}
    assert goal_json(None, "name") == {"name": None, "goal": None, "goal_guessed": False}


@pytest.mark.parametrize(
    ("weighed", "team"),
    [
        ([("a", 1), ("b", 3), ("a", 3)], "a"),
        ([("b", 2), ("a", 2)], "a"),
        ([(None, 9), ("a", 1)], "a"),
        ([(None, 9)], None),
        ([], None),
    ],
)
def test_main_team_has_the_largest_total_weight(weighed: list[tuple[str | None, int]], team: str | None) -> None:
    assert main_team(weighed) == team
