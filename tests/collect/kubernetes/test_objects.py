"""Decoding of Kubernetes objects."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from pyrometer.collect.kubernetes.objects import PodObject, Reference, ms


def test_pod_decodes_null_and_skips_unknown_fields():
    pod = msgspec.json.decode(b'{"metadata": {"name": "a", "labels": null}, "spec": {"x": 1}}', type=PodObject)
    assert (pod.metadata.name, pod.metadata.labels, pod.spec.containers) == ("a", None, None)
    assert pod.status.phase == "Unknown"


def test_pod_with_wrong_type_is_rejected():
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"metadata": {"name": 1}}', type=PodObject)


def test_meta_controller_ignores_other_owners():
    owners = (
        b'[{"apiVersion":"v1","kind":"A","name":"a","uid":"1"},'
        b'{"apiVersion":"apps/v1","kind":"B","name":"b","uid":"2","controller":true}]'
    )
    pod = msgspec.json.decode(b'{"metadata": {"ownerReferences": %s}}' % owners, type=PodObject)
    assert pod.metadata.controller is not None
    assert (pod.metadata.controller.kind, pod.metadata.controller.group) == ("B", "apps")


def test_reference_group_of_core_is_empty():
    assert Reference("v1", "Pod", "a", "1").group == ""


def test_ms_reads_times_without_zone_as_utc():
    assert ms(None) is None
    assert ms(datetime(1970, 1, 1, 0, 0, 1)) == ms(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000
