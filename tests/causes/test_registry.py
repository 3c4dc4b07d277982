"""Each cause on a small cluster: the right culprit, interval and dollars; and nothing where nothing is wrong."""

from __future__ import annotations

import pytest

from pyrometer.causes.registry import DETECTORS, detectors_of
from pyrometer.model.states import CAUSES
from tests.support.clusters import all_ranks, cluster, event, explain, job, run


def test_detectors_of_needs_one_detector_per_cause():
    by_cause = dict(zip(CAUSES, DETECTORS, strict=True))
    assert len(detectors_of(by_cause)) == len(CAUSES)
    with pytest.raises(ValueError, match="missing for: hang"):
        detectors_of({cause: detect for cause, detect in by_cause.items() if cause != "hang"})
    with pytest.raises(ValueError, match="missing for: sabotage"):
        detectors_of(by_cause | {"sabotage": DETECTORS[0]})


def test_healthy_night_has_no_finding(tmp_path):
    answer = explain(tmp_path, [*cluster(), *job(), *run(), *all_ranks(0, 120)])
    assert answer["findings"] == []
    assert {row["state"] for row in answer["states"]} == {"train", "data_stall", "comm_stall"}


def test_findings_below_the_limits_are_not_reported(tmp_path):
    reports = [event("stuck", 40, rank, step=3999) for rank in range(4)]
    reports += [event("unstuck", 41.1, rank) for rank in range(4)]
    records = [*cluster(), *job(), *run(), *all_ranks(0, 40), *reports, *all_ranks(42, 120)]
    assert explain(tmp_path, records)["findings"] == []  # 26 cents


def test_detectors_have_the_order_in_which_causes_claim():
    names = [detector.__module__.rsplit(".", 1)[1] for detector in DETECTORS]
    assert names == [cause for cause in CAUSES if cause in names]
