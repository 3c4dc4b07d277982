"""The last word on objects: records are observations, and the newest of an object counts."""

from __future__ import annotations

from typing import Any, TypeVar

from pyrometer.model.columns import schema_of
from pyrometer.model.records import Slot
from pyrometer.store.reading import Reading

Record = TypeVar("Record", bound=tuple[Any, ...])


def newest(store: Reading, kind: type[Record], key: str, where: str, values: list[Any], keep: str) -> list[Record]:
    """The newest record of each key, of those that are to be kept. The kind has been exposed."""
    schema = schema_of(kind)
    name, columns = schema.name, ", ".join(schema.column_names)
    rows = store.connection.execute(
        f"SELECT {columns} FROM (SELECT * FROM {name} WHERE {where} "
        f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY time_ms DESC) = 1) WHERE {keep}",
        values,
    ).fetchall()
    return [kind(*row) for row in rows]


def slots_of(store: Reading) -> list[Slot]:
    """The last word on every slot."""
    store.expose_all(["slot"])
    return newest(store, Slot, "node_uid, slot_index", "true", [], "true")
