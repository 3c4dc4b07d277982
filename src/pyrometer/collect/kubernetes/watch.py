"""One kind of object, followed for ever: list, watch, go on where the connection broke, else list again.

Nothing is lost quietly. What was missed while nobody watched and is not there any more is reported as vanished, with
the time when it was last known to be there.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from pyrometer.collect.kubernetes.api import Api, ApiError, DeniedError, GoneError, MissingError, root
from pyrometer.collect.kubernetes.objects import Bookmark, Listing, Meta, ObservedObject, Status, WatchEvent

PAGE = 500
SMALL_PAGE = 50  # of objects that may be as large as the API allows
WATCH_S = 290  # the server ends a watch after this long, and is asked again
SILENT_S = WATCH_S + 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
DENIED_PAUSE_S = 300.0  # somebody may grant it meanwhile

_LISTING = msgspec.json.Decoder(Listing)
_LINE = msgspec.json.Decoder(WatchEvent)
_BOOKMARK = msgspec.json.Decoder(Bookmark)
_STATUS = msgspec.json.Decoder(Status)


class Resource(NamedTuple):
    """A kind of object, and where the API has it."""

    group: str
    version: str
    plural: str
    kind: str
    type: Any  # what it is decoded into
    metadata_only: bool = False
    page: int = PAGE

    @property
    def path(self) -> str:
        """Of all of them, in all namespaces."""
        return f"{root(self.group, self.version)}/{self.plural}"

    def named(self, namespace: str, name: str) -> str:
        """The path of one of them."""
        return f"{root(self.group, self.version)}/namespaces/{namespace}/{self.plural}/{name}"

    @property
    def name(self) -> str:
        """How RBAC calls it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def accept(self, *, listed: bool) -> str:
        """The form in which it is asked for."""
        if not self.metadata_only:
            return "application/json"
        form = "PartialObjectMetadataList" if listed else "PartialObjectMetadata"
        return f"application/json;as={form};g=meta.k8s.io;v=v1,application/json"


class Gap(NamedTuple):
    """Nobody watched: what came and went in between was not seen."""

    resource: Resource
    from_ms: int
    to_ms: int


def now_ms() -> int:
    """This machine's clock."""
    return time.time_ns() // 1_000_000


class Watch:
    """Follows one resource. Its state is public for those who want to know how it is."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        *,
        clock_ms: Callable[[], int] = now_ms,
        last_live_ms: int | None = None,
        known: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self.api = api
        self.resource = resource
        self.synced = asyncio.Event()  # everything that is there was seen once
        self.denied: str | None = None
        self.trouble: str | None = None
        self.listings = 0
        self.unreadable = 0  # objects in a form that the API does not have
        self.last_live_ms = last_live_ms  # when it was last known to see everything
        self._clock_ms = clock_ms
        self._decoder = msgspec.json.Decoder(resource.type)
        self._known = dict(known or {})  # UID → namespace, name
        self._version = ""

    async def changes(self) -> AsyncIterator[list[ObservedObject | Gap]]:
        """What happens, in the order in which it happens. Ends only when it is cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                if not self._version:
                    async for page in self._list():
                        yield page
                    self.denied = None
                    self.synced.set()
                began_ms = self._clock_ms()
                async for changes in self._watch():
                    yield changes
                    pause_s = FIRST_PAUSE_S
                if self._clock_ms() - began_ms < 1_000:  # the server ends it, as it was asked to, but not at once
                    await asyncio.sleep(FIRST_PAUSE_S)
            except GoneError as error:
                self.trouble = str(error)
                self._version = ""
                await asyncio.sleep(FIRST_PAUSE_S)
            except DeniedError as error:
                self.denied, self.trouble = str(error), None
                self.synced.set()  # there is nothing to wait for
                await asyncio.sleep(DENIED_PAUSE_S)
            except MissingError as error:
                self.trouble = str(error)
                self._version = ""
                self.synced.set()
                await asyncio.sleep(DENIED_PAUSE_S)
            except RecursionError:  # of a page: nothing of it can be read, and others are not to wait for it
                self.trouble = f"{self.resource.name}: an object is nested deeper than anything that is read"
                self.synced.set()
                await asyncio.sleep(DENIED_PAUSE_S)
            except (ApiError, msgspec.DecodeError, ValueError) as error:
                self.trouble = str(error)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret: so that not all come at once
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _list(self) -> AsyncIterator[list[ObservedObject | Gap]]:
        """Everything there is, in pages; then what is not there any more."""
        began_ms = self._clock_ms()
        seen: dict[str, tuple[str, str]] = {}
        params = {"limit": str(self.resource.page)}
        while True:
            page = _LISTING.decode(await self.api.get(self.resource.path, params, self.resource.accept(listed=True)))
            at_ms = self._clock_ms()
            decoded = [found for item in page.items or () if (found := self._decoded(item)) is not None]
            for item in decoded:
                seen[item.metadata.uid] = (item.metadata.namespace, item.metadata.name)
            yield [ObservedObject(self._kinded(item), at_ms) for item in decoded]
            if not page.metadata.continue_:
                break
            params = {"limit": str(self.resource.page), "continue": page.metadata.continue_}
        last_ms = self.last_live_ms if self.last_live_ms is not None else began_ms
        vanished = [uid for uid in self._known if uid not in seen]
        lost: list[ObservedObject | Gap] = [self._vanished(uid, *self._known[uid], last_ms) for uid in vanished]
        if self.last_live_ms is not None:
            lost.append(Gap(self.resource, self.last_live_ms, began_ms))
        self._known = seen
        self._version = page.metadata.resource_version
        self.listings += 1
        self._live()
        yield lost

    async def _watch(self) -> AsyncIterator[list[ObservedObject | Gap]]:
        params = {
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        accept = self.resource.accept(listed=False)
        async for lines in self.api.lines(self.resource.path, params, accept, SILENT_S):
            at_ms = self._clock_ms()
            yield [change for line in lines if line and (change := self._line(line, at_ms)) is not None]
            self._live()
            self.denied = self.trouble = None

    def _line(self, line: bytes, at_ms: int) -> ObservedObject | None:
        try:
            event = _LINE.decode(line)
        except RecursionError:
            self.unreadable += 1
            return None
        if event.type == "BOOKMARK":
            self._version = _BOOKMARK.decode(event.object).metadata.resource_version
            return None
        if event.type == "ERROR":
            status = _STATUS.decode(event.object)
            raise (GoneError if status.code == 410 else ApiError)(status.message or status.reason)
        item = self._decoded(event.object)
        if item is None:
            return None
        meta: Meta = item.metadata
        self._version = meta.resource_version
        gone = event.type == "DELETED"
        if gone:
            self._known.pop(meta.uid, None)
        else:
            self._known[meta.uid] = (meta.namespace, meta.name)
        return ObservedObject(self._kinded(item), at_ms, gone)

    def _decoded(self, raw: msgspec.Raw) -> Any:
        """An object; None when it makes no sense, which costs no other."""
        try:
            return self._decoder.decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.unreadable += 1
            return None

    def _kinded(self, item: Any) -> Any:
        """Items of a list do not say what they are, and metadata alone calls itself that."""
        if hasattr(item, "api_version"):
            group, version = self.resource.group, self.resource.version
            item.api_version, item.kind = f"{group}/{version}" if group else version, self.resource.kind
        return item

    def _vanished(self, uid: str, namespace: str, name: str, last_ms: int) -> ObservedObject:
        item = self.resource.type(metadata=Meta(name=name, uid=uid, namespace=namespace))
        return ObservedObject(self._kinded(item), last_ms, gone=True, vanished=True)

    def _live(self) -> None:
        self.last_live_ms = self._clock_ms()
