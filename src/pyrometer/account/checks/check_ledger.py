"""Checks of derived records: the laws of the ledger and of energy, and completeness."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from pyrometer.account.build.ledger import take_down
from pyrometer.account.build.retention import kept_from_ms
from pyrometer.account.checks.check_parts import Problem
from pyrometer.account.query.stored_sums import beside
from pyrometer.model.states import STATE
from pyrometer.model.units import MS_PER_HOUR, MS_PER_QUARTER
from pyrometer.store import Store
from pyrometer.store.catalog import Part, first_row
from pyrometer.store.reader import quoted

MAX_POWER_W = 10_000  # of one device; higher values in telemetry are ignored

# The laws of the ledger. Violations are counted.
_LAWS = {
    "rows are negative, empty or over a minute": "SELECT count(*) FROM part WHERE ms <= 0 OR ms > 60000",
    "rows are in a state that does not exist": "SELECT count(*) FROM part WHERE NOT list_contains($states, state)",
    "rows have evidence that does not exist": "SELECT count(*) FROM part WHERE evidence < 0 OR evidence > 7",
    "rows have a price below zero": "SELECT count(*) FROM part WHERE usd_micro_per_hour < 0",
    "rows are duplicates": "SELECT count(*) FROM (SELECT 1 FROM part GROUP BY minute_ms, node_uid, slot_index, pod_uid,"
    " attempt, state, evidence, usd_micro_per_hour HAVING count(*) > 1)",
    # a device that its node never reported exists only while it is held
    "slot-minutes of nodes do not have 60,000 ms": "SELECT count(*) FROM (SELECT 1 FROM part SEMI JOIN node "
    "ON node.node_uid = part.node_uid AND node.gpu_count > part.slot_index AND node.present "
    "GROUP BY node_uid, slot_index, minute_ms HAVING sum(ms) != 60000)",
    "slot-minutes have more than 60,000 ms": "SELECT count(*) FROM (SELECT 1 FROM part "
    "GROUP BY node_uid, slot_index, minute_ms HAVING sum(ms) > 60000)",
}
_LAWS_OF_ENERGY = {
    "rows are below zero, or known for longer than they last": "SELECT count(*) FROM part "
    "WHERE energy_mj < 0 OR ms < 0 OR estimated_ms < 0 OR estimated_ms > ms",
    "quarters of slots are longer than a quarter of an hour": "SELECT count(*) FROM (SELECT 1 FROM part "
    f"GROUP BY node_uid, slot_index, time_ms HAVING sum(ms) > {MS_PER_QUARTER})",
    "quarters of slots have drawn more than a device can": "SELECT count(*) FROM (SELECT 1 FROM part "
    f"GROUP BY node_uid, slot_index, time_ms HAVING sum(energy_mj::HUGEINT) > {MAX_POWER_W * MS_PER_QUARTER})",
}


def laws(store: Store, part: Part) -> Iterator[Problem]:
    """Every slot-minute of a node must have exactly 60,000 ms, without negative or duplicate rows."""
    if part.kind == "ledger_row":
        yield from _broken(store, part, _LAWS)


def energy(store: Store, part: Part) -> Iterator[Problem]:
    """Energy must not be negative, or more than a device can consume."""
    if part.kind == "energy":
        yield from _broken(store, part, _LAWS_OF_ENERGY)


def sums(store: Store, part: Part) -> Iterator[Problem]:
    """Sums must equal the ledger's rows in every hour, state and price."""
    if part.kind not in ("hour_sum", "minute_sum", "minute_use", "hour_use"):
        return
    state = "state" if part.kind in ("hour_sum", "minute_sum") else "''"
    summed = "ms * minutes" if part.kind == "minute_use" else "ms"
    ledger = beside(store, "ledger_row", [part])
    if not ledger:
        yield Problem(f"{part.path} sums a missing part of the ledger.", part)
        return
    both = " UNION ALL ".join(
        f"SELECT {time} // {MS_PER_HOUR} AS hour, {state} AS state, usd_micro_per_hour, {ms} AS ms "
        f"FROM read_parquet('{quoted(store.folder / path)}')"
        for path, time, ms in ((ledger[0].path, "minute_ms", "ms"), (part.path, "time_ms", f"-({summed})"))
    )
    wrong = f"SELECT 1 FROM ({both}) GROUP BY hour, state, usd_micro_per_hour HAVING sum(ms) != 0"
    row = first_row(store.connection.execute(f"SELECT count(*) FROM ({wrong})"))
    if row and row[0]:
        yield Problem(f"{part.path}: {row[0]:,} sums do not add up to the ledger.", part)


def _broken(store: Store, part: Part, kept: dict[str, str]) -> Iterator[Problem]:
    path = quoted(store.folder / part.path)
    store.connection.execute(f"CREATE OR REPLACE TEMP VIEW part AS FROM read_parquet('{path}')")
    for law, query in kept.items():
        values = {"states": list(STATE)} if "$states" in query else {}
        row = first_row(store.connection.execute(query, values))
        if row and row[0]:
            yield Problem(f"{part.path}: {row[0]:,} {law}.", part)


def lives(store: Store) -> Iterator[Problem]:
    """A slot with a lifetime must have exactly that much time."""
    store.expose_all(["ledger_row"])
    newest = "SELECT node_uid, slot_index, from_ms, to_ms FROM slot WHERE from_ms IS NOT NULL ORDER BY time_ms"
    lived = {(row[0], row[1]): (row[2], row[3]) for row in store.connection.execute(newest).fetchall()}
    nodes = {row[0] for row in store.connection.execute("SELECT DISTINCT node_uid FROM node").fetchall()}
    summed = "SELECT node_uid, slot_index, sum(ms)::BIGINT, max(minute_ms) + 60000 FROM ledger_row GROUP BY ALL"
    rows = store.connection.execute(summed).fetchall() if lived else []
    end_ms = max((row[3] for row in rows), default=0)
    for node_uid, slot_index, ms, _ in rows:
        from_ms, to_ms = lived.get((node_uid, slot_index), (None, None))
        if node_uid in nodes or from_ms is None or to_ms is None or to_ms > end_ms or from_ms < kept_from_ms(store):
            continue
        if ms != to_ms - from_ms:
            yield Problem(f"Slot {slot_index} of {node_uid} existed for {to_ms - from_ms:,} ms; the ledger has {ms:,}.")


def overlaps(store: Store) -> Iterator[Problem]:
    """Parts of the ledger must not overlap."""
    for part, following in pairwise(sorted(store.parts("ledger_row"), key=lambda part: part.from_ms)):
        if following.from_ms < part.to_ms:
            yield Problem(f"{part.path} and {following.path} cover the same hours.", part)


def made_together(store: Store) -> Iterator[Problem]:
    """A part of the ledger must have a digest of its inputs, energy of the same build, and a carry for the next
    hours."""
    energies = {(part.from_ms, part.to_ms): part.digest for part in store.parts("energy")}
    handed_over = {part.from_ms for part in store.parts("carry")}
    for part in store.parts("ledger_row"):
        if not part.digest:
            yield Problem(f"{part.path} has no digest of its inputs.", part)
        elif energies.get((part.from_ms, part.to_ms)) != part.digest:
            yield Problem(f"{part.path} has no energy of the same build.", part)
        elif part.to_ms not in handed_over:
            yield Problem(f"{part.path} has no carry for the hours after it.", part)


# Minutes of each slot of a node according to its observations: from the minute in which the node was first seen with
# that many devices to the end of the minute in which it was last seen. Compared with those in the ledger.
_CAPACITY = """
WITH seen AS (
    SELECT node_uid, time_ms, present, gpu_count, coalesce(lag(present) OVER in_time, false) AS was_present
    FROM node WHERE time_ms < $end_ms WINDOW in_time AS (PARTITION BY node_uid ORDER BY time_ms)
),
turn AS (
    SELECT node_uid, present, CASE WHEN present THEN time_ms // 60000 * 60000
        ELSE (time_ms + 59999) // 60000 * 60000 END AS at_ms, time_ms
    FROM seen WHERE present != was_present
),
stretch AS (
    SELECT node_uid, present, greatest(at_ms, coalesce(lag(at_ms) OVER in_time, 0)) AS from_ms,
        lead(at_ms, 1, $end_ms) OVER in_time AS to_ms
    FROM turn WINDOW in_time AS (PARTITION BY node_uid ORDER BY time_ms)
    QUALIFY present
),
slot AS (
    SELECT node_uid, slot_index, (min(time_ms) + CASE WHEN arg_min(present, time_ms) THEN 0 ELSE 59999 END)
        // 60000 * 60000 AS from_ms
    FROM (SELECT node_uid, time_ms, present, unnest(range(gpu_count)) AS slot_index FROM node WHERE time_ms < $end_ms)
    GROUP BY ALL
),
expected AS (
    SELECT node_uid, slot_index, sum(greatest(0, least(stretch.to_ms, $end_ms)
        - greatest(stretch.from_ms, slot.from_ms, $kept_from_ms))) AS ms
    FROM slot JOIN stretch USING (node_uid) GROUP BY ALL
),
kept AS (
    SELECT node_uid, slot_index, sum(ms) AS ms FROM ledger_row SEMI JOIN slot USING (node_uid, slot_index) GROUP BY ALL
)
SELECT count(*), coalesce(sum(expected.ms), 0)::BIGINT, coalesce(sum(kept.ms), 0)::BIGINT
FROM expected LEFT JOIN kept USING (node_uid, slot_index)
WHERE expected.ms > 0 AND expected.ms != coalesce(kept.ms, 0)  -- others are there only while they are held
"""


def capacity(store: Store) -> Iterator[Problem]:
    """For every slot of a node, the ledger must have all the time that the node existed: capacity × time."""
    store.expose_all(["node", "ledger_row"])
    row = first_row(store.connection.execute("SELECT max(minute_ms) + 60000 FROM ledger_row"))
    if row is None or row[0] is None:
        return
    row = first_row(store.connection.execute(_CAPACITY, {"end_ms": row[0], "kept_from_ms": kept_from_ms(store)}))
    if row and row[0]:
        slots, expected_ms, kept_ms = row
        yield Problem(
            f"{slots:,} slots of nodes were there for {expected_ms:,} ms; the ledger has {kept_ms:,} of them.",
            mend=_build_all_again,
        )


def _build_all_again(store: Store) -> str:
    take_down(store, store.parts("ledger_row"))
    return "The ledger is built again."
