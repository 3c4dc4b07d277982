"""The cost of parts: steps of a pipeline run, trials of a sweep.

A part is a value of a column of `holder_name`. The parts of an answer add up to its total.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyrometer.account.query.answer_json import amounts
from pyrometer.account.query.sums import Sum, added, price_of, rounded
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.states import STATE
from pyrometer.model.units import round_rows, usd
from pyrometer.store import StoreReader

WASTE = ", ".join(f"'{state.name}'" for state in STATE.values() if state.family == "waste")

_HELD = """
SELECT {keys}, sum(ms), coalesce(sum(ms * {price}), 0), coalesce(sum(ms) FILTER (WHERE {price} IS NULL), 0),
    coalesce(sum(ms) FILTER (WHERE state = 'train'), 0), coalesce(sum(ms) FILTER (WHERE state IN ({waste})), 0),
    coalesce(sum(ms * {price}) FILTER (WHERE state IN ({waste})), 0)
FROM ledger_row JOIN holder_name USING (pod_uid)
WHERE {where} AND minute_ms >= {from_ms} AND minute_ms < {to_ms} GROUP BY ALL ORDER BY ALL
"""


class HeldTime(NamedTuple):
    """The time that a part held GPUs, how much was training, and how much was wasted."""

    held: Sum
    train_ms: int = 0
    wasted: Sum = Sum((), 0, 0, 0)


NOTHING = HeldTime(Sum((), 0, 0, 0))


def held_by(
    store: StoreReader, window: TimeRange, keys: Sequence[str], where: str, value: str, price_usd_micro: int | None
) -> dict[tuple[Any, ...], HeldTime]:
    """The time of the pods that a condition selects, by some columns of `holder_name`. Requires names."""
    store.expose(["ledger_row"], *window)
    query = _HELD.format(
        keys=", ".join(keys),
        price=price_of(price_usd_micro),
        waste=WASTE,
        where=where,
        from_ms=window.from_ms,
        to_ms=window.to_ms,
    )
    found = {}
    for row in store.connection.execute(query, [value]).fetchall():
        key = row[: len(keys)]
        ms, ms_price, unpriced, train_ms, wasted_ms, wasted_price = map(int, row[len(keys) :])
        found[key] = HeldTime(Sum(key, ms, ms_price, unpriced), train_ms, Sum(key, wasted_ms, wasted_price, 0))
    return found


def together(parts: Sequence[HeldTime]) -> HeldTime:
    """The sum of parts."""
    held, wasted = added((), [part.held for part in parts]), added((), [part.wasted for part in parts])
    return HeldTime(held, sum(part.train_ms for part in parts), wasted)


def spent(parts: Sequence[HeldTime]) -> list[dict[str, Any]]:
    """Time, money, waste and goodput of each part as JSON. They add up."""
    money = rounded([part.held for part in parts])
    wasted = round_rows([part.wasted.ms_price for part in parts])
    rows = []
    for part, micro, waste in zip(parts, money, wasted, strict=True):
        if not part.held.gpu_ms:
            micro = 0
        lost = None if micro is None else waste
        rows.append(
            {
                **amounts(part.held, micro),
                "wasted_gpu_ms": part.wasted.gpu_ms,
                "wasted_usd_micro": lost,
                "wasted_usd": None if lost is None else usd(lost),
                "goodput": round(part.train_ms / part.held.gpu_ms, 4) if part.train_ms else None,
            }
        )
    return rows
