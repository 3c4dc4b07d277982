"""Reads the current objects of a cluster once, without a watch: nodes, pods, exporters, and owners by name."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from pyrometer.collect.kubernetes.api import Api, ApiError
from pyrometer.collect.kubernetes.discovery import Discovery
from pyrometer.collect.kubernetes.exporters import NAME_LABELS, NAMES, exporter_of
from pyrometer.collect.kubernetes.objects import Listing, NodeObject, OwnerObject, PodObject
from pyrometer.collect.kubernetes.watch import PAGE, Resource

_LISTING = msgspec.json.Decoder(Listing)
_NODE = msgspec.json.Decoder(NodeObject)
_POD = msgspec.json.Decoder(PodObject)


async def nodes(api: Api) -> list[NodeObject]:
    """Returns all nodes."""
    found: list[NodeObject] = []
    following = ""
    while True:
        params = {"limit": str(PAGE)} | ({"continue": following} if following else {})
        page = _LISTING.decode(await api.get("/api/v1/nodes", params))
        found += [_NODE.decode(item) for item in page.items or ()]
        following = page.metadata.continue_
        if not following:
            return found


async def pods(api: Api) -> AsyncIterator[list[PodObject]]:
    """Yields all pods in pages. Pods that cannot be decoded are skipped."""
    following = ""
    while True:
        params = {"limit": str(PAGE)} | ({"continue": following} if following else {})
        try:
            page = _LISTING.decode(await api.get("/api/v1/pods", params))
        except msgspec.DecodeError as error:
            raise ApiError(f"The API's list of pods cannot be read: {error}") from None
        found = []
        for item in page.items or ():
            try:
                found.append(_POD.decode(item))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
        yield found
        following = page.metadata.continue_
        if not following:
            return


async def exporters(api: Api) -> int | None:
    """The number of running GPU exporters; None if pods may not be read."""
    found: set[str] = set()
    for key in NAME_LABELS:
        params = {"labelSelector": f"{key} in ({','.join(NAMES)})"}
        try:
            page = _LISTING.decode(await api.get("/api/v1/pods", params))
        except (ApiError, msgspec.DecodeError):
            return None
        pods = [_POD.decode(item) for item in page.items or ()]
        found |= {pod.metadata.uid for pod in pods if exporter_of(pod)}
    return len(found)


class Owners:
    """Finds existing owners by kind and name."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._discovery = Discovery(api)

    async def find(self, group: str, kind: str, namespace: str, name: str) -> OwnerObject | None:
        """Finds an owner; None if it is gone or may not be read."""
        try:
            found = await self._discovery.find(group, kind)
            if found is None:
                return None
            resource = Resource(group, found.version, found.plural, kind, OwnerObject, metadata_only=True)
            answer = await self._api.get(resource.named(namespace, name), accept=resource.accept(listed=False))
            owner = msgspec.json.decode(answer, type=OwnerObject)
        except (ApiError, msgspec.DecodeError):
            return None
        owner.api_version, owner.kind = f"{group}/{found.version}" if group else found.version, kind
        return owner
