"""The Kubernetes objects, as far as Pyrometer reads them: what is not declared here is skipped while it is decoded.

Everything may be absent: the API writes an empty list as `null`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

Words = dict[str, str]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]  # as the API has them


class _Object(Struct, rename="camel"):
    """How all of them are decoded."""


class Reference(_Object):
    """The object that an object says it belongs to."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False

    @property
    def group(self) -> str:
        """The API group, without the version; empty for the core."""
        return self.api_version.rpartition("/")[0]


class Meta(_Object):
    """What every object says of itself."""

    name: str = ""
    generate_name: str = ""
    uid: str = ""
    namespace: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Words | None = None
    annotations: Words | None = None
    owner_references: list[Reference] | None = None

    @property
    def controller(self) -> Reference | None:
        """The one owner that manages it; mere `ownerReferences` do not count."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)


class OwnerObject(_Object):
    """Any object above a pod: its place in the chain, and what it says about itself."""

    metadata: Meta
    api_version: str = ""
    kind: str = ""
    spec: Any = None
    status: Any = None
    gang_pods: int | None = None  # not of the API: how many pods must be there before any can work

    @property
    def group(self) -> str:
        """The API group, without the version."""
        return self.api_version.rpartition("/")[0]


class Condition(_Object):
    """One of an object's conditions."""

    type: str
    status: str
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class Resources(_Object):
    """What a container asks for."""

    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class Variable(_Object):
    """An environment variable; one that comes from elsewhere has no value here."""

    name: str
    value: str = ""


class Port(_Object):
    """A port that a container says it listens on."""

    name: str = ""
    container_port: Int32 = 0


class ContainerObject(_Object):
    """A container of a pod."""

    name: str = ""
    resources: Resources | None = None
    env: list[Variable] | None = None
    ports: list[Port] | None = None
    restart_policy: str = ""  # "Always" makes an init container a sidecar


class SchedulingGroup(_Object):
    """The gang of a pod, from Kubernetes 1.36 on."""

    pod_group_name: str = ""


class ClaimOfPod(_Object):
    """A device claim (DRA) that a pod names."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(_Object):
    """What a pod should be."""

    node_name: str = ""
    containers: list[ContainerObject] | None = None
    init_containers: list[ContainerObject] | None = None
    resource_claims: list[ClaimOfPod] | None = None
    scheduling_group: SchedulingGroup | None = None


class Waiting(_Object):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class Running(_Object):
    """Since when a container runs."""

    started_at: datetime | None = None


class Terminated(_Object):
    """How a container ended."""

    exit_code: Int32 = 0
    signal: Int32 = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(_Object):
    """One of three."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Object):
    """What a container is doing, and how it ended before."""

    name: str = ""
    restart_count: Int32 = 0
    state: ContainerState = field(default_factory=ContainerState)
    last_state: ContainerState = field(default_factory=ContainerState)


class ClaimStatus(_Object):
    """The claim that was made for a pod's entry in `resourceClaims`."""

    name: str
    resource_claim_name: str | None = None


class PodStatus(_Object):
    """What a pod is."""

    phase: str = "Unknown"
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    start_time: datetime | None = None
    pod_ip: str = field(name="podIP", default="")
    container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[ClaimStatus] | None = None


class PodObject(_Object):
    """A pod."""

    metadata: Meta
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)


class Taint(_Object):
    """What keeps pods off a node."""

    key: str
    effect: str = ""
    value: str = ""
    time_added: datetime | None = None


class NodeSpec(_Object):
    """What a node should be."""

    unschedulable: bool = False
    taints: list[Taint] | None = None
    provider_id: str = field(name="providerID", default="")


class NodeStatus(_Object):
    """What a node is."""

    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    conditions: list[Condition] | None = None


class NodeObject(_Object):
    """A node."""

    metadata: Meta
    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)


class Namespace(_Object):
    """A namespace: its labels may say whose it is."""

    metadata: Meta


class Concerned(_Object):
    """The object that an event is about."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""


class EventSeries(_Object):
    """How often an event happened, and when last."""

    count: Int32 = 1
    last_observed_time: datetime | None = None


class EventObject(_Object):
    """Something that a component of the cluster noticed (core/v1)."""

    metadata: Meta
    involved_object: Concerned = field(default_factory=Concerned)
    reason: str = ""
    message: str = ""
    type: str = ""
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: EventSeries | None = None


class AllocatedDevice(_Object):
    """A device that a claim was given."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    request: str = ""


class Devices(_Object):
    """The devices of a claim."""

    results: list[AllocatedDevice] | None = None


class ClaimAllocation(_Object):
    """What a claim was given."""

    devices: Devices = field(default_factory=Devices)


class Consumer(_Object):
    """Who may use a claim."""

    name: str = ""
    uid: str = ""
    resource: str = ""


class ResourceClaimStatus(_Object):
    """What became of a claim."""

    allocation: ClaimAllocation | None = None
    reserved_for: list[Consumer] | None = None


class ResourceClaim(_Object):
    """A claim on devices (DRA)."""

    metadata: Meta
    status: ResourceClaimStatus = field(default_factory=ResourceClaimStatus)


class PodSet(_Object):
    """Pods of one kind that a queued workload needs."""

    name: str = ""
    count: Int32 = 1
    template: Any = None


class QueuedSpec(_Object):
    """What a queued workload needs."""

    queue_name: str = ""
    pod_sets: list[PodSet] | None = None


class QueuedStatus(_Object):
    """How far a queued workload has come."""

    conditions: list[Condition] | None = None


class Queued(_Object):
    """Kueue's Workload: a job in a queue."""

    metadata: Meta
    spec: QueuedSpec = field(default_factory=QueuedSpec)
    status: QueuedStatus = field(default_factory=QueuedStatus)


class ListMeta(_Object):
    """Where a list was read, and how it goes on."""

    resource_version: str = ""
    continue_: str = field(name="continue", default="")
    remaining_item_count: int | UnsetType = UNSET


class Listing(_Object):
    """One page of a list; its items are decoded one by one."""

    metadata: ListMeta = field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class WatchEvent(_Object):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Status(_Object):
    """What the API says when it says no."""

    message: str = ""
    reason: str = ""
    code: int = 0


class Bookmark(_Object):
    """How far a watch has come."""

    metadata: Meta


class ObservedObject(NamedTuple):
    """An object as a watch observed it, or that it is gone. `seen_ms`: when, or when a vanished one last existed."""

    object: Any
    seen_ms: int
    gone: bool = False
    vanished: bool = False  # its deletion was not observed: it was missing when everything was listed again
    chain: tuple[OwnerObject, ...] = ()  # its owners, the nearest first


def ms(moment: datetime | None) -> int | None:
    """A time of the API in milliseconds; its clock ticks in seconds, or for some events in microseconds."""
    if moment is None:
        return None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
