"""GPU-hours, money and energy by any grouping, from the ledger or from closed months. `cost` and all exports use it.

Rows add up to the total, in integers. The rows of a team add up to the same amount with any further groupings, and so
do those of each of its experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from decimal import Decimal
from typing import Any, NamedTuple

from pyrometer.account.closing.charge_basis import ADJUSTS, LEDGER, ChargeBasis, basis_json, charged_sums
from pyrometer.account.query.answer_json import time_and_money, time_range_json
from pyrometer.account.query.energy import (
    EnergyUse,
    Site,
    Tariff,
    drawn_whole,
    energy_in,
    energy_of_all,
    energy_rows,
    has_use,
    open_energy,
    plus,
)
from pyrometer.account.query.groupings import HELD, PRICE
from pyrometer.account.query.sharing import NONE, Pot, is_platform, parts_of, pot_groupings, shared
from pyrometer.account.query.sums import HOUR_USE, Sum, hourly, is_priced, reads_hour_use, sums
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import MS_PER_HOUR, round_nested
from pyrometer.store import StoreReader

# The fields of a row after its groupings, in the order of the columns of files, and their types in files: a Decimal
# is dollars, with all the digits that its `…_micro` has. New ones go last, because scripts read files by position too.
AMOUNTS: dict[str, type] = {
    "gpu_ms": int,
    "gpu_hours": float,
    "usd_micro": int,
    "usd": Decimal,
    "energy_wh": int,
    "kwh": float,
    "energy_usd_micro": int,
    "energy_usd": Decimal,
    "co2e_g": int,
    ADJUSTS: str,
    "activity": float,
}
_OUTER = ("team", ADJUSTS, "experiment")  # rows are rounded within these, in this order


class CostQuestion(NamedTuple):
    """The question: time range, time zone, price, and what is charged."""

    time_range: TimeRange
    zone: tzinfo
    price_usd_micro: int | None = None
    basis: ChargeBasis = LEDGER
    ledger: str = "ledger_row"  # or any relation with its columns
    pot: Pot | None = None  # None: the platform pays for time without a holder


class CostRow(NamedTuple):
    """One row of an answer."""

    key: tuple[Any, ...]  # the values of the groupings
    adjusts: str | None  # the closed month that it corrects
    gpu_ms: int
    usd_micro: int | None
    drawn: EnergyUse


class CostAnswer(NamedTuple):
    """The rows of an answer, their total, and the totals of the ledger and of adjustments alone."""

    rows: list[CostRow]
    total: dict[str, Any]
    books: dict[str, Any] | None


def pot_of(store: StoreReader, about: CostQuestion, by: Sequence[str], how: str) -> Pot | None:
    """The time without a holder, of all teams. Call it before the store is limited to a team."""
    if how == NONE:
        return None
    everybody = about._replace(basis=about.basis._replace(team=None, experiment=None))
    parts = parts_of(_groups(store, everybody, ("team", HELD)), how)
    known = PRICE not in by and about.basis.kind != "closed" and energy_in(store, *about.time_range).gpu_ms
    whole = hourly(by, about.zone, about.time_range)
    energy = open_energy(store, *about.time_range, hourly=whole) if known else ""  # groupings by price have no energy
    return Pot(parts, is_platform(_groups(store, everybody, pot_groupings(by), energy)))


def energy_read(
    store: StoreReader, time_range: TimeRange, by: Sequence[str], zone: tzinfo, ledger: str = "ledger_row"
) -> str:
    """The relation to read energy and activity from; empty if there are none."""
    if not has_use(store, *time_range):
        return ""
    if ledger == "ledger_row" and reads_hour_use(store, time_range, by, zone):
        return HOUR_USE
    return open_energy(store, *time_range, by, ledger, hourly=hourly(by, zone, time_range))


def drawn_by_all(store: StoreReader, time_range: TimeRange, by: Sequence[str], rows: Sequence[EnergyUse]) -> EnergyUse:
    """The energy of all rows. By states and causes the activity is unknown, but in total it is known."""
    return energy_in(store, *time_range) if {"state", "cause"} & set(by) else plus(EnergyUse(), *rows)


def cost_answer(store: StoreReader, about: CostQuestion, by: Sequence[str], *, energy: str = "") -> CostAnswer:
    """Answers a question by groupings, with rows that are rounded so that they add up."""
    pot, unit = about.pot, 1
    if pot is None:
        groups = _groups(store, about, by, energy)
    else:
        unit = pot.unit
        groups = shared(_groups(store, about, (*by, HELD), energy), by, pot, about.basis.team)
    rows, total, parts = rounded_rows(groups, by, unit)
    return CostAnswer(rows, total, basis_json(about.basis, parts))


def rounded_rows(
    groups: Sequence[Sum], by: Sequence[str], unit: int = 1
) -> tuple[list[CostRow], dict[str, Any], dict[str, Any]]:
    """Rounds groups in parts of a unit. The last item of a key is the month that is adjusted. Returns the rows,
    their total, and the totals of the ledger and of adjustments."""
    paths = [_path(by, group.key) for group in groups]
    times = round_nested([group.gpu_ms for group in groups], paths, unit)
    money = round_nested([group.ms_price for group in groups], paths, unit * MS_PER_HOUR)
    unpriced = round_nested([group.unpriced_gpu_ms for group in groups], paths, unit)
    priced = [is_priced(group) for group in groups]
    rows = [
        CostRow(group.key[:-1], group.key[-1], gpu_ms, micro if known else None, group.drawn)
        for group, gpu_ms, micro, known in zip(groups, times, money, priced, strict=True)
    ]
    lines = list(zip(rows, unpriced, strict=True))
    parts = {
        "ledger": _total([line for line in lines if line[0].adjusts is None]),
        "adjustments": _total([line for line in lines if line[0].adjusts is not None]),
    }
    return rows, _total(lines), parts


def cost(
    store: StoreReader,
    time_range: TimeRange,
    by: Sequence[str],
    *,
    zone: tzinfo,
    price_usd_micro: int | None = None,
    ledger: str = "ledger_row",
    tariff: Tariff | None = None,
    basis: ChargeBasis = LEDGER,
    pot: Pot | None = None,
) -> dict[str, Any]:
    """The answer of `pyrometer cost`."""
    about = CostQuestion(
        time_range=time_range, zone=zone, price_usd_micro=price_usd_micro, basis=basis, ledger=ledger, pot=pot
    )
    frozen = basis.closed if basis.kind == "closed" else None
    energy = "" if frozen else energy_read(store, time_range, by, zone, ledger)
    answer = cost_answer(store, about, by, energy=energy)
    drawn = [row.drawn for row in answer.rows]
    whole = (
        drawn_by_all(store, time_range, by, drawn) if energy and not pot else drawn_whole(drawn, pot.unit if pot else 1)
    )
    site = Site(frozen.energy_tariff if frozen else tariff or Tariff(), drawn, whole)
    return cost_json(answer, by, time_range, zone, [site])


def cost_json(
    answer: CostAnswer, by: Sequence[str], time_range: TimeRange, zone: tzinfo, sites: Sequence[Site]
) -> dict[str, Any]:
    """The answer of `pyrometer cost` as JSON, for rows whose energy is from one or more sites."""
    rows = []
    for row, energy in zip(answer.rows, energy_rows(sites), strict=True):
        groups = {name: _shown(name, value) for name, value in zip(by, row.key, strict=True)}
        amounts = time_and_money(row.gpu_ms, row.usd_micro) | energy
        amounts |= {ADJUSTS: row.adjusts, "activity": row.drawn.activity}
        rows.append(groups | {name: amounts[name] for name in AMOUNTS})
    return {
        "window": time_range_json(time_range, zone),
        "by": list(by),
        "rows": rows,
        "total": answer.total | energy_of_all(sites),
        "books": answer.books,
    }


def _groups(store: StoreReader, about: CostQuestion, by: Sequence[str], energy: str = "") -> list[Sum]:
    """Exact sums by groupings and by the month that is adjusted, which is the last item of a key."""
    found: list[Sum] = []
    if about.basis.kind != "closed":
        of_ledger = sums(
            store,
            about.time_range,
            by,
            zone=about.zone,
            price_usd_micro=about.price_usd_micro,
            ledger=about.ledger,
            energy=energy,
        )
        found = [group._replace(key=(*group.key, None)) for group in of_ledger]
    return found + charged_sums(store, about.basis, by, zone=about.zone, price_usd_micro=about.price_usd_micro)


def _path(by: Sequence[str], key: tuple[Any, ...]) -> tuple[str, ...]:
    """The path of a row for rounding: the outermost group first, the row itself last."""
    of = dict(zip((*by, ADJUSTS), key, strict=True))
    outer = [of.pop(name) for name in _OUTER if name in of]
    return (*("" if value is None else f"={value}" for value in outer), repr(list(of.values())))


def _total(lines: Sequence[tuple[CostRow, int]]) -> dict[str, Any]:
    gpu_ms, unpriced_gpu_ms = sum(row.gpu_ms for row, _ in lines), sum(unpriced for _, unpriced in lines)
    money = [row.usd_micro for row, _ in lines if row.usd_micro is not None]
    return time_and_money(gpu_ms, sum(money) if money else None) | {"unpriced_gpu_ms": unpriced_gpu_ms}


def _shown(name: str, value: Any) -> Any:
    return dict(value) if name == "workload" and value is not None else value
