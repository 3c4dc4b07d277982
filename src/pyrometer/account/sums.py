"""Questions to the ledger: milliseconds, money and energy by any grouping.

Every answer's rows add up to its total, in integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrometer.account import sql
from pyrometer.account.energy import SUMMED as DRAWN
from pyrometer.account.energy import Drawn, open_use
from pyrometer.account.summed import has_whole_hours, is_summed, open_hours
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, MS_PER_QUARTER, gpu_hours, round_rows, usd, usd_micro
from pyrometer.store import Reading

if TYPE_CHECKING:
    import pyarrow as pa

PARTS = ("pipeline", "pipeline_run", "pipeline_step", "sweep", "trial")  # of pipelines and sweeps; null: of none
# What an answer can be grouped by: the columns of `ledger_named` it takes.
_HOLDER = ("team", "experiment", "workload", "namespace", "user", "queue", "pod", "outcome", *PARTS)
_SLOT = ("node", "pool", "gpu_model", "cluster")
_ROW = ("state", "cause")
TIME = ("hour", "day", "month")
GROUPINGS = (*_HOLDER, *_SLOT, *_ROW, *TIME)
PRICE = "usd_micro_per_hour"
HOUR_USE = "hour_use"
_TIMED = ("gpu_ms", "ms_price", "unpriced_ms")
_DRAWN = ("energy_mj", "energy_ms", "estimated_ms", "readings", "activity_sum")  # what `Drawn` has
HELD = "held"  # whether anybody did: a team may call itself `platform`
_NAMING = ("pod", "workload", "node", "slot", "pipeline_run", "sweep", "trial")
PLATFORM = "platform"  # pays for what nobody held


class Window(NamedTuple):
    """The time of a question: whole minutes, the end not included."""

    from_ms: int
    to_ms: int


class Sum(NamedTuple):
    """Milliseconds and money of one group. `ms_price` is exact: milliseconds × micro-dollars per hour."""

    key: tuple[Any, ...]
    gpu_ms: int
    ms_price: int
    unpriced_gpu_ms: int
    drawn: Drawn = Drawn()


def open_names(store: Reading, tables: Sequence[str] = sql.NAMED) -> None:
    """Makes the names of holders and slots readable, or only some of these tables. They are remembered until they
    change."""
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
        store.connection.register(name, made[name])  # as it is: a table of it would be made for one question


def billed_to(store: Reading) -> str:
    """Who pays for an experiment that spans teams, as the last build of the ledger was told."""
    return store.meta("bill_to") or Settings().bill_to


def sums(
    store: Reading,
    window: Window,
    by: Sequence[str],
    *,
    zone: tzinfo,
    price_usd_micro: int | None = None,
    ledger: str = "ledger_row",
    energy: str = "",
) -> list[Sum]:
    """The ledger of a window, summed by groupings. `ledger` may be any relation with the ledger's columns, `energy` one
    that `open_energy` made; or `HOUR_USE`, where `reads_hour_use`: that has both."""
    timed = bool(set(by) & set(TIME))
    drawn = ", ".join(f"0 AS {name}" for name in _DRAWN)
    if energy == HOUR_USE:
        ledger, energy = open_use(store, *window), ""
        drawn = ", ".join(f"sum({name}) AS {name}" for name in _DRAWN)
    elif ledger == "ledger_row":
        if hourly(by, zone, window):
            ledger = open_hours(store, *window, states="state" in by)
        else:
            store.expose(["ledger_row"], *window)
    price = price_of(price_usd_micro)
    raw, named = _columns(by)
    if timed:
        label_quarters(store, window, zone)
    metered = f"""
            UNION ALL
            SELECT {", ".join([*raw, ""])} 0, 0, 0, {DRAWN} FROM {energy} GROUP BY ALL
    """
    rows = store.connection.execute(
        f"""
        WITH compact AS (  -- few rows before names are joined to them
            SELECT {", ".join([*raw, ""])} sum(ms) AS gpu_ms, coalesce(sum(ms * {price}), 0) AS ms_price,
                coalesce(sum(ms) FILTER (WHERE {price} IS NULL), 0) AS unpriced_ms,
                {drawn}
            FROM {ledger} WHERE minute_ms >= {window.from_ms} AND minute_ms < {window.to_ms}
            GROUP BY ALL
            {metered if energy else ""}
        )
        SELECT {", ".join([*named, ""])} {", ".join(f"sum({name})::VARCHAR" for name in (*_TIMED, *_DRAWN))}
        FROM compact
        {"LEFT JOIN holder_name USING (pod_uid)" if "pod_uid" in raw else ""}
        {"LEFT JOIN node_name USING (node_uid)" if "node_uid" in raw else ""}
        {"LEFT JOIN quarter_label USING (quarter)" if timed else ""}
        GROUP BY ALL ORDER BY {_order(by)}
        """
    ).fetchall()
    width = len(by)
    found = []
    for row in rows:  # texts: numbers of 128 bits are read from those in half of the time
        gpu_ms, ms_price, unpriced_ms, *amounts = map(int, row[width:])
        if gpu_ms:
            found.append(Sum(row[:width], gpu_ms, ms_price, unpriced_ms, Drawn(*amounts)))
    return found


def reads_hour_use(store: Reading, window: Window, by: Sequence[str], zone: tzinfo) -> bool:
    """Whether time, energy and activity of whole hours can be read from their sums alone."""
    return not set(by) & set(_ROW) and hourly(by, zone, window) and is_summed(store, *window, HOUR_USE)


def hourly(by: Sequence[str], zone: tzinfo, window: Window) -> bool:
    """Whether hours of UTC can be added up as wholes, whatever an answer is grouped by."""
    return not set(by) & set(TIME) or has_whole_hours(zone, *window)


def rounded(groups: Sequence[Sum]) -> list[int | None]:
    """Micro-dollars of each group, adding up to the total; None for a group of which nothing is priced."""
    money = round_rows([group.ms_price for group in groups])
    return [micro if is_priced(group) else None for group, micro in zip(groups, money, strict=True)]


def amounts(group: Sum, micro: int | None) -> dict[str, Any]:
    """Time and money of one row of an answer."""
    return time_and_money(group.gpu_ms, micro)


def time_and_money(gpu_ms: int, micro: int | None) -> dict[str, Any]:
    """Amounts as answers write them."""
    return {
        "gpu_ms": gpu_ms,
        "gpu_hours": gpu_hours(gpu_ms),
        "usd_micro": micro,
        "usd": None if micro is None else usd(micro),
    }


def total(groups: Iterable[Sum]) -> dict[str, Any]:
    """The total of an answer."""
    whole = added((), list(groups))
    micro = usd_micro(whole.ms_price) if is_priced(whole) else None
    return amounts(whole, micro) | {"unpriced_gpu_ms": whole.unpriced_gpu_ms}


def is_priced(group: Sum) -> bool:
    """Whether any of it has a price. What corrects the past may be no time at all, and money."""
    return group.unpriced_gpu_ms != group.gpu_ms or group.ms_price != 0


def added(key: tuple[Any, ...], groups: Sequence[Sum]) -> Sum:
    """Some groups as one."""
    return Sum(
        key, sum(g.gpu_ms for g in groups), sum(g.ms_price for g in groups), sum(g.unpriced_gpu_ms for g in groups)
    )


def price_of(price_usd_micro: int | None) -> str:
    """The price of a row of the ledger, in SQL: its own, or one for everything where that was asked for."""
    return "usd_micro_per_hour" if price_usd_micro is None else f"{int(price_usd_micro)}::BIGINT"


def workload_json(
    uid: str | None, kind: str | None, namespace: str | None, name: str | None
) -> dict[str, str | None] | None:
    """A workload as answers write it; None where there is none."""
    return {"uid": uid, "kind": kind, "namespace": namespace, "name": name} if uid else None


def iso(time_ms: int, zone: tzinfo) -> str:
    """A time as answers write it: ISO 8601 with its offset."""
    text = datetime.fromtimestamp(time_ms / 1000, zone).isoformat(
        timespec="milliseconds" if time_ms % 1000 else "seconds"
    )
    return text.replace("+00:00", "Z") if text.endswith("+00:00") else text


def window_json(window: Window, zone: tzinfo) -> dict[str, str]:
    """A window as answers write it."""
    return {"from": iso(window.from_ms, zone), "to": iso(window.to_ms, zone)}


def _columns(by: Sequence[str]) -> tuple[list[str], list[str]]:
    """The ledger's own columns that a grouping needs, and the named columns it shows."""
    raw: list[str] = []
    named: list[str] = []
    for name in by:
        if name == HELD:
            raw.append("pod_uid")
            named.append(f"pod_uid IS NOT NULL AS {HELD}")
        elif name in _HOLDER:
            raw.append("pod_uid")
            named.append(holder_column(name))
        elif name in _SLOT:
            raw.append("node_uid")
            named.append(name)
        elif name in TIME:
            raw.append(f"minute_ms // {MS_PER_QUARTER} AS quarter")
            named.append(f"{name}_label")
        else:
            raw.append(name)
            named.append(name)
    return list(dict.fromkeys(raw)), named


def _order(by: Sequence[str]) -> str:
    """Most expensive first; what has a time in it, in the order in which it was asked for and passed."""
    keys = [f"min({name}_first)" if name in TIME else str(place) for place, name in enumerate(by, 1)]
    amounts_first = ["sum(ms_price) DESC", "sum(gpu_ms) DESC"]
    return ", ".join([*keys, *amounts_first] if set(by) & set(TIME) else [*amounts_first, *keys])


def holder_column(name: str) -> str:
    """What a holder is called, in SQL; what nobody held is the platform's."""
    if name == "workload":
        return (
            "CASE WHEN workload_uid IS NOT NULL THEN {'uid': workload_uid, 'kind': workload_kind, "
            "'namespace': workload_namespace, 'name': workload_name} END AS workload"
        )
    nobody = f"'{PLATFORM}'" if name == "team" else "NULL"
    return f'CASE WHEN pod_uid IS NULL THEN {nobody} ELSE "{name}" END AS "{name}"'


def label_quarters(store: Reading, window: Window, zone: tzinfo) -> None:
    """Which local hour, day and month each quarter of an hour belongs to.

    An hour that the clock repeats is two hours.
    """
    parts = store.parts("ledger_row")
    from_ms = max(window.from_ms, min((part.from_ms for part in parts), default=window.from_ms))
    to_ms = min(window.to_ms, max((part.to_ms for part in parts), default=window.to_ms))
    table = _quarters(from_ms // MS_PER_QUARTER, -(-to_ms // MS_PER_QUARTER), zone)
    store.connection.register("quarter_rows", table)
    store.connection.execute("CREATE OR REPLACE TEMP TABLE quarter_label AS FROM quarter_rows")
    store.connection.unregister("quarter_rows")


@lru_cache(maxsize=8)
def _quarters(first: int, end: int, zone: tzinfo) -> pa.Table:
    """The labels of quarters; a month has three thousand, and is asked about more than once."""
    import pyarrow as pa

    labels: dict[str, list[str]] = {name: [] for name in TIME}
    for quarter in range(first, end):
        local = datetime.fromtimestamp(quarter * MS_PER_QUARTER / 1000, zone)
        labels["hour"].append(f"{local:%Y-%m-%dT%H}:00{local.isoformat()[19:]}")
        labels["day"].append(f"{local:%Y-%m-%d}")
        labels["month"].append(f"{local:%Y-%m}")
    columns: dict[str, Sequence[int | str]] = {"quarter": range(first, end)}
    for name, said in labels.items():
        begins: dict[str, int] = {}  # words are not in the order of time where the clock repeats an hour
        columns[f"{name}_label"] = said
        columns[f"{name}_first"] = [begins.setdefault(label, place) for place, label in enumerate(said, first)]
    return pa.table(columns)


def whole_hours(window: Window) -> Iterable[int]:
    """The hours that a window touches."""
    return range(window.from_ms - window.from_ms % MS_PER_HOUR, window.to_ms, MS_PER_HOUR)


def last(end_ms: int, length: timedelta) -> Window:
    """The window of a length up to an end."""
    return Window(end_ms - round(length.total_seconds() * 1000), end_ms)
