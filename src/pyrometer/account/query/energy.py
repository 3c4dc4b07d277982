"""Energy: what holders consumed, what it cost and what it emitted.

Energy is not part of the bill: the price of a rented GPU includes it, and so does that of an owned machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import lcm
from typing import Any, NamedTuple

from pyrometer.account.query.stored_sums import beside, edges, inside, minutes_before, stretches, whole_steps
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, MS_PER_QUARTER, USD_MICRO_PER_USD, largest_remainder, usd
from pyrometer.store import StoreReader
from pyrometer.store.catalog import first_row

MJ_PER_WH = 3_600_000
WH_PER_KWH = 1_000
SUMMED = "sum(energy_mj), sum(ms), sum(estimated_ms), sum(readings), sum(activity_sum)"  # the fields of `EnergyUse`


class Tariff(NamedTuple):
    """The cost and emissions of a kilowatt-hour; None if not configured. `pue` is the overhead of the site."""

    usd_per_kwh: Fraction | None = None
    carbon_g_per_kwh: Fraction | None = None
    pue: Fraction = Fraction(1)


class EnergyUse(NamedTuple):
    """Energy in millijoules, the GPU-milliseconds that it covers, the part of them that is estimated from power
    readings, and GPU activity while held: the number of readings, and their sum in thousandths."""

    mj: int = 0
    gpu_ms: int = 0
    estimated_gpu_ms: int = 0
    readings: int = 0
    activity_sum: int = 0

    @property
    def activity(self) -> float | None:
        """The mean of all readings; None if there are none."""
        return round(self.activity_sum / self.readings / 1000, 4) if self.readings else None


class Site(NamedTuple):
    """The energy at sites with one tariff: of each row of an answer, and in total."""

    tariff: Tariff
    rows: Sequence[EnergyUse]
    whole: EnergyUse


def tariff_of(settings: Settings) -> Tariff:
    """The tariff in the settings, as exact fractions."""
    return Tariff(
        Fraction(str(settings.energy_usd_per_kwh)) or None,
        Fraction(str(settings.carbon_g_per_kwh)) or None,
        Fraction(str(settings.pue)),
    )


def open_energy(
    store: StoreReader,
    from_ms: int,
    to_ms: int,
    by: Sequence[str] = (),
    ledger: str = "ledger_row",
    *,
    hourly: bool = True,
) -> str:
    """Creates a view of the energy of a time range with the columns that the ledger can be grouped by. Returns its
    name.

    A quarter of an hour that the time range cuts is divided in proportion to the milliseconds of its holder on the
    node. A quarter with ledger rows in several groups is divided in proportion to theirs. Running amounts are rounded,
    so time ranges and groups add up. Activity is that of quarters that start in the time range; by states and causes it
    is unknown. `hourly` tells whether whole hours can be read as one row.
    """
    time_range = TimeRange(from_ms, to_ms)
    keys = [name for name in by if name in ("state", "cause")]
    read = _of_slots(store, time_range) if keys else _of_holders(store, time_range, hourly=hourly)
    store.connection.execute(f"CREATE OR REPLACE TEMP VIEW energy_here AS {' UNION ALL '.join(read)}")
    if not keys:
        return "energy_here"
    if ledger == "ledger_row":
        store.expose([ledger], from_ms, to_ms)
    # one number per slot, holder and quarter: there are millions, and texts are slow to compare
    place = f"hash(minute_ms // {MS_PER_QUARTER}, node_uid, slot_index, pod_uid) AS place"
    store.connection.execute(
        f"""
        CREATE OR REPLACE TEMP VIEW energy_divided AS
        WITH held AS (
            SELECT {place}, {", ".join(keys)}, sum(ms)::BIGINT AS held_ms
            FROM {ledger} WHERE minute_ms >= {from_ms} AND minute_ms < {to_ms} GROUP BY ALL
        ),
        running AS (
            SELECT *, (sum(held_ms) OVER (PARTITION BY place))::BIGINT AS whole_ms,
                (sum(held_ms) OVER in_order)::BIGINT AS until_ms
            FROM held WINDOW in_order AS (PARTITION BY place ORDER BY {", ".join(keys)} ROWS UNBOUNDED PRECEDING)
        )
        SELECT minute_ms, node_uid, slot_index, pod_uid, {", ".join(keys)},
            {", ".join(_part(name, "energy", "(until_ms - held_ms)", "until_ms", "whole_ms") for name in _AMOUNTS)},
            0 AS readings, 0 AS activity_sum
        FROM running JOIN (SELECT *, {place} FROM energy_here) energy USING (place)
        """
    )
    return "energy_divided"


def open_use(store: StoreReader, from_ms: int, to_ms: int) -> str:
    """A relation of time, energy and activity of a time range whose hours have sums of use, with the columns of
    `hour_use` and the time as `minute_ms`."""
    time_range, hours = TimeRange(from_ms, to_ms), whole_steps(store, from_ms, to_ms, MS_PER_HOUR)
    used = store.query("hour_use", *hours)
    read = [f"SELECT time_ms AS minute_ms, * EXCLUDE (time_ms) FROM ({used}) {inside('time_ms', hours)}"]
    for number, span in enumerate(edges(time_range, hours)):
        held = stretches(store, span, f"_edge_{number}")
        read.append(f"SELECT time_ms, node_uid, pod_uid, usd_micro_per_hour, ms * minutes, 0, 0, 0, 0, 0 FROM ({held})")
        read += [
            "SELECT minute_ms, node_uid, pod_uid, NULL, 0, energy_mj, ms, estimated_ms, readings, activity_sum "
            f"FROM ({drawn})"
            for drawn in _quarters(store, span, f"_edge_{number}")
        ]
    return f"({' UNION ALL '.join(read)})"


def _of_slots(store: StoreReader, time_range: TimeRange) -> Iterator[str]:
    """Quarters of an hour by slot, without activity, which is unknown by states and causes."""
    quarters = whole_steps(store, *time_range, MS_PER_QUARTER)
    store.expose(["energy"], time_range.from_ms - MS_PER_QUARTER, time_range.to_ms)
    amounts = ", ".join(_AMOUNTS)
    yield (
        f"SELECT time_ms AS minute_ms, slot_index, node_uid, pod_uid, {amounts}, 0 AS readings, 0 AS activity_sum "
        f"FROM energy {inside('time_ms', quarters)}"
    )
    for number, quarter_ms in enumerate(_cut_quarters(time_range, quarters)):
        suffix, end_ms = f"_cut_{number}", quarter_ms + MS_PER_QUARTER
        store.expose(["ledger_row"], quarter_ms, end_ms, suffix=suffix)
        held = f"SELECT *, minute_ms AS time_ms, 1 AS minutes FROM ledger_row{suffix} "
        held += inside("minute_ms", TimeRange(quarter_ms, end_ms))
        yield _cut(time_range, quarter_ms, "energy", held, ("node_uid", "slot_index", "pod_uid"))


def _of_holders(store: StoreReader, time_range: TimeRange, *, hourly: bool) -> Iterator[str]:
    """The same without slots, and with activity. Whole hours are read from sums, if there are any."""
    hours, summed = whole_steps(store, *time_range, MS_PER_HOUR), store.parts("hour_use")
    if hours.is_empty or not summed or not hourly:
        yield from _quarters(store, time_range, "")
        return
    store.expose(["hour_use"], *hours)
    yield _whole("hour_use", hours, ms="energy_ms")
    without = beside(store, "quarter_use", summed)
    store.expose(["quarter_use"], *hours, suffix="_unsummed", without=without)
    yield _whole("quarter_use_unsummed", hours)
    for number, span in enumerate(edges(time_range, hours)):
        yield from _quarters(store, span, f"_edge_{number}")


def _quarters(store: StoreReader, span: TimeRange, suffix: str) -> Iterator[str]:
    """Quarters of an hour without slots, and the parts of quarters that the time range cuts."""
    quarters = whole_steps(store, *span, MS_PER_QUARTER)
    store.expose(["quarter_use"], span.from_ms - MS_PER_QUARTER, span.to_ms, suffix=suffix)
    yield _whole(f"quarter_use{suffix}", quarters)
    for number, quarter_ms in enumerate(_cut_quarters(span, quarters)):
        quarter = TimeRange(quarter_ms, quarter_ms + MS_PER_QUARTER)
        held = stretches(store, quarter, f"{suffix}_cut_{number}")
        active = span.from_ms <= quarter_ms
        yield _cut(span, quarter_ms, f"quarter_use{suffix}", held, ("node_uid", "pod_uid"), active=active)


def _whole(relation: str, span: TimeRange, ms: str = "ms") -> str:
    return (
        "SELECT time_ms AS minute_ms, -1 AS slot_index, node_uid, pod_uid, "
        f"energy_mj, {ms} AS ms, estimated_ms, readings, activity_sum FROM {relation} {inside('time_ms', span)}"
    )


def _cut_quarters(span: TimeRange, quarters: TimeRange) -> list[int]:
    """The quarters that a time range cuts. It is only one if the time range is within it."""
    begun_ms = [quarters.from_ms - MS_PER_QUARTER] if span.from_ms < quarters.from_ms else []
    ended_ms = [quarters.to_ms] if quarters.to_ms < span.to_ms else []
    return sorted({*begun_ms, *ended_ms})


def _cut(
    time_range: TimeRange, quarter_ms: int, energy: str, held: str, holder: Sequence[str], *, active: bool = False
) -> str:
    """The part of a quarter of an hour in a time range that cuts it, in proportion to the holder's milliseconds, and
    its activity."""
    before, until = minutes_before(time_range.from_ms), minutes_before(time_range.to_ms)
    same = " AND ".join(f"held.{name} IS NOT DISTINCT FROM energy.{name}" for name in holder)
    slot = "energy.slot_index" if "slot_index" in holder else "-1"
    use = ", ".join(f"{f'energy.{name}' if active else 0} AS {name}" for name in ("readings", "activity_sum"))
    parts = ", ".join(_part(name, "energy", "before_ms", "until_ms", "whole_ms") for name in _AMOUNTS)
    return f"""
        SELECT greatest(time_ms, {time_range.from_ms}) AS minute_ms, {slot} AS slot_index, energy.node_uid,
        energy.pod_uid, {parts}, {use} FROM {energy} energy JOIN ( SELECT {", ".join(holder)}, sum(ms * minutes)::BIGINT
        AS whole_ms, sum(ms * {before})::BIGINT AS before_ms, sum(ms * {until})::BIGINT AS until_ms FROM ({held}) GROUP
        BY ALL ) held ON energy.time_ms = {quarter_ms} AND {same}
    """


def has_use(store: StoreReader, from_ms: int, to_ms: int) -> bool:
    """Whether there is any energy or activity."""
    return any(part.row_count for part in store.parts("quarter_use") if part.from_ms < to_ms and part.to_ms > from_ms)


def energy_in(store: StoreReader, from_ms: int, to_ms: int) -> EnergyUse:
    """The energy and activity of a time range in total."""
    if not has_use(store, from_ms, to_ms):
        return EnergyUse()
    relation = open_energy(store, from_ms, to_ms)
    row = first_row(store.connection.execute(f"SELECT {SUMMED} FROM {relation}"))
    return EnergyUse(*(int(amount or 0) for amount in row or ()))


def plus(*drawn: EnergyUse) -> EnergyUse:
    """The sum."""
    return EnergyUse(*(sum(of) for of in zip(*drawn, strict=True)))


def drawn_whole(rows: Sequence[EnergyUse], unit: int) -> EnergyUse:
    """The sum of rows whose amounts are in parts of a unit, rounded."""
    return EnergyUse(*((2 * amount + unit) // (2 * unit) for amount in plus(*rows)))


def energy_rows(sites: Sequence[Site]) -> list[dict[str, Any]]:
    """The energy of an answer's rows, adding up to the total. None for a row without known energy, and for an amount
    that the tariff of one of its sites does not have."""
    known = [sum(drawn.gpu_ms for drawn in of) for of in zip(*(site.rows for site in sites), strict=True)]
    amounts = {unit: _split(sites, unit) for unit in _UNITS}
    return [
        _shown({unit: parts[place] if gpu_ms and parts else None for unit, parts in amounts.items()})
        for place, gpu_ms in enumerate(known)
    ]


def energy_total(whole: EnergyUse, tariff: Tariff) -> dict[str, Any]:
    """The energy of an answer's total, the GPU time that it covers, and the GPU activity."""
    return energy_of_all([Site(tariff, (), whole)])


def energy_of_all(sites: Sequence[Site]) -> dict[str, Any]:
    """The same for several sites."""
    (row,) = energy_rows([site._replace(rows=[site.whole]) for site in sites])
    whole = EnergyUse(*(sum(amounts) for amounts in zip(*(site.whole for site in sites), strict=True)))
    known = {"energy_gpu_ms": whole.gpu_ms, "energy_estimated_gpu_ms": whole.estimated_gpu_ms}
    return row | known | {"activity": whole.activity}


_AMOUNTS = ("energy_mj", "ms", "estimated_ms")


def _part(name: str, table: str, before: str, until: str, whole: str) -> str:
    amount = f"{table}.{name}"
    return f"({amount} * {until} // {whole} - {amount} * {before} // {whole}) AS {name}"


_UNITS = ("energy_wh", "energy_usd_micro", "co2e_g")


def _factor(tariff: Tariff, unit: str) -> Fraction | None:
    """The value of a millijoule in a unit of an answer."""
    if unit == "energy_wh":
        return Fraction(1, MJ_PER_WH)
    site_kwh = tariff.pue / MJ_PER_WH / WH_PER_KWH  # the site consumes more than its GPUs
    if unit == "energy_usd_micro":
        return None if tariff.usd_per_kwh is None else site_kwh * tariff.usd_per_kwh * USD_MICRO_PER_USD
    return None if tariff.carbon_g_per_kwh is None else site_kwh * tariff.carbon_g_per_kwh


def _split(sites: Sequence[Site], unit: str) -> list[int] | None:
    """An amount for every row, adding up to that of all sites. None if a site with energy has no such tariff."""
    factors = [_factor(site.tariff, unit) for site in sites]
    if any(
        factor is None and (site.whole.gpu_ms or len(sites) == 1) for site, factor in zip(sites, factors, strict=True)
    ):
        return None
    known = [(site, factor) for site, factor in zip(sites, factors, strict=True) if factor is not None]
    scale = lcm(*(factor.denominator for _, factor in known))
    whole = [(site, int(factor * scale)) for site, factor in known]
    weights = [0] * len(sites[0].rows)
    for site, factor in whole:
        for place, drawn in enumerate(site.rows):
            weights[place] += drawn.mj * factor
    exact = Fraction(sum(site.whole.mj * factor for site, factor in whole), scale)
    return largest_remainder(weights, int(exact + Fraction(1, 2)))


def _shown(row: dict[str, int | None]) -> dict[str, Any]:
    wh, cost = row["energy_wh"], row["energy_usd_micro"]
    return {
        "energy_wh": wh,
        "kwh": None if wh is None else round(wh / WH_PER_KWH, 3),
        "energy_usd_micro": cost,
        "energy_usd": None if cost is None else usd(cost),
        "co2e_g": row["co2e_g"],
    }
