"""Sweeps of Katib and their trials."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyrometer.identify.kubernetes.sweeps import EXPERIMENT, TRIAL
from pyrometer.model.records import Pod, Sweep, Trial, Workload
from tests.support.watched_workflows import MADE, T0, WatchedPipelines, iso, of_kind, pending_pod, pytorchjob, resumed

EXPERIMENT_OWNER = {"apiVersion": "kubeflow.org/v1beta1", "kind": "Experiment", "name": "lr-search", "uid": "exp-1"}


def trial(**status: Any) -> dict[str, Any]:
    made = MADE["trial"]
    meta = made["metadata"] | {"ownerReferences": [EXPERIMENT_OWNER | {"controller": True}]}
    return made | {"metadata": meta, "status": made["status"] | status}


def test_trial_and_sweep_are_recorded_with_their_status() -> None:
    watched = WatchedPipelines()
    records = watched.see(pending_pod("worker-0"), pytorchjob(), trial(), MADE["experiment"])
    (sweep,), (one,), (held,) = of_kind(records, Sweep), of_kind(records, Trial), of_kind(records, Pod)
    assert sweep[2:] == (
        "exp-1",
        "ns",
        "lr-search",
        "running",
        "validation-loss",
        "min",
        0.2,
        "bayesianoptimization",
        "lr-search-abc12345",
        1_793_527_200_000,
        None,
    )
    assert (one.name, one.sweep_uid, one.state) == ("lr-search-abc12345", "exp-1", "early_stopped")
    assert json.loads(one.parameters_json) == {"lr": "0.0003", "layers": "4"}
    assert one.value == 0.33  # the last one, as the objective's strategy says; without one it would be the least
    assert json.loads(one.metrics_json) == {"validation-loss": {"min": 0.31, "max": 2.4, "latest": 0.33}}
    assert (one.started_ms, one.ended_ms) == (1_793_527_200_000, 1_793_528_400_000)
    assert held.trial_uid == "trial-1"
    assert of_kind(records, Workload)[0].kind == "PyTorchJob"
    assert of_kind(watched.see(pending_pod("worker-1"), pytorchjob(), trial(), MADE["experiment"]), Trial) == []


def test_other_trials_and_changes_of_a_sweep_are_recorded() -> None:
    watched = WatchedPipelines()
    assert watched.changed(trial()) == []
    watched.see(pending_pod("worker-0"), pytorchjob(), trial(), MADE["experiment"])
    other = trial(conditions=[{"type": "Created", "status": "True", "lastUpdateTime": iso(T0)}], observation=None)
    other["metadata"] = other["metadata"] | {"uid": "trial-2", "name": "lr-search-zzz"}
    (pending,) = of_kind(watched.changed(other), Trial)
    assert (pending.state, pending.value) == ("created", None)
    assert watched.changed(other) == []


@pytest.mark.parametrize("first", ["experiment", "trial"])
def test_sweep_without_pods_is_followed_to_its_end_after_a_restart(first: str) -> None:
    (held,) = of_kind(WatchedPipelines().see(pending_pod("worker-0"), pytorchjob(), trial(), MADE["experiment"]), Pod)
    watched = resumed(held._replace(ended_ms=T0 + 50_000, phase="Succeeded"))
    assert {EXPERIMENT, TRIAL} <= set(watched.cluster.followed_kinds())
    things = {"experiment": MADE["experiment"], "trial": trial()}
    second = next(name for name in things if name != first)
    records = watched.changed(things[first]) + watched.changed(things[second])
    assert [one.sweep_uid for one in of_kind(records, Sweep)] == ["exp-1"]
    assert [one.trial_uid for one in of_kind(records, Trial)] == ["trial-1"]
    assert not {EXPERIMENT, TRIAL} & set(resumed().cluster.followed_kinds())  # without Katib its kinds are not followed


@pytest.mark.parametrize("latest", ["unavailable", None, "nan", {"a": 1}])
def test_nonfinite_metric_of_a_trial_is_none(latest: Any) -> None:
    unusual = trial(
        observation={"metrics": [{"name": "validation-loss", "latest": latest, "min": latest, "max": latest}]}
    )
    (one,) = of_kind(WatchedPipelines().see(pending_pod("w"), pytorchjob(), unusual, MADE["experiment"]), Trial)
    assert (one.value, one.metrics_json) == (None, None)
