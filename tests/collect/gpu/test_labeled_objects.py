"""Nodes and pods from the labels of telemetry."""

from __future__ import annotations

from pyrometer.collect.gpu.device import SlotAddress, device_use
from pyrometer.collect.gpu.labeled_objects import machines, pods

T0 = 1_794_700_000_000


def test_machines_have_highest_index_plus_one_gpus():
    addresses = [SlotAddress(("a",), 0, gpu_model="H100"), SlotAddress(("a",), 7), SlotAddress(("b",), 0)]
    first, second = machines(addresses, {"a": "uid-a"})
    assert (first.metadata.uid, first.status.capacity) == ("uid-a", {"nvidia.com/gpu": 8})
    assert first.metadata.labels == {"nvidia.com/gpu.product": "H100"}
    assert (second.metadata.uid, second.status.capacity) == ("host/b", {"nvidia.com/gpu": 1})


def test_pods_end_if_not_seen_recently():
    old, new = (device_use("host/a", SlotAddress(("a",), 0, namespace="ml", pod=name)) for name in ("old-0", "new-0"))
    seen = list(pods("lab", {old: (T0, T0 + 1_000), new: (T0, T0 + 9_000)}, {}, T0 + 5_000))
    changes = [(one.object.metadata.name, one.seen_ms, one.gone) for one in seen]
    assert changes == [("old-0", T0, False), ("old-0", T0 + 1_000, True), ("new-0", T0, False)]


def test_pods_of_similar_names_share_an_owner():
    uses = {
        device_use("host/a", SlotAddress(("a",), index, namespace="ml", pod=f"llama-worker-{index}")): (T0, T0)
        for index in range(2)
    }
    assert {one.chain[0].metadata.name for one in pods("lab", uses, {}, T0)} == {"llama"}
