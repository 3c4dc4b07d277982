"""The names of holders and slots."""

from __future__ import annotations

from collections.abc import Sequence

from pyrometer.account.build import sql
from pyrometer.account.query.groupings import PLATFORM
from pyrometer.model.settings import Settings
from pyrometer.store import StoreReader

_NAMING = ("pod", "workload", "node", "slot", "pipeline_run", "sweep", "trial")


def open_names(store: StoreReader, tables: Sequence[str] = sql.NAMED) -> None:
    """Creates the tables of names of holders and slots, or some of them. They are cached until they change."""
    made_from = billed_to(store), store.fingerprint(_NAMING, -(2**62), 2**62)
    known, made = store.remembered.get("names", (None, {}))
    if store.is_limited or known != made_from or tables == sql.NAMED:
        store.expose_all(_NAMING)
    if store.is_limited or known != made_from:
        for name in sql.NAMED:
            store.connection.unregister(name)
        store.connection.execute("SET VARIABLE bill_to = ?", [billed_to(store)])
        sql.run(store.connection, sql.NAMES)
        if store.is_limited:
            return
        made = {name: store.connection.sql(f"FROM {name}").to_arrow_table() for name in sql.NAMED}
        store.remembered["names"] = made_from, made
        for name in sql.NAMED:
            store.connection.execute(f"DROP TABLE temp.{name}")
    for name in tables:
        store.connection.register(
            name, made[name]
        )  # registered as Arrow, because creating a table takes longer than one question


def billed_to(store: StoreReader) -> str:
    """The setting `bill_to` of the last build: who pays for an experiment that spans teams."""
    return store.meta("bill_to") or Settings().bill_to


def holder_column(name: str) -> str:
    """SQL for the value of a grouping of holders. Time without a holder belongs to the platform."""
    if name == "workload":
        return (
            "CASE WHEN workload_uid IS NOT NULL THEN {'uid': workload_uid, 'kind': workload_kind, "
            "'namespace': workload_namespace, 'name': workload_name} END AS workload"
        )
    without_holder = f"'{PLATFORM}'" if name == "team" else "NULL"
    return f'CASE WHEN pod_uid IS NULL THEN {without_holder} ELSE "{name}" END AS "{name}"'
