"""Follows all objects of a cluster that matter for GPUs; a translator turns them into records."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from pyrometer.collect.gpu.scrape import ScrapeTarget
from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.api import Api, ApiError
from pyrometer.collect.kubernetes.discovery import ApiResource, Discovery
from pyrometer.collect.kubernetes.exporters import exporter_of, machine_exporter_of
from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.collect.kubernetes.owner_chains import OwnerChains
from pyrometer.collect.kubernetes.watch import PAGE, SMALL_PAGE, Gap, Resource, Watch, now_ms
from pyrometer.collect.source import Delivery
from pyrometer.model import events
from pyrometer.model.records import Event

MAX_DELIVERY_RECORDS = 5_000
MAX_WAITING = 20_000  # changes, 100 MB: those of 100,000 GPUs while the store is busy for a minute
HEARTBEAT_S = 30.0
LINGER_S = 0.02  # batches changes, because a transaction costs more than a record
MAX_ANNOTATION_CHARS = 512
GONE_OWNER_KEPT_MS = 3_600_000  # deleted owners, whose pods may still be observed
MAX_LOGGED_OBJECTS = 1_000  # objects whose errors were logged

_log = logging.getLogger("pyrometer")


# Objects that existed when the cluster was last watched: UID → namespace and name, by group and kind.
Known = Mapping[tuple[str, str], Mapping[str, tuple[str, str]]]


class Need(NamedTuple):
    """A resource that is read, and what is missing without it."""

    group: str
    kind: str
    plural: str
    type: Any
    costs: str
    optional: bool = False  # not every cluster has it


NEEDS = (
    Need("", "Node", "nodes", objects.NodeObject, "capacity: without nodes there are no GPU slots to account for"),
    Need("", "Namespace", "namespaces", objects.Namespace, "teams that namespace labels name"),
    Need(
        "resource.k8s.io",
        "ResourceClaim",
        "resourceclaims",
        objects.ResourceClaim,
        "the devices of pods with resource claims (DRA)",
        optional=True,
    ),
    Need("", "Pod", "pods", objects.PodObject, "everything: who holds which GPUs, from when to when"),
    Need(
        "", "Event", "events", objects.EventObject, "why pods wait or start slowly: image pulls, scheduling, preemption"
    ),
    Need(
        "kueue.x-k8s.io",
        "Workload",
        "workloads",
        objects.QueuedWorkload,
        "how long jobs wait in Kueue's queues, and which GPUs are free in the meantime",
        optional=True,
    ),
)


class ObjectTranslator(Protocol):
    """Turns observed objects into records."""

    def take(self, seen: ObservedObject) -> list[tuple[Any, ...]]:
        """Returns the records of an observed object."""
        ...

    def shrink(self, owner: objects.OwnerObject) -> objects.OwnerObject:
        """Removes unneeded fields of an owner, because tens of thousands may be in memory."""
        ...

    def whole(self, group: str, kind: str) -> bool:
        """Whether owners of a kind are needed with more than their metadata."""
        ...

    def tick(self, now_ms: int) -> None:
        """Called regularly with the current time."""
        ...


class KubernetesSource:
    """Follows one cluster. The deliveries never end."""

    def __init__(
        self,
        api: Api,
        translator: ObjectTranslator,
        *,
        cluster: str,
        always: Iterable[tuple[str, str]] = (),
        last_live_ms: int | None = None,
        known: Known | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.api = api
        self.watches: dict[tuple[str, str], Watch] = {}
        self.exporters: dict[str, ScrapeTarget] = {}  # GPU exporters among the pods
        self.machine_exporters: dict[str, ScrapeTarget] = {}  # node_exporters
        self.ready = asyncio.Event()  # set after all objects that existed at the start were delivered
        self.trouble: str | None = None  # why it cannot start
        self._translator = translator
        self._cluster = cluster
        self._always = tuple(always)  # kinds of owners that are followed from the start
        self._last_live_ms = last_live_ms
        self._known = known or {}
        self._heartbeat_s = heartbeat_s
        self._due_s = 0.0
        self._listed = False  # whether all needed resources were listed
        self._discovery = Discovery(api)
        self._queue: asyncio.Queue[list[ObservedObject | Gap] | None] = asyncio.Queue()
        self._waiting = 0  # changes that are not translated yet
        self._room = asyncio.Event()  # cleared to slow the watches down when the store is slow
        self._room.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._owners = OwnerChains(api, self._discovery, self._follow_owner, self._shrunk)
        self.unusable = 0  # the number of skipped objects
        self._unusable: set[str] = set()

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Yields records of changes."""
        starting = asyncio.create_task(self._start())
        self._tasks.add(starting)
        beating = asyncio.create_task(self._beat())
        self._tasks.add(beating)
        try:
            while True:
                batches = [await self._queue.get()]
                await asyncio.sleep(LINGER_S)
                while not self._queue.empty():
                    batches.append(self._queue.get_nowait())
                records: list[tuple[Any, ...]] = []
                for change in (change for batch in batches for change in batch or ()):
                    records += await self._translate(change)
                    self._make_room()
                    if len(records) >= MAX_DELIVERY_RECORDS:
                        yield Delivery(records)
                        records = []
                for seen in self._owners.take_changed():
                    records += self._records(seen)
                if self._due_s <= time.monotonic():
                    self._due_s = time.monotonic() + self._heartbeat_s
                    records.append(self._alive())
                if records:
                    yield Delivery(records)
                if starting.done():
                    starting.result()  # raises its error
                if self._listed and self._queue.empty() and all(w.synced.is_set() for w in self.watches.values()):
                    self.ready.set()
        finally:
            for task in self._tasks:
                task.cancel()
            for task in self._tasks:
                with suppress(asyncio.CancelledError):
                    await task

    def shortcomings(self) -> list[str]:
        """The resources that may not be read, and the effect of each."""
        found = []
        for need in NEEDS:
            watch = self.watches.get((need.group, need.kind))
            if watch is not None and watch.denied:
                found.append(f"{watch.resource.name} may not be read: {need.costs}")
        unreadable = sum(watch.unreadable for watch in self.watches.values()) + self.unusable
        if unreadable:
            found.append(f"objects that could not be decoded were skipped {unreadable} times; the log names them")
        for name, why in sorted(self._unread_owners()):
            found.append(f"{name} may not be read: each pod below counts as part of its last readable owner ({why})")
        return found

    def _unread_owners(self) -> Iterator[tuple[str, str]]:
        """The unreadable resources above pods, each with the API's error."""
        for watch in self.watches.values():
            if watch.denied and watch.resource.type is objects.OwnerObject:
                yield watch.resource.name, watch.denied
        for kind, denied in self._owners.denied.items():
            followed = self.watches.get(kind)
            if followed is None or followed.resource.type is not objects.OwnerObject:
                yield denied

    # -- watches ------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Starts watches in the order of NEEDS, because pods refer to the resources before them."""
        for group, kind in self._always:
            await self._follow_owner(group, kind)
        for need in NEEDS:
            resource = await self._find(need)
            if resource is None and need.optional:
                continue
            version = resource.version if resource else "v1"
            watch = self._follow(Resource(need.group, version, need.plural, need.kind, need.type))
            await watch.synced.wait()
        self._listed = True
        self._wake()  # there may be no changes for a while

    async def _find(self, need: Need) -> ApiResource | None:
        """Finds a needed resource as soon as the API answers; None if the cluster does not have it."""
        while True:
            try:
                resource = await self._discovery.find(need.group, need.kind)
            except ApiError as error:
                self.trouble = str(error)
                await asyncio.sleep(1.0)
            else:
                self.trouble = None
                return resource

    def _follow(self, resource: Resource) -> Watch:
        known = self._known.get((resource.group, resource.kind))
        watch = Watch(self.api, resource, last_live_ms=self._last_live_ms, known=known)
        self.watches[resource.group, resource.kind] = watch
        task = asyncio.create_task(self._pump(watch))
        self._tasks.add(task)
        return watch

    async def _pump(self, watch: Watch) -> None:
        async for changes in watch.changes():
            if watch.resource.type is objects.OwnerObject:
                self._owners.add(changes)
                self._wake()
            elif changes:
                await self._room.wait()
                self._waiting += len(changes)
                if self._waiting >= MAX_WAITING:
                    self._room.clear()
                self._queue.put_nowait(changes)
            else:
                self._wake()

    def _make_room(self) -> None:
        self._waiting -= 1
        if self._waiting < MAX_WAITING:
            self._room.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._wake()

    def _wake(self) -> None:
        """Wakes the delivery loop without a change."""
        if self._queue.empty():
            self._queue.put_nowait(None)

    def _alive(self) -> Event:
        """Extends the accounted time on a cluster without changes."""
        at_ms = now_ms()
        self._translator.tick(at_ms)
        self._owners.forget(at_ms - GONE_OWNER_KEPT_MS)
        return Event(time_ms=at_ms, kind=events.WATCHED, cluster=self._cluster)

    # -- translation --------------------------------------------------------------------------------------------------

    async def _translate(self, change: ObservedObject | Gap) -> list[tuple[Any, ...]]:
        if isinstance(change, Gap):
            return [_gap_event(change, self._cluster)] if change.resource.kind == "Pod" else []
        if isinstance(change.object, objects.PodObject):
            self._update_exporters(change)
        if isinstance(change.object, objects.PodObject | objects.QueuedWorkload) and not change.vanished:
            change = change._replace(chain=await self._owners.above(change.object.metadata))
        return self._records(change)

    def _records(self, change: ObservedObject) -> list[tuple[Any, ...]]:
        """The records of a change. An object that cannot be translated does not affect the others."""
        try:
            return self._translator.take(change)
        except Exception:
            self._log_unusable(change.object)
            return []

    def _log_unusable(self, thing: Any) -> None:
        """Logs an object once, because tenants may write invalid objects repeatedly."""
        meta: objects.Meta = thing.metadata
        self.unusable += 1
        if meta.uid not in self._unusable:
            if len(self._unusable) >= MAX_LOGGED_OBJECTS:
                self._unusable.clear()
            self._unusable.add(meta.uid)
            kind = type(thing).__name__.removesuffix("Object")
            _log.exception("%s %s/%s is skipped", kind, meta.namespace, meta.name)

    def _update_exporters(self, change: ObservedObject) -> None:
        uid = change.object.metadata.uid
        for known, target_of in ((self.exporters, exporter_of), (self.machine_exporters, machine_exporter_of)):
            target = None if change.gone else target_of(change.object)
            if target is None:
                known.pop(uid, None)
            else:
                known[uid] = target

    # -- owners -------------------------------------------------------------------------------------------------------

    async def _follow_owner(self, group: str, kind: str) -> Watch | None:
        """Follows a kind from now on, if the cluster has it."""
        known = self.watches.get((group, kind))
        if known is not None:
            return known
        try:
            resource = await self._discovery.find(group, kind)
        except ApiError:
            return None
        if resource is None:
            return None
        whole = self._translator.whole(group, kind)
        page = SMALL_PAGE if whole else PAGE
        return self._follow(
            Resource(
                group, resource.version, resource.plural, kind, objects.OwnerObject, metadata_only=not whole, page=page
            )
        )

    def _shrunk(self, owner: objects.OwnerObject) -> objects.OwnerObject:
        notes = owner.metadata.annotations
        if notes:
            owner.metadata.annotations = {k: v for k, v in notes.items() if len(v) <= MAX_ANNOTATION_CHARS}
        try:
            return self._translator.shrink(owner)
        except Exception:
            self._log_unusable(owner)
            owner.spec = owner.status = None
            return owner


def _gap_event(gap: Gap, cluster: str) -> Event:
    """A time in which the pods of a cluster were not watched."""
    lasted_ms = max(gap.to_ms - gap.from_ms, 0)
    return Event(time_ms=gap.from_ms, kind=events.WATCH_GAP, duration_ms=lasted_ms, cluster=cluster)
