"""What the trackers share."""

from __future__ import annotations

from pyrometer.collect.trackers.common import (
    MAX_NAME_CHARS,
    MAX_PARAMETER_CHARS,
    MAX_PARAMETERS,
    RunLocation,
    describe_parameters,
    is_curve,
    is_time,
    location_of,
)


def test_location_of_prefers_pyrometer_tags_and_keeps_defaults():
    tags = {"k8s.pod.name": "a", "pyrometer.pod_name": "b", "namespace": ""}
    assert location_of(tags, namespace="ml", gpus=8) == RunLocation(pod_name="b", namespace="ml", gpus=8)


def test_run_location_as_text_lists_known_fields():
    assert str(RunLocation(host="a", gpus=8)) == "host a"
    assert str(RunLocation()) == "no location"


def test_is_curve_excludes_system_and_long_names():
    assert is_curve("loss")
    assert not any(map(is_curve, ["", "_step", "system/gpu", "pyrometer/x", "x" * (MAX_NAME_CHARS + 1)]))


def test_is_time_needs_integer_milliseconds():
    assert is_time(1_790_000_000_000)
    assert not any(map(is_time, [None, 1.79e12, -1, 2**62]))


def test_describe_parameters_is_sorted_and_limited():
    assert describe_parameters([("b", "2"), ("a", "1" * 999)]).startswith("a=1")
    text = describe_parameters((f"p{number:03d}", "x" * 999) for number in range(MAX_PARAMETERS + 3))
    assert text.endswith(", and 3 more")
    assert len(text) <= MAX_PARAMETERS * (MAX_PARAMETER_CHARS + 2) + 20
