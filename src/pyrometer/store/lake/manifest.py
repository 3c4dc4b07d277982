"""What a lake says of a cluster: which files count, up to which time, and what else an answer needs to know."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from pyrometer.store.catalog import SCHEMA_VERSION, Part
from pyrometer.store.lake.place import LakeError, Place

MANIFEST = "manifest.json"


class Manifest(NamedTuple):
    """One cluster of a lake, as it was at one moment."""

    cluster: str
    source: str  # the data folder that it is copied from, by an identity of its own
    written_ms: int
    from_ms: int  # what its ledger covers
    end_ms: int
    parts: tuple[Part, ...]
    beside: dict[str, int]  # files beside parts, by path: their bytes
    meta: dict[str, str]  # small texts that questions read
    settings: dict[str, Any]  # that answers depend on
    left: dict[str, int]  # files that are there and do not count any more: since when

    def text(self) -> str:
        """As it is written."""
        told = self._asdict() | {"schema_version": SCHEMA_VERSION, "parts": [part._asdict() for part in self.parts]}
        return json.dumps(told, separators=(",", ":"))

    def says_the_same(self, other: Manifest | None) -> bool:
        """Whether nothing but the moment differs."""
        return other is not None and self._replace(written_ms=0) == other._replace(written_ms=0)

    @property
    def named(self) -> dict[str, int]:
        """The bytes of every file that counts."""
        return {part.path: part.bytes for part in self.parts} | self.beside


def folder_name(cluster: str) -> str:
    """What a cluster's folder in a lake is called: names of clusters may have slashes and colons in them."""
    name = quote(cluster, safe=" ")
    return f"%2E{name[1:]}" if name.startswith(".") else name


def manifest_of(place: Place, cluster: str) -> Manifest | None:
    """What a lake says of a cluster; None when it has nothing of it."""
    found = place.read(f"{folder_name(cluster)}/{MANIFEST}")
    return None if found is None else _read(place, cluster, found)


def manifests(place: Place, only: Collection[str] = ()) -> list[Manifest]:
    """What a lake says of its clusters, by name; of those that are named, or of all."""
    listed = [unquote(name) for name in place.names()]
    missing = sorted(set(only) - set(listed))
    said = {name: None if name in missing else manifest_of(place, name) for name in sorted(only or listed)}
    missing = [name for name in said if said[name] is None and name in only]
    found = [manifest for manifest in said.values() if manifest is not None]
    if missing:
        there = ", ".join(listed) or "none"
        raise LakeError(f"The lake {place.url} has no cluster {missing[0]!r}. There: {there}.")
    if not found:
        raise LakeError(
            f"The lake {place.url} has no cluster yet: set `lake` for a server, or `pyrometer export lake`."
        )
    return found


def _read(place: Place, cluster: str, content: bytes) -> Manifest:
    try:
        told = json.loads(content)
        version = told.pop("schema_version")
        if version > SCHEMA_VERSION:
            raise LakeError(
                f"Cluster {cluster!r} of the lake {place.url} was written by a newer Pyrometer: upgrade this one."
            )
        parts = tuple(Part(**part) for part in told.pop("parts"))
        return Manifest(parts=parts, **told)
    except (ValueError, TypeError, KeyError):
        raise LakeError(
            f"{MANIFEST} of {cluster!r} in the lake {place.url} cannot be read: it is no manifest."
        ) from None
