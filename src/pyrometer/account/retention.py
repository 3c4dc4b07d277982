"""Forgetting: measurements and ledger of days long past are dropped; objects are few and stay."""

from __future__ import annotations

from pyrometer.account import sql
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR
from pyrometer.store import Store, StoreReader

KEPT_FROM = "kept_from_ms"
BUILT_KINDS = (
    "ledger_row",
    "carry",
    "energy",
    *sql.SUMMED,
)  # built from the rest, and built again where they are missing


def forget(store: Store, *, keep_days: int, now_ms: int) -> int:
    """Drops what is older than so many days, in whole hours; says how many parts and tables went.

    The ledger of what is kept does not change: a part of it goes whole or not at all, and the hour of measurements
    that its first hour looks back on stays.
    """
    cut_ms = (now_ms - keep_days * MS_PER_DAY) // MS_PER_HOUR * MS_PER_HOUR
    cut_ms = min([cut_ms, *(part.from_ms for part in store.parts("ledger_row") if part.from_ms < cut_ms < part.to_ms)])
    measured = [
        name for name, schema in SCHEMAS.items() if schema.partition_ms == MS_PER_HOUR and name not in BUILT_KINDS
    ]
    store.set_meta(KEPT_FROM, str(max(cut_ms, kept_from_ms(store))))
    return store.drop_before(cut_ms, BUILT_KINDS) + store.drop_before(cut_ms - MS_PER_HOUR, measured)


def kept_from_ms(store: StoreReader) -> int:
    """The time before which everything has been forgotten."""
    return int(store.meta(KEPT_FROM) or 0)
