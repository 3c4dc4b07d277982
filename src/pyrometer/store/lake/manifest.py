"""The manifest of a cluster in a lake: its files, the time range they cover, and what else answers need."""

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
from pyrometer.store.lake.storage import LakeError, LakeStorage

MANIFEST = "manifest.json"


class Manifest(NamedTuple):
    """One cluster of a lake at one moment."""

    cluster: Text
    source: Text  # the id of the data folder that it is copied from
    written_ms: TimeMs
    from_ms: TimeMs  # start of the ledger
    end_ms: TimeMs
    parts: tuple[Part, ...]
    beside: dict[ClosedPath, Count]  # the bytes of files other than parts, by path
    meta: dict[Text, Text]  # of the data folder
    settings: dict[Text, Any]  # those that answers depend on
    left: dict[Text, TimeMs]  # when each file was found unlisted: it is removed later

    def text(self) -> str:
        """The manifest as JSON."""
        fields = self._asdict() | {"schema_version": SCHEMA_VERSION, "parts": [part._asdict() for part in self.parts]}
        return json.dumps(fields, separators=(",", ":"))

    def says_the_same(self, other: Manifest | None) -> bool:
        """Whether the two differ only in when they were written."""
        return other is not None and self._replace(written_ms=0) == other._replace(written_ms=0)

    @property
    def named(self) -> dict[str, int]:
        """The bytes of every listed file."""
        return {part.path: part.bytes for part in self.parts} | self.beside


def folder_name(cluster: str) -> str:
    """The name of a cluster's folder in a lake. Names of clusters may contain slashes and colons."""
    name = quote(cluster, safe=" ")
    return f"%2E{name[1:]}" if name.startswith(".") else name


def manifest_of(storage: LakeStorage, cluster: str) -> Manifest | None:
    """The manifest of a cluster; None if the lake does not have it."""
    found = storage.read(f"{folder_name(cluster)}/{MANIFEST}")
    return None if found is None else _read(storage, cluster, found)


def manifests(storage: LakeStorage, only: Collection[str] = ()) -> list[Manifest]:
    """The manifests of the named clusters, or of all clusters, by name."""
    listed = [unquote(name) for name in storage.folders()]
    missing = sorted(set(only) - set(listed))
    found = {name: None if name in missing else manifest_of(storage, name) for name in sorted(only or listed)}
    missing = [name for name in found if found[name] is None and name in only]
    complete = [manifest for manifest in found.values() if manifest is not None]
    if missing:
        there = ", ".join(listed) or "none"
        raise LakeError(f"The lake {storage.url} has no cluster {missing[0]!r}. There: {there}.")
    if not complete:
        raise LakeError(
            f"The lake {storage.url} has no cluster yet: set `lake` for a server, or `pyrometer export lake`."
        )
    return complete


def _read(storage: LakeStorage, cluster: str, content: bytes) -> Manifest:
    """Parses a manifest. Any writer of the lake could have written it, so nothing is used before the whole
    manifest is checked."""
    named = f"{MANIFEST} of {cluster!r} in the lake {storage.url}"
    try:
        fields = read_json(content)
        version = fields.pop("schema_version", None)
        if not isinstance(version, int):
            raise GrammarError(f"schema_version is {shown(version)}")
        if version > SCHEMA_VERSION:
            raise UnknownKindError(f"version {version}")
        listed = fields.get("parts")
        if not isinstance(listed, list):
            raise GrammarError(f"parts is {shown(listed)}")
        fields["parts"] = [record_of(Part, part, f"parts[{at}]") for at, part in enumerate(listed)]
        manifest = record_of(Manifest, fields)
        _check(manifest, cluster)
        return manifest
    except UnknownKindError as error:
        raise LakeError(
            f"Cluster {cluster!r} of the lake {storage.url} was written by a newer Pyrometer ({error}): "
            "upgrade this one."
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
