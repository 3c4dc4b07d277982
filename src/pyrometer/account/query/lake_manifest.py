"""The manifest fields of a data folder: what a lake needs so that its answers equal those of the folder."""

from __future__ import annotations

import uuid
from typing import Any

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.build.retention import KEPT_FROM
from pyrometer.account.closing.closed_months import FOLDER, read_closed_months
from pyrometer.model.settings import Settings
from pyrometer.store import Store, StoreReader
from pyrometer.store.lake import LakeError
from pyrometer.store.lake.lake_copier import ManifestHeader

SOURCE = "lake_source"
META = (
    "bill_to",
    "origin",
    "prices_assumed",
    "findings_looked_ms",
    KEPT_FROM,
)  # the meta texts that questions read, without addresses
# The settings that answers depend on: rules, limits, time zone, tariff. No paths or addresses.
SETTINGS = (
    "idle_gap_ms",
    "startup_limit_ms",
    "sample_reach_ms",
    "sample_jitter_ms",
    "hang_limit_ms",
    "finding_min_ms",
    "finding_min_usd_micro",
    "timezone",
    "bill_to",
    "energy_usd_per_kwh",
    "carbon_g_per_kwh",
    "pue",
)


def ensure_lake_source(store: Store) -> None:
    """Gives the folder an id, once, so that no two folders write to the same cluster of a lake."""
    if store.meta(SOURCE) is None:
        store.set_meta(SOURCE, uuid.uuid4().hex)


def manifest_header(reading: StoreReader, settings: Settings, covered: LedgerCoverage) -> ManifestHeader:
    """The manifest fields of a folder that is up to date and has an id."""
    kept_settings: dict[str, Any] = {name: getattr(settings, name) for name in SETTINGS}
    meta = {name: value for name in META if (value := reading.meta(name)) is not None}
    beside = [
        f"{FOLDER}/{path}"
        for month in read_closed_months(reading.folder)
        for path in (month.file, f"{month.month}.json")
    ]
    source = reading.meta(SOURCE) or ""
    return ManifestHeader(
        cluster=cluster_of(reading, settings),
        source=source,
        from_ms=covered.from_ms,
        end_ms=covered.end_ms,
        meta=meta,
        settings=kept_settings,
        beside=beside,
    )


def cluster_of(reading: StoreReader, settings: Settings) -> str:
    """The name of the cluster: from the settings, else the one that all nodes have."""
    if settings.cluster:
        return settings.cluster
    reading.expose_all(["node"])
    named = [name for (name,) in reading.connection.execute("SELECT DISTINCT cluster FROM node ORDER BY 1").fetchall()]
    if len(named) == 1 and named[0]:
        return str(named[0])
    several = f"its nodes are of {', '.join(map(str, named))}" if named else "it has no nodes"
    raise LakeError(
        f"The cluster of {reading.folder} needs a name in the lake. Pass --cluster or set `cluster`: {several}."
    )
