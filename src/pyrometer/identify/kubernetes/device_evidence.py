"""The devices of pods, according to the scheduler's claims or the labels of exporters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pyrometer.collect.gpu.device import DeviceUse
from pyrometer.collect.kubernetes import objects
from pyrometer.identify.gpus.devices import SlotDevice, devices_of
from pyrometer.model.records import WHOLE_DEVICE

# Where the devices of a pod are known from: only their number, resource claims, labels of exporters.
COUNTED, CLAIMED, LABELED = "count", "dra", "dcgm"

Devices = tuple[SlotDevice, ...]
PodName = tuple[str, str]  # namespace, name


class DeviceEvidence:
    """The devices that claims and exporters give to pods."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], Devices] = {}  # by namespace and name of the claim
        self._used: dict[PodName, dict[str, set[SlotDevice]]] = {}  # on each node

    def take_claim(self, claim: objects.ResourceClaim, *, gone: bool) -> Devices:
        """Takes what the scheduler allocated to a claim (DRA). Returns its devices if they changed."""
        key = (claim.metadata.namespace, claim.metadata.name)
        devices = devices_of(claim)
        if gone:
            self._claims.pop(key, None)
            return ()
        if self._claims.get(key) == devices:
            return ()
        self._claims[key] = devices
        return devices

    def take_uses(self, uses: Iterable[DeviceUse]) -> set[PodName]:
        """Takes the pods that exporters see on devices. Returns those whose devices changed."""
        found: dict[PodName, dict[str, set[SlotDevice]]] = defaultdict(lambda: defaultdict(set))
        for use in uses:
            if use.pod:
                device = SlotDevice(use.slot_index, use.instance)
                found[use.namespace or "", use.pod][use.node_uid].add(device)
        changed = {pod: of_node for pod, of_node in found.items() if self._used.get(pod) != of_node}
        self._used.update(changed)
        return set(changed)

    def claimed(self, pod: objects.PodObject) -> tuple[Devices | None, str]:
        """The devices of the claims that a pod names, and where they are known from."""
        names = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or []}
        devices: list[SlotDevice] = []
        for claim in pod.spec.resource_claims or []:
            name = claim.resource_claim_name or names.get(claim.name)
            devices += self._claims.get((pod.metadata.namespace, name or ""), ())
        return (tuple(devices), CLAIMED) if devices else (None, COUNTED)

    def labeled(self, pod: PodName, node_uid: str | None, count: int) -> tuple[Devices | None, str]:
        """The devices on which exporters saw a pod, if they are as many as the pod requests."""
        devices = self._used.get(pod, {}).get(node_uid, set()) if node_uid is not None else set()
        whole = {device for device in devices if device.instance == WHOLE_DEVICE} or devices
        return (tuple(sorted(whole)), LABELED) if len(whole) == count else (None, COUNTED)

    def forget(self, pod: PodName) -> None:
        """Forgets the labels of a pod that is gone."""
        self._used.pop(pod, None)
