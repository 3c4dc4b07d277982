"""Pricing: the tables of prices for the SQL steps, and the price of each kind of GPU at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from pyrometer.account.build import sql
from pyrometer.identify.gpus.prices import applicable_prices
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Price
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.store import StoreReader
from pyrometer.store.catalog import first_row

# The inputs of `01_objects`, which decide when a slot exists.
OBJECTS = ("node", "slot", "pod", "workload", "allocation", "event", "price")


class PricedKind(NamedTuple):
    """GPUs with the same price. `place` is the position of the price among the written ones, or LISTED."""

    gpu_model: str | None
    pool: str | None
    cluster: str | None
    purchase: str | None
    instance_type: str | None
    node_gpus: int | None
    gpus: int
    usd_micro_per_hour: int | None  # of one GPU; the remainder of a node's price is rounded away
    place: int | None


def put_prices(store: StoreReader, book: Iterable[Price]) -> list[Price]:
    """Creates `every_price` for the SQL steps: stored prices, the price book and the public list. Returns the
    written prices, in order of precedence: later ones win."""
    rows = store.connection.execute("FROM price").fetchall()
    # the order of arrival does not count
    stored = sorted((Price(*row) for row in rows), key=lambda price: tuple((v is not None, v) for v in price))
    written = [*stored, *book]
    models = store.connection.execute("SELECT DISTINCT gpu_model FROM every_slot_span").fetchall()
    applying = list(applicable_prices((name for (name,) in models), written))
    table = SCHEMAS["price"].table([one.price for one in applying])
    table = table.append_column("place", pa.array([one.place for one in applying], pa.int32()))
    store.connection.register("price_rows", table)
    store.connection.execute("CREATE OR REPLACE TEMP TABLE every_price AS FROM price_rows")
    store.connection.unregister("price_rows")
    sql.run(store.connection, sql.PRICE_MATCHES)
    return written


def assumes_prices(store: StoreReader) -> bool:
    """Whether a public list price is used at any time because no price was written."""
    row = first_row(
        store.connection.execute(
            """
        WITH moment AS (
            SELECT span.*, span.from_ms AS at_ms FROM every_slot_span span
            UNION ALL
            SELECT span.*, price.to_ms FROM every_slot_span span
            JOIN every_price price ON price.to_ms > span.from_ms AND price.to_ms < span.to_ms
        )
        SELECT count(*) FROM moment
        SEMI JOIN (FROM every_price WHERE source = 'list') listed USING (gpu_model)
        ANTI JOIN (FROM every_price WHERE source != 'list') price
            ON price_matches(price, moment, moment.node_gpus IS NOT NULL, moment.at_ms)
        """
        )
    )
    return bool(row and row[0])


def priced_kinds(store: StoreReader, book: Sequence[Price], *, now_ms: int) -> tuple[list[PricedKind], list[Price]]:
    """The price of each kind of GPU that was ever seen at the newest minute, most GPUs first, and the written prices.

    Each GPU counts once, with its newest attributes. The price comes from the SQL steps that price the ledger.
    """
    connection = store.connection
    newest_ms = store.newest_ms(OBJECTS[:-1], now_ms)
    if newest_ms is None:
        return [], list(book)
    at_ms = newest_ms - newest_ms % MS_PER_MINUTE + MS_PER_MINUTE - 1
    variables = {"newest_ms": newest_ms, "end_ms": at_ms + 1, "chunk_from_ms": at_ms, "chunk_to_ms": at_ms + 1}
    for name, value in variables.items():
        connection.execute(f"SET VARIABLE {name} = {value}::BIGINT")
    store.expose_all(OBJECTS)
    sql.run(connection, sql.OBJECTS)
    written = put_prices(store, book)
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE every_slot_span AS
        SELECT * REPLACE ({at_ms} AS from_ms, {at_ms + 1} AS to_ms) FROM every_slot_span
        QUALIFY row_number() OVER (PARTITION BY slot_id ORDER BY to_ms DESC) = 1
        """
    )
    sql.run(connection, sql.SLOTS)
    rows = connection.execute(
        """
        SELECT gpu_model, pool, cluster, purchase, instance_type, node_gpus, count(*),
            ((2 * sum(usd_micro_per_hour) + count(*)) // (2 * count(*)))::BIGINT, place
        FROM slot_span JOIN slot_price USING (slot_id)
        GROUP BY ALL ORDER BY count(*) DESC, gpu_model, pool, cluster, purchase, instance_type, node_gpus
        """
    ).fetchall()
    return [PricedKind(*row) for row in rows], written
