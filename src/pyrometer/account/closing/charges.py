"""Charges: by local day, node, team, experiment, workload and price."""

from __future__ import annotations

from datetime import UTC, date, tzinfo
from typing import Any

from pyrometer.account.closing.charge_basis import ADJUSTS, LEDGER, ChargeBasis
from pyrometer.account.query.answer_json import iso, time_range_json
from pyrometer.account.query.cost import CostAnswer, CostQuestion, cost_answer
from pyrometer.account.query.groupings import PRICE
from pyrometer.account.query.names import open_names
from pyrometer.account.query.sharing import Pot
from pyrometer.account.query.time_range import TimeRange, midnight_ms, month_range
from pyrometer.store import StoreReader

BY = ("day", "cluster", "pool", "node", "gpu_model", "team", "experiment", "workload", "namespace")
COLUMNS = (*BY, "from", "to", "billing_from", "billing_to", PRICE, "gpu_ms", "usd_micro", ADJUSTS)


def groupings(price_usd_micro: int | None) -> tuple[str, ...]:
    """The groupings of charges. With one price for everything, they do not include the price."""
    return (*BY, PRICE) if price_usd_micro is None else BY


def charges(
    store: StoreReader,
    time_range: TimeRange,
    *,
    zone: tzinfo,
    price_usd_micro: int | None = None,
    basis: ChargeBasis = LEDGER,
    pot: Pot | None = None,
) -> dict[str, Any]:
    """One row per day, holder and price. Rows are lists in the order of `columns`, because there are many.

    `from` and `to` are UTC: the part of the day in the time range. `billing_from` and `billing_to` are its month. An
    adjustment has the day that it corrects, and is billed with the requested month.
    """
    open_names(store)
    price = price_usd_micro
    return charges_json(
        cost_answer(store, CostQuestion(time_range, zone, price, basis, pot=pot), groupings(price)),
        time_range,
        zone,
        price,
    )


def charges_json(answer: CostAnswer, time_range: TimeRange, zone: tzinfo, price: int | None) -> dict[str, Any]:
    """The answer as JSON, for rows by `groupings`."""
    times = {
        (day, adjusts): _times(date.fromisoformat(day), time_range, zone, adjusts is not None)
        for day, adjusts in dict.fromkeys((row.key[0], row.adjusts) for row in answer.rows)
    }
    rows = [
        [
            *(row.key[: len(BY)]),
            *times[row.key[0], row.adjusts],
            row.key[-1] if price is None else price,
            row.gpu_ms,
            row.usd_micro,
            row.adjusts,
        ]
        for row in answer.rows
    ]
    return {
        "window": time_range_json(time_range, zone),
        "columns": list(COLUMNS),
        "rows": rows,
        "total": answer.total,
        "books": answer.books,
    }


def _times(day: date, time_range: TimeRange, zone: tzinfo, adjusts: bool) -> tuple[str, ...]:
    """The part of a day in a time range, and the month it is billed with."""
    begin_ms = midnight_ms(day, zone)
    end_ms = midnight_ms(date.fromordinal(day.toordinal() + 1), zone)
    if adjusts:
        billed = TimeRange(*time_range)
    else:
        billed = month_range(f"{day:%Y-%m}", zone)
        begin_ms, end_ms = max(begin_ms, time_range.from_ms), min(end_ms, time_range.to_ms)
    return tuple(iso(moment, UTC) for moment in (begin_ms, end_ms, *billed))
