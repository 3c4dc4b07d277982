"""Objects from kube-state-metrics."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pyrometer.collect.prometheus.kube_state import _gaps, _label, _own_labels, _resource, label_keys, moment
from pyrometer.model.units import MS_PER_MINUTE


@pytest.mark.parametrize(
    ("metric_form", "resource"),
    [
        ("nvidia_com_gpu", "nvidia.com/gpu"),
        ("nvidia_com_mig_1g_10gb", "nvidia.com/mig-1g.10gb"),
        ("amd_com_gpu", "amd.com/gpu"),
        ("gpu_intel_com_i915", "gpu.intel.com/i915"),
    ],
)
def test_resource_restores_name(metric_form, resource):
    assert _resource(metric_form) == resource


def test_label_prefers_exported_name():
    assert _label({"pod": "ksm-0", "exported_pod": "train-0"}, "pod") == "train-0"
    assert _label({}, "pod") == ""


def test_own_labels_restores_known_keys():
    keys = label_keys(["pyrometer.io/team"])
    labels = {"label_pyrometer_io_team": "nlp", "label_app": "x", "pod": "a"}
    assert _own_labels(labels, "label", keys) == {"pyrometer.io/team": "nlp", "app": "x"}


def test_gaps_are_long_times_without_steps():
    minutes = [0, 1, 2, 20, 21]
    steps = {minute * MS_PER_MINUTE for minute in minutes}
    (gap,) = _gaps("lab", 0, 21 * MS_PER_MINUTE, steps, MS_PER_MINUTE)
    assert (gap.time_ms, gap.duration_ms) == (2 * MS_PER_MINUTE, 18 * MS_PER_MINUTE)
    assert _gaps("lab", 0, 21 * MS_PER_MINUTE, set(), MS_PER_MINUTE) == []


def test_moment_converts_milliseconds():
    assert moment(None) is None
    assert moment(1_000) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
