"""A cluster as a source: everything that matters for GPUs, followed at once, turned into records by a translator."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import msgspec

from pyrometer.collect.gpu.scrape import ScrapeTarget
from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.api import Api, ApiError, DeniedError, MissingError
from pyrometer.collect.kubernetes.discovery import ApiResource, Discovery
from pyrometer.collect.kubernetes.exporters import exporter_of, machine_exporter_of
from pyrometer.collect.kubernetes.objects import ObservedObject
from pyrometer.collect.kubernetes.watch import PAGE, SMALL_PAGE, Gap, Resource, Watch, now_ms
from pyrometer.collect.source import Delivery
from pyrometer.model import events
from pyrometer.model.records import Event

MOST_IN_A_DELIVERY = 5_000
MOST_WAITING = 20_000  # changes, 100 MB: a store may be busy for a minute, and 100,000 GPUs change as much meanwhile
HEARTBEAT_S = 30.0
LINGER_S = 0.02  # what comes together is stored together: a transaction costs more than a record
LONGEST_ANNOTATION = 512
REMEMBERED_MS = 3_600_000  # owners that are gone
MOST_UNUSABLE = 1_000  # objects of which it is remembered that they were spoken of

MAX_OWNERS = 10  # above a pod
NODE = ("", "Node")  # the owner of static pods: nothing is above it, and it is not in a namespace

_log = logging.getLogger("pyrometer")


# What was there when a cluster was last watched: by group and kind, UID → namespace and name.
Known = Mapping[tuple[str, str], Mapping[str, tuple[str, str]]]


class Need(NamedTuple):
    """Something that is read, and what is not known without it."""

    group: str
    kind: str
    plural: str
    type: Any
    costs: str
    optional: bool = False  # a cluster that does not have it misses nothing


NEEDS = (
    Need(
        "",
        "Node",
        "nodes",
        objects.NodeObject,
        "capacity: without nodes there are no slots, and nothing to account for",
    ),
    Need("", "Namespace", "namespaces", objects.Namespace, "teams that are named by labels of namespaces"),
    Need(
        "resource.k8s.io",
        "ResourceClaim",
        "resourceclaims",
        objects.ResourceClaim,
        "which devices pods have that ask for them by claims (DRA)",
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
        objects.Queued,
        "how long jobs wait in Kueue's queues, and which GPUs lie free meanwhile",
        optional=True,
    ),
)


class ObjectTranslator(Protocol):
    """Turns what was seen into records."""

    def take(self, seen: ObservedObject) -> list[tuple[Any, ...]]:
        """What to write down about it."""
        ...

    def shrink(self, owner: objects.OwnerObject) -> objects.OwnerObject:
        """An owner without what will not be needed again: there may be tens of thousands."""
        ...

    def whole(self, group: str, kind: str) -> bool:
        """Whether more than the metadata of such owners is needed."""
        ...

    def tick(self, now_ms: int) -> None:
        """Time goes by."""
        ...


class KubernetesSource:
    """Follows one cluster. Its deliveries never end."""

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
        self._denied_owners: dict[tuple[str, str], tuple[str, str]] = {}  # by group and kind: resource, answer
        self.exporters: dict[str, ScrapeTarget] = {}  # GPU exporters among the pods
        self.machine_exporters: dict[str, ScrapeTarget] = {}  # node_exporters
        self.ready = asyncio.Event()  # everything that was there at the start has been handed over
        self.trouble: str | None = None  # what keeps it from starting
        self._translator = translator
        self._cluster = cluster
        self._always = tuple(always)  # kinds of owners that are followed before any pod names them
        self._last_live_ms = last_live_ms
        self._known = known or {}  # what was there when it was last watched: by kind, UID → namespace, name
        self._heartbeat_s = heartbeat_s
        self._due_s = 0.0
        self._listed = False  # everything that is followed from the start on
        self._discovery = Discovery(api)
        self._queue: asyncio.Queue[list[ObservedObject | Gap] | None] = asyncio.Queue()
        self._waiting = 0  # changes in it, and those of which no records are made yet
        self._room = asyncio.Event()  # a store that is slow slows the watches down
        self._room.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._owners: dict[str, objects.OwnerObject] = {}
        self._changed_owners: dict[str, ObservedObject] = {}
        self._gone_owners: dict[str, int] = {}
        self.unusable = 0  # how often an object was passed over
        self._unusable: set[str] = set()

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Records, as things happen."""
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
                    if len(records) >= MOST_IN_A_DELIVERY:
                        yield Delivery(records)
                        records = []
                changed, self._changed_owners = self._changed_owners, {}
                for seen in changed.values():
                    records += self._taken(seen)
                if self._due_s <= time.monotonic():
                    self._due_s = time.monotonic() + self._heartbeat_s
                    records.append(self._alive())
                if records:
                    yield Delivery(records)
                if starting.done():
                    starting.result()  # what went wrong there is said here
                if self._listed and self._queue.empty() and all(w.synced.is_set() for w in self.watches.values()):
                    self.ready.set()
        finally:
            for task in self._tasks:
                task.cancel()
            for task in self._tasks:
                with suppress(asyncio.CancelledError):
                    await task

    def shortcomings(self) -> list[str]:
        """What may not be read, and what that costs."""
        said = []
        for need in NEEDS:
            watch = self.watches.get((need.group, need.kind))
            if watch is not None and watch.denied:
                said.append(f"{watch.resource.name} may not be read: {need.costs}")
        unreadable = sum(watch.unreadable for watch in self.watches.values()) + self.unusable
        if unreadable:
            said.append(f"objects in a form that is not known were passed over {unreadable} times: the log names them")
        for name, why in sorted(self._unread_owners()):
            said.append(f"{name} may not be read: pods below stay where the chain of owners ends ({why})")
        return said

    def _unread_owners(self) -> Iterator[tuple[str, str]]:
        """The resources above pods that may not be read, each with what the API answered."""
        for watch in self.watches.values():
            if watch.denied and watch.resource.type is objects.OwnerObject:
                yield watch.resource.name, watch.denied
        for kind, denied in self._denied_owners.items():
            followed = self.watches.get(kind)
            if followed is None or followed.resource.type is not objects.OwnerObject:
                yield denied

    # -- what is followed ---------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """In the order of the table: pods refer to what stands before them."""
        for group, kind in self._always:
            await self._follow_owner(group, kind)
        for need in NEEDS:
            place = await self._place_of(need)
            if place is None and need.optional:
                continue
            version = place.version if place else "v1"
            watch = self._follow(Resource(need.group, version, need.plural, need.kind, need.type))
            await watch.synced.wait()
        self._listed = True
        self._wake()  # nothing else may come for a while

    async def _place_of(self, need: Need) -> ApiResource | None:
        """Where the cluster has what is needed, as soon as it answers; None when it does not have it."""
        while True:
            try:
                place = await self._discovery.find(need.group, need.kind)
            except ApiError as error:
                self.trouble = str(error)
                await asyncio.sleep(1.0)
            else:
                self.trouble = None
                return place

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
                self._remember(changes)
            elif changes:
                await self._room.wait()
                self._waiting += len(changes)
                if self._waiting >= MOST_WAITING:
                    self._room.clear()
                self._queue.put_nowait(changes)
            else:
                self._wake()

    def _make_room(self) -> None:
        self._waiting -= 1
        if self._waiting < MOST_WAITING:
            self._room.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._wake()

    def _wake(self) -> None:
        """Something is to be looked at besides changes."""
        if self._queue.empty():
            self._queue.put_nowait(None)

    def _alive(self) -> Event:
        """Moves the end of what is accounted for, on a cluster on which nothing happens."""
        at_ms = now_ms()
        self._translator.tick(at_ms)
        for uid in [uid for uid, gone_ms in self._gone_owners.items() if gone_ms < at_ms - REMEMBERED_MS]:
            del self._gone_owners[uid]
            self._owners.pop(uid, None)
        return Event(time_ms=at_ms, kind=events.WATCHED, cluster=self._cluster)

    # -- translation --------------------------------------------------------------------------------------------------

    async def _translate(self, change: ObservedObject | Gap) -> list[tuple[Any, ...]]:
        if isinstance(change, Gap):
            return [_gap_event(change, self._cluster)] if change.resource.kind == "Pod" else []
        if isinstance(change.object, objects.PodObject):
            self._notice_exporter(change)
        if isinstance(change.object, objects.PodObject | objects.Queued) and not change.vanished:
            change = change._replace(chain=await self._chain(change.object.metadata))
        return self._taken(change)

    def _taken(self, change: ObservedObject) -> list[tuple[Any, ...]]:
        """What to write down about an object. One that nobody was prepared for costs no other."""
        try:
            return self._translator.take(change)
        except Exception:
            self._is_unusable(change.object)
            return []

    def _is_unusable(self, thing: Any) -> None:
        """Says so once; anybody may write objects, and again and again."""
        meta: objects.Meta = thing.metadata
        self.unusable += 1
        if meta.uid not in self._unusable:
            if len(self._unusable) >= MOST_UNUSABLE:
                self._unusable.clear()
            self._unusable.add(meta.uid)
            kind = type(thing).__name__.removesuffix("Object")
            _log.exception("%s %s/%s is passed over", kind, meta.namespace, meta.name)

    def _notice_exporter(self, change: ObservedObject) -> None:
        uid = change.object.metadata.uid
        for known, target_of in ((self.exporters, exporter_of), (self.machine_exporters, machine_exporter_of)):
            target = None if change.gone else target_of(change.object)
            if target is None:
                known.pop(uid, None)
            else:
                known[uid] = target

    # -- owners -------------------------------------------------------------------------------------------------------

    async def _chain(self, meta: objects.Meta) -> tuple[objects.OwnerObject, ...]:
        """The owners above an object, the nearest first; one that cannot be read ends the chain."""
        chain: list[objects.OwnerObject] = []
        reference, namespace = meta.controller, meta.namespace
        while reference is not None and len(chain) < MAX_OWNERS:
            owner = self._owners.get(reference.uid) or await self._read_owner(reference, namespace)
            chain.append(owner)
            reference = owner.metadata.controller
        return tuple(chain)

    async def _read_owner(self, reference: objects.Reference, namespace: str) -> objects.OwnerObject:
        if reference.group or reference.kind != "Pod":
            watch = await self._follow_owner(reference.group, reference.kind)
            if watch is not None:
                await watch.synced.wait()
            found = self._owners.get(reference.uid)
            if found is not None:
                return found
        owner = await self._get_owner(reference, namespace)
        self._owners[reference.uid] = owner
        return owner

    async def _follow_owner(self, group: str, kind: str) -> Watch | None:
        """Follows a kind from now on, if the cluster has it."""
        known = self.watches.get((group, kind))
        if known is not None:
            return known
        try:
            place = await self._discovery.find(group, kind)
        except ApiError:
            return None
        if place is None:
            return None
        whole = self._translator.whole(group, kind)
        page = SMALL_PAGE if whole else PAGE
        return self._follow(
            Resource(group, place.version, place.plural, kind, objects.OwnerObject, metadata_only=not whole, page=page)
        )

    async def _get_owner(self, reference: objects.Reference, namespace: str) -> objects.OwnerObject:
        """One owner; of one that is gone, or may not be read, the reference is all there is."""
        known = _referenced_owner(reference, namespace)
        if (reference.group, reference.kind) == NODE:
            return known
        try:
            place = await self._discovery.find(reference.group, reference.kind)
            if place is None:
                return known
            kind = Resource(
                reference.group, place.version, place.plural, reference.kind, objects.OwnerObject, metadata_only=True
            )
            answer = await self.api.get(kind.named(namespace, reference.name), accept=kind.accept(listed=False))
            owner = msgspec.json.decode(answer, type=objects.OwnerObject)
        except MissingError:
            return known
        except DeniedError as error:
            self._denied_owners[reference.group, reference.kind] = kind.name, str(error)
            return known
        except (ApiError, msgspec.MsgspecError, ValueError, RecursionError):
            return known
        if owner.metadata.uid != reference.uid:  # another object of that name
            return known
        owner.api_version, owner.kind = reference.api_version, reference.kind
        return self._shrunk(owner)

    def _remember(self, changes: list[ObservedObject | Gap]) -> None:
        """Keeps owners for the chains of pods; the translator hears of changes, of each owner only the newest."""
        for change in changes:
            if isinstance(change, ObservedObject):
                uid = change.object.metadata.uid
                if change.gone:
                    self._gone_owners[uid] = change.seen_ms  # its pods may be seen for a while yet
                else:
                    self._owners[uid] = self._shrunk(change.object)
                    self._gone_owners.pop(uid, None)
                self._changed_owners[uid] = change
        self._wake()

    def _shrunk(self, owner: objects.OwnerObject) -> objects.OwnerObject:
        notes = owner.metadata.annotations
        if notes:
            owner.metadata.annotations = {k: v for k, v in notes.items() if len(v) <= LONGEST_ANNOTATION}
        try:
            return self._translator.shrink(owner)
        except Exception:
            self._is_unusable(owner)
            owner.spec = owner.status = None
            return owner


def _gap_event(gap: Gap, cluster: str) -> Event:
    """A time in which the pods of a cluster were not watched."""
    lasted_ms = max(gap.to_ms - gap.from_ms, 0)
    return Event(time_ms=gap.from_ms, kind=events.WATCH_GAP, duration_ms=lasted_ms, cluster=cluster)


def _referenced_owner(reference: objects.Reference, namespace: str) -> objects.OwnerObject:
    """An owner of which only a reference is known."""
    meta = objects.Meta(name=reference.name, uid=reference.uid, namespace=namespace)
    return objects.OwnerObject(meta, reference.api_version, reference.kind)
