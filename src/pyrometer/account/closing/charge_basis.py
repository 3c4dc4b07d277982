"""The basis of charges: what a question about a time range is answered from once months are closed.

- A closed month: its frozen charges, which never change.
- The first month after it: the ledger, and adjustments. They are the difference between the current ledger of closed
  time and what was charged for it. Closing that month charges them, so nothing is adjusted twice.
- Any other time range: the current ledger.

So all charges, adjustments and the ledger since then add up to the current ledger: GPU-milliseconds at a price, by day,
holder and node. States of closed time stay as they were charged: a change of states only is not an adjustment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, NamedTuple

from pyrometer.account.build.retention import kept_from_ms
from pyrometer.account.closing.closed_months import AMOUNTS, NAMES, ClosedMonth, path_of, read_closed_months
from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.energy import EnergyUse, energy_in, open_energy
from pyrometer.account.query.groupings import HELD, PRICE
from pyrometer.account.query.names import holder_column, open_names
from pyrometer.account.query.quarters import label_quarters
from pyrometer.account.query.sums import Sum, price_of
from pyrometer.account.query.time_range import TimeRange, midnight_ms, month_range, zone_name
from pyrometer.model.units import MS_PER_QUARTER
from pyrometer.store import Store, StoreReader
from pyrometer.store.reader import quoted

COMPARED = "ledger_compared_with_charges"  # in the store's meta: closed months whose ledger has changed since
ADJUSTS = "adjusts"  # the closed month that a row corrects
KEPT = {*NAMES, "workload", "month", HELD, PRICE}  # the groupings that frozen charges have
_UIDS = ("day", "pod_uid", "node_uid", "state", PRICE)  # the columns that identify a charge, whatever its names
_HOLDER = ("team", "experiment", "namespace", "user", "queue", "pod")
_WORKLOAD = ("workload_uid", "workload_kind", "workload_namespace", "workload_name")
_SLOT = ("cluster", "pool", "node", "gpu_model")


class ChargeBasis(NamedTuple):
    """What an answer is computed from, optionally limited to a team and an experiment."""

    kind: str = "ledger"  # closed; open (with adjustments); ledger
    month: str | None = None
    closed: ClosedMonth | None = None  # the closed month itself, or for an open month the last closed one
    team: str | None = None
    experiment: str | None = None
    touches_closed: bool = False  # a ledger answer that contains closed time
    left_out: bool = False  # a ledger answer without adjustments, because frozen charges lack one of its groupings


LEDGER = ChargeBasis()


def basis_of(
    store: StoreReader,
    time_range: TimeRange,
    by: Iterable[str],
    zone: tzinfo,
    team: str | None = None,
    experiment: str | None = None,
) -> ChargeBasis:
    """The basis of a question about a time range."""
    months = read_closed_months(store.folder)
    of = ChargeBasis(team=team, experiment=experiment)
    if not months:
        return of
    last = months[-1]
    left_out = False
    if last.timezone == zone_name(zone):
        month = datetime.fromtimestamp(time_range.from_ms / 1000, zone).strftime("%Y-%m")
        is_open = time_range.from_ms == last.to_ms and time_range == month_range(month, zone)
        closed = next((closed for closed in months if time_range == (closed.from_ms, closed.to_ms)), None)
        if closed and groupable(by):
            return of._replace(kind="closed", month=closed.month, closed=closed)
        if is_open and groupable(by):
            return of._replace(kind="open", month=month, closed=last)
        left_out = is_open
    return of._replace(closed=last, touches_closed=time_range.from_ms < last.to_ms, left_out=left_out)


def groupable(by: Iterable[str]) -> bool:
    """Whether frozen charges have all of these groupings."""
    return set(by) <= KEPT


# -- rows of an answer ------------------------------------------------------------------------------------------------


def charged_sums(
    store: StoreReader, basis: ChargeBasis, by: Sequence[str], *, zone: tzinfo, price_usd_micro: int | None = None
) -> list[Sum]:
    """Charges in addition to the ledger, by groupings and by the adjusted month: all charges of a closed month, or
    the adjustments of the month after it."""
    if basis.kind not in ("closed", "open"):
        return []
    for name in ("team", "experiment"):
        store.connection.execute(f"SET VARIABLE charge_{name} = ?", [getattr(basis, name)])
    if basis.kind == "closed":
        assert basis.closed is not None  # noqa: S101 - a closed basis has its month
        relation = _frozen(store, [basis.closed])
    else:
        relation = adjustments(store, basis, zone)
    return entry_sums(store, _limited(relation, basis), by, price_usd_micro)


def was_charged(store: StoreReader, team: str | None, experiment: str | None) -> bool:
    """Whether closed months have charges of a team and an experiment, even if nothing belongs to them now."""
    months = read_closed_months(store.folder)
    for name, value in (("team", team), ("experiment", experiment)):
        store.connection.execute(f"SET VARIABLE charge_{name} = ?", [value])
    query = _limited(_frozen(store, months), ChargeBasis(team=team, experiment=experiment)) if months else ""
    return bool(query and store.connection.execute(f"{query} LIMIT 1").fetchall())


def entry_sums(store: StoreReader, relation: str, by: Sequence[str], price_usd_micro: int | None) -> list[Sum]:
    """Sums charges by groupings. The last item of a key is the month that is adjusted."""
    price = price_of(price_usd_micro)
    keys = [_entry_column(name) for name in (*by, ADJUSTS)]
    rows = store.connection.execute(
        f"""
        SELECT {", ".join(keys)}, sum(gpu_ms), coalesce(sum(gpu_ms::HUGEINT * {price}), 0),
            coalesce(sum(gpu_ms) FILTER (WHERE {price} IS NULL), 0),
            sum(energy_mj), sum(energy_gpu_ms), sum(energy_estimated_gpu_ms)
        FROM ({relation}) GROUP BY ALL ORDER BY {_order(by)}
        """
    ).fetchall()
    width = len(keys)
    found = []
    for row in rows:
        gpu_ms, ms_price, unpriced_ms, *drawn = map(int, row[width:])
        found.append(Sum(row[:width], gpu_ms, ms_price, unpriced_ms, EnergyUse(*drawn)))
    return [one for one in found if one.gpu_ms or one.ms_price]


def _entry_column(name: str) -> str:
    if name == "workload":
        return (
            "CASE WHEN workload_uid IS NOT NULL THEN {'uid': workload_uid, 'kind': workload_kind, "
            "'namespace': workload_namespace, 'name': workload_name} END AS workload"
        )
    if name == "month":
        return "day[:7] AS month"
    if name == HELD:
        return f"pod_uid IS NOT NULL AS {HELD}"
    return f'"{name}"'


def _order(by: Sequence[str]) -> str:
    """The order of rows, like in answers from the ledger: most expensive first; with time groupings, by time."""
    keys = [str(place) for place in range(1, len(by) + 2)]
    first = [f"{len(by) + 3} DESC", f"{len(by) + 2} DESC"]
    return ", ".join([*keys, *first] if set(by) & {"day", "month"} else [*first, *keys])


# -- charges and the current ledger -----------------------------------------------------------------------------------


def entries(store: StoreReader, time_range: TimeRange, zone: tzinfo) -> str:
    """The ledger of a time range as charges, with current names."""
    open_names(store)
    query = f"SELECT NULL AS {ADJUSTS}, * FROM ({_named(_summed(store, time_range, zone, energy=True))})"
    return _table(store, "charge_entry", query)


def adjustments(store: StoreReader, basis: ChargeBasis, zone: tzinfo) -> str:
    """The difference between the current ledger of all closed time and what was charged for it. Amounts may be
    negative."""
    months = read_closed_months(store.folder)
    open_names(store)
    kept_day = _first_kept_day(store, zone)
    charged = f"FROM ({_frozen(store, months)}) WHERE day >= '{kept_day}'"
    _table(store, "charge_charged", f"SELECT * {charged}")
    now = _limited(_named(_now(store, months, zone, kept_day)), basis)
    columns = ", ".join(f'"{name}"' for name in (*NAMES[1:], PRICE))
    nothing = ", ".join(f"0 AS {name}" for name in AMOUNTS[2:])
    but_state = columns.replace(', "state"', "")
    query = f"""
        SELECT day[:7] AS {ADJUSTS}, {columns}, gpu_ms, {nothing}
        FROM (
            SELECT {columns}, sum(gpu_ms)::BIGINT AS gpu_ms
            FROM (
                SELECT {columns}, gpu_ms FROM ({now})
                UNION ALL
                SELECT {columns}, -gpu_ms FROM ({_limited("FROM charge_charged", basis)})
            )
            GROUP BY ALL HAVING sum(gpu_ms) != 0
        )
        QUALIFY sum(gpu_ms) OVER (PARTITION BY {but_state}) != 0  -- what differs in its states alone owes nothing
    """
    return _table(store, "charge_adjustment", query)


def compare_with_charged(store: Store) -> None:
    """Records for each closed month with a changed ledger whether its charges differ, so that questions need not
    compare the ledgers of months that would be charged the same."""
    months = read_closed_months(store.folder)
    if not months:
        return
    zone = months[-1].zone
    known, current = months[-1].ledger_digests, ledger_digests(store, months[-1].to_ms, zone)
    compared = _compared(store)
    changed = {month: digest for month, digest in current.items() if digest != known.get(month)}
    same = {}
    for month, digest in changed.items():
        before = compared.get(month)
        is_same = before["same"] if before and before["digest"] == digest else _same_charges(store, months, month, zone)
        same[month] = {"digest": digest, "same": is_same}
    store.set_meta(COMPARED, json.dumps(same, sort_keys=True))


def has_adjustments(store: StoreReader, month: str) -> bool:
    """Whether the ledger of a closed month differs from its charges in more than states, as last compared."""
    compared = _compared(store).get(month)
    return compared is not None and not compared["same"]


def _compared(store: StoreReader) -> dict[str, dict[str, Any]]:
    return json.loads(store.meta(COMPARED) or "{}")  # type: ignore[no-any-return]


def _same_charges(store: StoreReader, months: list[ClosedMonth], month: str, zone: tzinfo) -> bool:
    """Whether the ledger of a month equals its charges by day, holder, node and price."""
    time_range = month_range(month, zone)
    now = _summed(store, TimeRange(time_range.from_ms, min(time_range.to_ms, months[-1].to_ms)), zone)
    kept_day = _first_kept_day(store, zone)
    query = f"""
        FROM (
            SELECT day, pod_uid, node_uid, {PRICE}, gpu_ms FROM ({now})
            UNION ALL
            SELECT day, pod_uid, node_uid, {PRICE}, -gpu_ms FROM ({_frozen(store, months)}) WHERE day[:7] = '{month}'
        ) SELECT 1 WHERE day >= '{kept_day}' GROUP BY day, pod_uid, node_uid, {PRICE} HAVING sum(gpu_ms) != 0 LIMIT 1
    """
    try:
        return not store.connection.execute(query).fetchall()
    finally:
        drop_charge_tables(store)


def _now(store: StoreReader, months: list[ClosedMonth], zone: tzinfo, kept_day: str) -> str:
    """The current ledger of all closed time. Where its parts are those that a month was charged from, the charges
    are used and the ledger is not read."""
    end_ms = months[-1].to_ms
    known, current = months[-1].ledger_digests, ledger_digests(store, end_ms, zone)
    same = {month: found["digest"] for month, found in _compared(store).items() if found["same"]}
    changed = sorted(
        month
        for month in {*known, *current}
        if current.get(month) != known.get(month) and current.get(month, "") != same.get(month)
    )
    listed = ", ".join(f"'{month}'" for month in changed) or "NULL"
    uids = ", ".join(_UIDS)
    unread = f"SELECT {uids}, gpu_ms FROM charge_charged WHERE day[:7] NOT IN ({listed}) OR NOT {bool(changed)}"
    _table(store, "charge_now", unread)
    for month in changed:
        time_range = month_range(month, zone)
        read = _summed(store, TimeRange(time_range.from_ms, min(time_range.to_ms, end_ms)), zone)
        store.connection.execute(
            f"INSERT INTO charge_now SELECT {uids}, gpu_ms FROM ({read}) WHERE day >= '{kept_day}'"
        )
    nothing = ", ".join(f"0 AS {name}" for name in AMOUNTS[2:])
    return f"SELECT {uids}, sum(gpu_ms)::BIGINT AS gpu_ms, {nothing} FROM charge_now GROUP BY ALL"


def ledger_digests(store: StoreReader, before_ms: int, zone: tzinfo) -> dict[str, str]:
    """A digest of the ledger parts of each month before a time."""
    stamps: dict[str, list[str]] = {}
    for part in store.parts("ledger_row"):
        if part.from_ms < before_ms:
            first = datetime.fromtimestamp(part.from_ms / 1000, zone).date()
            last = datetime.fromtimestamp((min(part.to_ms, before_ms) - 1) / 1000, zone).date()
            for month in dict.fromkeys((f"{first:%Y-%m}", f"{last:%Y-%m}")):  # a part covers at most seven days
                stamps.setdefault(month, []).append(f"{part.from_ms} {part.to_ms} {part.digest}")
    return {month: hashlib.sha256("\n".join(sorted(of)).encode()).hexdigest()[:16] for month, of in stamps.items()}


def _summed(store: StoreReader, time_range: TimeRange, zone: tzinfo, *, energy: bool = False) -> str:
    """The ledger of a time range by day, holder, node, state and price."""
    store.expose(["ledger_row"], *time_range)
    label_quarters(store, time_range, zone)
    drawn = open_energy(store, *time_range, ("state",)) if energy and energy_in(store, *time_range).gpu_ms else ""
    metered = f"""
        UNION ALL
        SELECT minute_ms // {MS_PER_QUARTER}, pod_uid, node_uid, state, NULL, 0, sum(energy_mj), sum(ms),
            sum(estimated_ms)
        FROM {drawn} GROUP BY ALL
    """
    inside = f"minute_ms >= {time_range.from_ms} AND minute_ms < {time_range.to_ms}"
    query = f"""
        SELECT day_label AS day, pod_uid, node_uid, state::VARCHAR AS state, {PRICE}, sum(gpu_ms)::BIGINT AS gpu_ms,
            {", ".join(f"sum({name})::BIGINT AS {name}" for name in AMOUNTS[2:])}
        FROM (
            SELECT minute_ms // {MS_PER_QUARTER} AS quarter, pod_uid, node_uid, state, {PRICE}, sum(ms) AS gpu_ms,
                {", ".join(f"0 AS {name}" for name in AMOUNTS[2:])}
            FROM ledger_row WHERE {inside} GROUP BY ALL
            {metered if drawn else ""}
        ) LEFT JOIN quarter_label USING (quarter) GROUP BY ALL
    """
    return _table(store, "charge_summed", query)


def _named(relation: str) -> str:
    """Charges with the current names of holders and nodes."""
    named = [*(holder_column(name) for name in _HOLDER), *_WORKLOAD, *_SLOT]
    return f"""
        SELECT {", ".join(_UIDS)}, {", ".join(named)}, {", ".join(AMOUNTS[1:])} FROM ({relation})
        LEFT JOIN holder_name USING (pod_uid) LEFT JOIN node_name USING (node_uid)
    """


def _frozen(store: StoreReader, months: Iterable[ClosedMonth]) -> str:
    paths = ", ".join(f"'{quoted(path_of(store.folder, closed))}'" for closed in months)
    return f"FROM read_parquet([{paths}])"


def _limited(relation: str, basis: ChargeBasis) -> str:
    """Limits charges to a team and an experiment, because frozen charges are read past the limits of the store."""
    limits = {"team": basis.team, "experiment": basis.experiment}
    kept = [f"{name} = getvariable('charge_{name}')" for name, value in limits.items() if value is not None]
    return f"SELECT * FROM ({relation}) WHERE {' AND '.join(kept)}" if kept else relation


def _first_kept_day(store: StoreReader, zone: tzinfo) -> str:
    """The first day with a complete ledger: dropped time has no corrections."""
    kept_ms = kept_from_ms(store)
    if not kept_ms:
        return ""
    day = datetime.fromtimestamp(kept_ms / 1000, zone).date()
    return str(day if midnight_ms(day, zone) == kept_ms else day + timedelta(days=1))


def _table(store: StoreReader, name: str, query: str) -> str:
    store.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")
    return f"FROM {name}"


def drop_charge_tables(store: StoreReader) -> None:
    """Drops the temporary tables: a month of a large cluster has a million charges."""
    for name in ("entry", "summed", "charged", "now", "adjustment", "closing"):
        store.connection.execute(f"DROP TABLE IF EXISTS temp.charge_{name}")


def basis_json(basis: ChargeBasis, sums: dict[str, Any]) -> dict[str, Any] | None:
    """The `books` of an answer; None if no month is closed."""
    closed = basis.closed
    if closed is None:
        return None
    return {
        "basis": basis.kind,
        "month": basis.month,
        "closed": iso(closed.closed_ms, UTC) if basis.kind == "closed" else None,
        "closed_time": basis.touches_closed,
        "adjustments_left_out": basis.left_out,
        **sums,
    }
