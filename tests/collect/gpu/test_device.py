"""Addresses and uses of devices."""

from __future__ import annotations

import pytest

from pyrometer.collect.gpu.device import SlotAddress, device_use, host_uid


@pytest.mark.parametrize(
    ("address", "of_pod"),
    [
        (SlotAddress(("a",), 0), False),
        (SlotAddress(("a",), 0, pod="train-0"), True),
        (SlotAddress(("a",), 0, claim="gpus"), True),
    ],
)
def test_slot_address_of_pod_needs_pod_or_claim(address, of_pod):
    assert address.of_pod == of_pod


def test_slot_addresses_are_compared_by_identity():
    assert SlotAddress(("a",), 0) != SlotAddress(("a",), 0)


def test_device_use_copies_fields_of_address():
    use = device_use("uid-a", SlotAddress(("a", "b"), 3, 1, "GPU-1", namespace="ml", pod="train-0"))
    assert (use.node_uid, use.slot_index, use.instance, use.uuid) == ("uid-a", 3, 1, "GPU-1")
    assert (use.namespace, use.pod, use.claim) == ("ml", "train-0", None)


def test_host_uid_has_prefix():
    assert host_uid("node-a") == "host/node-a"
