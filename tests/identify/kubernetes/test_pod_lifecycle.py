"""The times of a pod and the reason of its end, from its object."""

from __future__ import annotations

from typing import Any

import pytest

from pyrometer.identify.kubernetes.pod_lifecycle import disruption_of, ended_by, life_of, restarts_of
from tests.support.watched_cluster import T0, iso, pod

DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


def test_life_of_a_running_pod_has_no_end() -> None:
    life = life_of(pod(start_ms=T0))
    assert (life.created_ms, life.scheduled_ms, life.started_ms) == (T0, T0, T0)
    assert (life.ended_ms, life.reason, life.phase) == (None, None, "Running")


def test_life_of_a_failed_pod_ends_with_its_last_container() -> None:
    life = life_of(pod(phase="Failed", end_ms=T0 + 5_000, code=1))
    assert (life.ended_ms, life.reason) == (T0 + 5_000, "Error")


def test_life_of_a_pod_without_a_scheduling_condition_uses_its_creation() -> None:
    seen = pod(start_ms=T0)
    seen.status.conditions = None
    assert life_of(seen).scheduled_ms == T0
    seen.spec.node_name = ""
    assert life_of(seen).scheduled_ms is None


def test_life_of_a_pod_that_never_ran_ends_with_its_last_condition() -> None:
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": iso(T0 + 9_000)}
    life = life_of(pod(phase="Failed", state={}, conditions=[ready]))
    assert (life.started_ms, life.ended_ms) == (None, T0 + 9_000)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"code": 0}, None),
        ({"code": 137, "reason": "OOMKilled"}, "OOMKilled"),
        ({"code": 143, "conditions": [DISRUPTED]}, "EvictionByEvictionAPI"),
    ],
)
def test_life_of_prefers_the_disruption_over_the_exit_of_a_container(more: dict[str, Any], reason: str | None) -> None:
    assert life_of(pod(phase="Failed", end_ms=T0 + 5_000, **more)).reason == reason


@pytest.mark.parametrize(
    ("more", "ended_ms"),
    [({}, T0 + 60_000), ({"end_ms": T0 + 5_000}, T0 + 5_000), ({"end_ms": T0 + 90_000}, T0 + 60_000)],
)
def test_ended_by_is_never_later_than_the_disappearance(more: dict[str, Any], ended_ms: int) -> None:
    assert ended_by(pod(**more), T0 + 60_000) == ended_ms


def test_restarts_of_lists_only_containers_that_started_again() -> None:
    last = {"terminated": {"finishedAt": iso(T0 + 9_000), "exitCode": 1}}
    assert restarts_of(pod(last=last)) == []
    (restart,) = restarts_of(pod(last=last, restarts=1, state={"running": {"startedAt": iso(T0 + 20_000)}}))
    assert (restart.at_ms, restart.reason, restart.exit_code, restart.again_ms) == (T0 + 9_000, "Error", 1, T0 + 20_000)


def test_disruption_of_ignores_conditions_that_are_false() -> None:
    assert disruption_of(pod(conditions=[DISRUPTED | {"status": "False"}])) is None
    found = disruption_of(pod(conditions=[DISRUPTED]))
    assert found is not None
    assert found.reason == "EvictionByEvictionAPI"
