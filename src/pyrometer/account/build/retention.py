"""Retention: old measurements and the old ledger are dropped. Objects are few and kept."""

from __future__ import annotations

from pyrometer.account.build import sql
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR
from pyrometer.store import Store, StoreReader

KEPT_FROM = "kept_from_ms"
BUILT_KINDS = ("ledger_row", "carry", "energy", *sql.SUMMED)  # written by builds of the ledger, and rebuilt if missing


def forget(store: Store, *, keep_days: int, now_ms: int) -> int:
    """Drops data that is older than `keep_days`, in whole hours. Returns the number of dropped parts and tables.

    The remaining ledger does not change: its parts are dropped as a whole, and the hour of measurements before its
    first hour is kept.
    """
    cut_ms = (now_ms - keep_days * MS_PER_DAY) // MS_PER_HOUR * MS_PER_HOUR
    cut_ms = min([cut_ms, *(part.from_ms for part in store.parts("ledger_row") if part.from_ms < cut_ms < part.to_ms)])
    measured = [
        name for name, schema in SCHEMAS.items() if schema.partition_ms == MS_PER_HOUR and name not in BUILT_KINDS
    ]
    store.set_meta(KEPT_FROM, str(max(cut_ms, kept_from_ms(store))))
    return store.drop_before(cut_ms, BUILT_KINDS) + store.drop_before(cut_ms - MS_PER_HOUR, measured)


def kept_from_ms(store: StoreReader) -> int:
    """The time before which everything was dropped."""
    return int(store.meta(KEPT_FROM) or 0)
