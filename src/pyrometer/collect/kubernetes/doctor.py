"""Checks whether a collector may read every resource that it needs, and reports the effect of missing permissions.

In addition to the known kinds of pod owners, it checks the owners of all current GPU pods, up to the root.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.api import Api, ApiError, DeniedError, MissingError
from pyrometer.collect.kubernetes.discovery import Discovery
from pyrometer.collect.kubernetes.owner_chains import MAX_OWNERS, NODE
from pyrometer.collect.kubernetes.snapshot import pods
from pyrometer.collect.kubernetes.source import NEEDS
from pyrometer.collect.kubernetes.watch import Resource

MAX_CONCURRENT = 8
OWNER_EFFECT = "the job of the pods below: each counts as part of the last readable owner"
_OWNER = msgspec.json.Decoder(objects.OwnerObject)

Kind = tuple[str, str]  # API group and kind


class ResourceCheck(NamedTuple):
    """The result for one resource and verb."""

    resource: str  # its name in RBAC
    group: str
    plural: str
    verb: str
    state: str  # ok, denied, absent, failed
    detail: str
    costs: str
    objects: int = 0  # unreadable objects of this kind that own GPU pods now
    pods: int = 0  # the GPU pods of these objects

    @property
    def well(self) -> bool:
        """Whether nothing is missing. A kind that the cluster does not have is not missing."""
        return self.state in ("ok", "absent")


class AccessReport(NamedTuple):
    """The resources that a collector can read."""

    checked: list[ResourceCheck]
    gpu_pods: int | None  # None if pods may not be read


class _Unread:
    """The unreadable objects of one kind that own GPU pods."""

    def __init__(self) -> None:
        self.uids: set[str] = set()
        self.pods = 0

    def add(self, owned: _Owned) -> None:
        self.uids.add(owned.reference.uid)
        self.pods += owned.pods


async def examine(api: Api, owners: Iterable[Kind], requests_gpus: Callable[[objects.PodObject], bool]) -> AccessReport:
    """Checks every resource with every verb that is used on it. `owners` are the known kinds of pod owners."""
    discovery = Discovery(api)
    limit = asyncio.Semaphore(MAX_CONCURRENT)
    gpu_pods, found = await _owners_of_gpu_pods(api, discovery, limit, requests_gpus)
    wanted = [(need.group, need.kind, need.plural, need.costs) for need in NEEDS]
    above = list(dict.fromkeys([*owners, *found]))
    needed = {(need.group, need.kind) for need in NEEDS}
    wanted += [(group, kind, "", OWNER_EFFECT) for group, kind in above if (group, kind) not in needed]
    got = {("", "Pod"), ("", "Namespace"), *above}  # kinds that are also read by name

    async def one(group: str, kind: str, plural: str, costs: str) -> list[ResourceCheck]:
        unread = ResourceCheck(
            resource=plural or kind, group=group, plural=plural, verb="list", state="failed", detail="", costs=costs
        )
        async with limit:
            try:
                found_kind = await discovery.find(group, kind)
            except ApiError as error:
                return [unread._replace(detail=str(error))]
            splits = found.get((group, kind), _Unread())
            if found_kind is None:
                name = f"{kind}.{group}" if group else kind
                return [unread._replace(resource=name, state="absent", objects=len(splits.uids), pods=splits.pods)]
            resource = Resource(group, found_kind.version, found_kind.plural, kind, None)
            verbs = ("get", "list", "watch") if (group, kind) in got else ("list", "watch")
            if splits.pods:
                costs += (
                    f". Now {_counted(len(splits.uids), 'object')} with {_counted(splits.pods, 'GPU pod')}: "
                    "each object counts as a workload"
                )
            return [
                ResourceCheck(
                    resource.name,
                    group,
                    found_kind.plural,
                    verb,
                    *(await _try(api, resource, verb)),
                    costs,
                    len(splits.uids),
                    splits.pods,
                )
                for verb in verbs
            ]

    answers = await asyncio.gather(*(one(*each) for each in wanted))
    return AccessReport([checked for group in answers for checked in group], gpu_pods)


async def _owners_of_gpu_pods(
    api: Api, discovery: Discovery, limit: asyncio.Semaphore, requests_gpus: Callable[[objects.PodObject], bool]
) -> tuple[int | None, dict[Kind, _Unread]]:
    """Follows the owners of all GPU pods to the root.

    Returns the number of pods, and the unreadable objects for each kind of owner.
    """
    found: dict[Kind, _Unread] = defaultdict(_Unread)
    level: dict[str, _Owned] = {}
    count = 0
    try:
        async for page in pods(api):
            for pod in page:
                if requests_gpus(pod):
                    count += 1
                    _note(level, pod.metadata.controller, pod.metadata.namespace, 1)
    except ApiError:
        return None, {}

    async def read(owned: _Owned) -> objects.OwnerObject | None:
        reference = owned.reference
        if (reference.group, reference.kind) == NODE:
            return None
        of_kind = found[reference.group, reference.kind]
        async with limit:
            try:
                found_kind = await discovery.find(reference.group, reference.kind)
                if found_kind is None:
                    of_kind.add(owned)
                    return None
                resource = Resource(
                    reference.group,
                    found_kind.version,
                    found_kind.plural,
                    reference.kind,
                    objects.OwnerObject,
                    metadata_only=True,
                )
                answer = await api.get(
                    resource.named(owned.namespace, reference.name), accept=resource.accept(listed=False)
                )
                owner = _OWNER.decode(answer)
            except DeniedError:
                of_kind.add(owned)
                return None
            except (ApiError, msgspec.MsgspecError, ValueError, RecursionError):
                return None
        return owner if owner.metadata.uid == reference.uid else None

    for _ in range(MAX_OWNERS):
        above: dict[str, _Owned] = {}
        below = list(level.values())
        for owned, owner in zip(below, await asyncio.gather(*map(read, below)), strict=True):
            if owner is not None:
                _note(above, owner.metadata.controller, owned.namespace, owned.pods)
        level = above
    return count, found


class _Owned(NamedTuple):
    """An owner and the number of GPU pods below it."""

    reference: objects.Reference
    namespace: str
    pods: int


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _note(level: dict[str, _Owned], reference: objects.Reference | None, namespace: str, pods: int) -> None:
    if reference is not None:
        before = level.get(reference.uid)
        level[reference.uid] = _Owned(reference, namespace, pods + (before.pods if before else 0))


async def _try(api: Api, resource: Resource, verb: str) -> tuple[str, str]:
    try:
        if verb == "get" and resource.kind == "Namespace":
            await api.get(f"{resource.path}/kube-system")
        elif verb == "get":
            await api.get(resource.named("default", "pyrometer-doctor"))
        elif verb == "list":
            await api.get(resource.path, {"limit": "1"})
        else:
            lines = api.lines(resource.path, {"watch": "true", "timeoutSeconds": "1"}, "application/json", 10.0)
            async for _ in lines:
                break
            await lines.aclose()  # type: ignore[attr-defined]
    except DeniedError as error:
        return "denied", str(error)
    except MissingError:  # `get` of a name that does not exist succeeds if it is allowed
        return ("ok" if verb == "get" else "absent"), ""
    except ApiError as error:
        return "failed", str(error)
    return "ok", ""
