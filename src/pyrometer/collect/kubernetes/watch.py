"""Follows one kind of object forever: list, watch, resume after a lost connection, or list again.

No change is lost silently. An object that disappeared during a gap is reported as vanished, with the time at which it
was last known to exist.
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
WATCH_S = 290  # the server ends a watch after this time, and it is started again
SILENT_S = WATCH_S + 30.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 30.0
DENIED_PAUSE_S = 300.0  # permissions may be granted in the meantime

_LISTING = msgspec.json.Decoder(Listing)
_LINE = msgspec.json.Decoder(WatchEvent)
_BOOKMARK = msgspec.json.Decoder(Bookmark)
_STATUS = msgspec.json.Decoder(Status)


class Resource(NamedTuple):
    """A kind of object and its path in the API."""

    group: str
    version: str
    plural: str
    kind: str
    type: Any  # that objects are decoded into
    metadata_only: bool = False
    page: int = PAGE

    @property
    def path(self) -> str:
        """The path of all objects in all namespaces."""
        return f"{root(self.group, self.version)}/{self.plural}"

    def named(self, namespace: str, name: str) -> str:
        """The path of one object."""
        return f"{root(self.group, self.version)}/namespaces/{namespace}/{self.plural}/{name}"

    @property
    def name(self) -> str:
        """Its name in RBAC."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def accept(self, *, listed: bool) -> str:
        """The requested media type."""
        if not self.metadata_only:
            return "application/json"
        form = "PartialObjectMetadataList" if listed else "PartialObjectMetadata"
        return f"application/json;as={form};g=meta.k8s.io;v=v1,application/json"


class Gap(NamedTuple):
    """A time without a watch, in which objects may have come and gone unseen."""

    resource: Resource
    from_ms: int
    to_ms: int


def now_ms() -> int:
    """The time of this machine's clock."""
    return time.time_ns() // 1_000_000


class Watch:
    """Follows one resource. Its public attributes report its state."""

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
        self.synced = asyncio.Event()  # set after all existing objects were listed
        self.denied: str | None = None
        self.trouble: str | None = None
        self.listings = 0
        self.unreadable = 0  # objects that could not be decoded
        self.last_live_ms = last_live_ms  # when it was last known to be complete
        self._clock_ms = clock_ms
        self._decoder = msgspec.json.Decoder(resource.type)
        self._known = dict(known or {})  # UID → namespace, name
        self._version = ""

    async def changes(self) -> AsyncIterator[list[ObservedObject | Gap]]:
        """Yields changes in their order. Ends only by cancellation."""
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
                if self._clock_ms() - began_ms < 1_000:  # the server should end a watch only after the requested time
                    await asyncio.sleep(FIRST_PAUSE_S)
            except GoneError as error:
                self.trouble = str(error)
                self._version = ""
                await asyncio.sleep(FIRST_PAUSE_S)
            except DeniedError as error:
                self.denied, self.trouble = str(error), None
                self.synced.set()  # do not wait for a resource that cannot be read
                await asyncio.sleep(DENIED_PAUSE_S)
            except MissingError as error:
                self.trouble = str(error)
                self._version = ""
                self.synced.set()
                await asyncio.sleep(DENIED_PAUSE_S)
            except RecursionError:  # a page that cannot be decoded must not block other resources
                self.trouble = f"{self.resource.name}: an object is nested too deeply to be read"
                self.synced.set()
                await asyncio.sleep(DENIED_PAUSE_S)
            except (ApiError, msgspec.DecodeError, ValueError) as error:
                self.trouble = str(error)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
                pause_s = min(pause_s * 2, MAX_PAUSE_S)

    async def _list(self) -> AsyncIterator[list[ObservedObject | Gap]]:
        """Yields all objects in pages, then those that disappeared."""
        began_ms = self._clock_ms()
        seen: dict[str, tuple[str, str]] = {}
        params = {"limit": str(self.resource.page)}
        while True:
            page = _LISTING.decode(await self.api.get(self.resource.path, params, self.resource.accept(listed=True)))
            at_ms = self._clock_ms()
            decoded = [found for item in page.items or () if (found := self._decoded(item)) is not None]
            for item in decoded:
                seen[item.metadata.uid] = (item.metadata.namespace, item.metadata.name)
            yield [ObservedObject(self._with_kind(item), at_ms) for item in decoded]
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
        return ObservedObject(self._with_kind(item), at_ms, gone)

    def _decoded(self, raw: msgspec.Raw) -> Any:
        """Decodes an object; None if that fails, which does not affect the others."""
        try:
            return self._decoder.decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.unreadable += 1
            return None

    def _with_kind(self, item: Any) -> Any:
        """Sets the kind, which items of a list lack and which is wrong in metadata-only objects."""
        if hasattr(item, "api_version"):
            group, version = self.resource.group, self.resource.version
            item.api_version, item.kind = f"{group}/{version}" if group else version, self.resource.kind
        return item

    def _vanished(self, uid: str, namespace: str, name: str, last_ms: int) -> ObservedObject:
        item = self.resource.type(metadata=Meta(name=name, uid=uid, namespace=namespace))
        return ObservedObject(self._with_kind(item), last_ms, gone=True, vanished=True)

    def _live(self) -> None:
        self.last_live_ms = self._clock_ms()
