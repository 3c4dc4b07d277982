"""What a lake says of a cluster: which files count, up to which time, and what else an answer needs to know."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from pyrometer.store.catalog import SCHEMA_VERSION, Part
from pyrometer.store.grammar import (
    ClosedPath,
    Count,
    GrammarError,
    Text,
    TimeMs,
    UnknownKindError,
    check_kind,
    check_meta,
    read_json,
    record_of,
    shown,
)
from pyrometer.store.lake.place import LakeError, Place

MANIFEST = "manifest.json"


class Manifest(NamedTuple):
    """One cluster of a lake, as it was at one moment."""

    cluster: Text
    source: Text  # the data folder that it is copied from, by an identity of its own
    written_ms: TimeMs
    from_ms: TimeMs  # what its ledger covers
    end_ms: TimeMs
    parts: tuple[Part, ...]
    beside: dict[ClosedPath, Count]  # files beside parts, by path: their bytes
    meta: dict[Text, Text]  # small texts that questions read
    settings: dict[Text, Any]  # that answers depend on
    left: dict[Text, TimeMs]  # files that are there and do not count any more: since when

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
    """A manifest. Whoever may write to a lake may write anything there: nothing is used before all of it is checked."""
    named = f"{MANIFEST} of {cluster!r} in the lake {place.url}"
    try:
        told = read_json(content)
        version = told.pop("schema_version", None)
        if not isinstance(version, int):
            raise GrammarError(f"schema_version is {shown(version)}")
        if version > SCHEMA_VERSION:
            raise UnknownKindError(f"version {version}")
        listed = told.get("parts")
        if not isinstance(listed, list):
            raise GrammarError(f"parts is {shown(listed)}")
        told["parts"] = [record_of(Part, part, f"parts[{at}]") for at, part in enumerate(listed)]
        manifest = record_of(Manifest, told)
        _check(manifest, cluster)
        return manifest
    except UnknownKindError as error:
        raise LakeError(
            f"Cluster {cluster!r} of the lake {place.url} was written by a newer Pyrometer ({error}): upgrade this one."
        ) from None
    except GrammarError as error:
        raise LakeError(f"{named} cannot be read: {error}. No file that it names was used.") from None


def _check(manifest: Manifest, cluster: str) -> None:
    if manifest.cluster != cluster:
        raise GrammarError(f"cluster is {shown(manifest.cluster)}")
    if manifest.from_ms > manifest.end_ms:
        raise GrammarError(f"end_ms is {manifest.end_ms}, before from_ms")
    for part in manifest.parts:
        check_kind(part.kind, part.path)
    if len({part.path for part in manifest.parts}) < len(manifest.parts):
        raise GrammarError("a part is listed twice")
    check_meta(manifest.meta)
