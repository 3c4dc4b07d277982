"""Keeps the chains of owners above pods, from watches and single requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import msgspec

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.api import Api, ApiError, DeniedError, MissingError
from pyrometer.collect.kubernetes.discovery import Discovery
from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.collect.kubernetes.watch import Gap, Resource, Watch

MAX_OWNERS = 10  # above a pod
NODE = ("", "Node")  # the owner of static pods: it has no owner and no namespace


class OwnerChains:
    """The owners of a cluster, by UID.

    `follow` starts the watch of a kind of owners, if the cluster has that kind. `shrink` removes unneeded fields.
    """

    def __init__(
        self,
        api: Api,
        discovery: Discovery,
        follow: Callable[[str, str], Awaitable[Watch | None]],
        shrink: Callable[[objects.OwnerObject], objects.OwnerObject],
    ) -> None:
        self.denied: dict[tuple[str, str], tuple[str, str]] = {}  # resource and error, by group and kind
        self._api = api
        self._discovery = discovery
        self._follow = follow
        self._shrink = shrink
        self._owners: dict[str, objects.OwnerObject] = {}
        self._changed: dict[str, ObservedObject] = {}  # the newest change of each owner
        self._gone_ms: dict[str, int] = {}

    async def above(self, meta: objects.Meta) -> tuple[objects.OwnerObject, ...]:
        """The owners above an object, the nearest first. An owner that cannot be read ends the chain."""
        chain: list[objects.OwnerObject] = []
        reference, namespace = meta.controller, meta.namespace
        while reference is not None and len(chain) < MAX_OWNERS:
            owner = self._owners.get(reference.uid) or await self._read(reference, namespace)
            chain.append(owner)
            reference = owner.metadata.controller
        return tuple(chain)

    def add(self, changes: Iterable[ObservedObject | Gap]) -> None:
        """Adds the changes of a watch."""
        for change in changes:
            if isinstance(change, ObservedObject):
                uid = change.object.metadata.uid
                if change.gone:
                    self._gone_ms[uid] = change.seen_ms  # its pods may still be observed
                else:
                    self._owners[uid] = self._shrink(change.object)
                    self._gone_ms.pop(uid, None)
                self._changed[uid] = change

    def take_changed(self) -> Iterable[ObservedObject]:
        """Returns the newest change of each owner since the previous call."""
        changed, self._changed = self._changed, {}
        return changed.values()

    def forget(self, before_ms: int) -> None:
        """Forgets owners that were deleted before a time."""
        for uid in [uid for uid, gone_ms in self._gone_ms.items() if gone_ms < before_ms]:
            del self._gone_ms[uid]
            self._owners.pop(uid, None)

    async def _read(self, reference: objects.Reference, namespace: str) -> objects.OwnerObject:
        if reference.group or reference.kind != "Pod":
            watch = await self._follow(reference.group, reference.kind)
            if watch is not None:
                await watch.synced.wait()
            found = self._owners.get(reference.uid)
            if found is not None:
                return found
        owner = await self._get(reference, namespace)
        self._owners[reference.uid] = owner
        return owner

    async def _get(self, reference: objects.Reference, namespace: str) -> objects.OwnerObject:
        """Requests one owner. If it is gone or may not be read, its fields are those of the reference."""
        known = referenced_owner(reference, namespace)
        if (reference.group, reference.kind) == NODE:
            return known
        try:
            found = await self._discovery.find(reference.group, reference.kind)
            if found is None:
                return known
            resource = Resource(
                reference.group, found.version, found.plural, reference.kind, objects.OwnerObject, metadata_only=True
            )
            body = await self._api.get(resource.named(namespace, reference.name), accept=resource.accept(listed=False))
            owner = msgspec.json.decode(body, type=objects.OwnerObject)
        except MissingError:
            return known
        except DeniedError as error:
            self.denied[reference.group, reference.kind] = resource.name, str(error)
            return known
        except (ApiError, msgspec.MsgspecError, ValueError, RecursionError):
            return known
        if owner.metadata.uid != reference.uid:  # another object of that name
            return known
        owner.api_version, owner.kind = reference.api_version, reference.kind
        return self._shrink(owner)


def referenced_owner(reference: objects.Reference, namespace: str) -> objects.OwnerObject:
    """An owner of which only a reference is known."""
    meta = objects.Meta(name=reference.name, uid=reference.uid, namespace=namespace)
    return objects.OwnerObject(meta, reference.api_version, reference.kind)
