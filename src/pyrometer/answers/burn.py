"""GPU time and cost of a time range by state, time, team and experiment, without causes.

`why` starts with it and adds findings. The web page opens with it because it is much faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from typing import Any

from pyrometer.account.query import sums as ledger
from pyrometer.account.query.answer_json import amounts, iso, time_range_json, total
from pyrometer.account.query.energy import energy_in, energy_total, tariff_of
from pyrometer.account.query.names import open_names
from pyrometer.account.query.stored_sums import open_minutes
from pyrometer.account.query.sums import Sum, added, price_of, rounded
from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.burn_table import bucket_length_ms, open_burn
from pyrometer.model.settings import Settings
from pyrometer.model.states import EVIDENCE, STATE, STATES
from pyrometer.model.units import MS_PER_MINUTE, largest_remainder, usd
from pyrometer.store import StoreReader

MAX_BUCKETS = 240
UNALLOCATED = ("platform", None)  # the team and the experiment of unallocated time
RATE_MS = 5 * MS_PER_MINUTE  # the cost per hour is measured over the newest minutes

# A separate pass: every pod in every bucket would be a hundred times as many rows and take longer than two passes.
_TIMELINE = """
WITH compact AS (  -- few rows before anything is multiplied
    SELECT (minute_ms + {offset_ms}) // {bucket_ms} * {bucket_ms} - {offset_ms} AS bucket, state, {price} AS price,
        sum(ms) AS ms
    FROM {ledger} WHERE minute_ms >= {from_ms} AND minute_ms < {to_ms} GROUP BY ALL
)
SELECT bucket, state, sum(ms), coalesce(sum(ms * price), 0), coalesce(sum(ms) FILTER (WHERE price IS NULL), 0)
FROM compact GROUP BY ALL ORDER BY ALL
"""


def burn(
    store: StoreReader, window: TimeRange, settings: Settings, *, zone: tzinfo, price_usd_micro: int | None = None
) -> dict[str, Any]:
    """GPU time and cost of a time range."""
    open_names(store)
    open_burn(store, window, None, price_usd_micro)
    burned = BurnSummary(store, window, zone)
    teams = burned.teams()
    return {
        **burned.totals(settings, price_usd_micro),
        "timeline": burned.timeline(price_usd_micro),
        "rate": _rate(store, window, zone, price_usd_micro),
        "teams": teams,
        "experiments": burned.experiments(teams),
    }


class BurnSummary:
    """Sums over the table `burn`."""

    def __init__(self, store: StoreReader, window: TimeRange, zone: tzinfo) -> None:
        self._store = store
        self._window = window
        self._zone = zone
        self._by_state = self.sums("state")
        self._micro = dict(zip((group.key[0] for group in self._by_state), rounded(self._by_state), strict=True))

    def sums(self, *by: str) -> list[Sum]:
        """Sums by any grouping except slots and times."""
        everything = TimeRange(0, 2**62)  # `burn` is the window already; its buckets may begin before it
        return ledger.sums(self._store, everything, by, zone=self._zone, ledger="burn")

    def totals(self, settings: Settings, price_usd_micro: int | None) -> dict[str, Any]:
        """What every answer about a time range begins with: the total, and each state."""
        drawn = energy_total(energy_in(self._store, *self._window), tariff_of(settings))
        return {
            "window": time_range_json(self._window, self._zone),
            "timezone": str(self._zone),
            "origin": self._store.meta("origin"),  # simulated, recorded; None when it is live
            "total": total(self._by_state) | drawn,
            # whether any price came from the bundled list instead of a book
            "prices_assumed": price_usd_micro is None and self._store.meta("prices_assumed") == "yes",
            "states": self.states(),
            "evidence": self.evidence(),
        }

    def states(self) -> list[dict[str, Any]]:
        """Each state, in reading order."""
        order = {state.name: place for place, state in enumerate(STATES)}
        return [
            {"state": group.key[0], "family": STATE[group.key[0]].family} | amounts(group, self._micro[group.key[0]])
            for group in sorted(self._by_state, key=lambda group: order[group.key[0]])
        ]

    def evidence(self) -> dict[str, float]:
        """The share of the GPU time that had each kind of evidence."""
        rows = self._ask("SELECT evidence, sum(ms) FROM burn GROUP BY evidence")
        whole = sum(int(ms) for _, ms in rows)
        return {
            name: round(sum(int(ms) for bits, ms in rows if bits & bit) / whole, 4) if whole else 0.0
            for name, bit in EVIDENCE.items()
        }

    def timeline(self, price_usd_micro: int | None) -> dict[str, Any]:
        """Time buckets by state. The buckets of a state add up to its total. Unpriced time has no money."""
        bucket_ms = bucket_length_ms(self._window, MAX_BUCKETS)
        requested = _TIMELINE.format(
            bucket_ms=bucket_ms,
            offset_ms=_offset_ms(self._window, self._zone),
            price=price_of(price_usd_micro),
            from_ms=self._window.from_ms,
            to_ms=self._window.to_ms,
            ledger=open_minutes(self._store, *self._window),
        )
        groups = [
            Sum((bucket, state), int(ms), int(ms_price), int(unpriced))
            for bucket, state, ms, ms_price, unpriced in self._ask(requested)
        ]
        micro = divided(groups, 1, self._micro)
        rows: dict[int, dict[str, Any]] = {}
        for group in groups:
            bucket, state = group.key
            empty = {"from": iso(bucket, self._zone), "from_ms": bucket, "gpu_ms": {}, "usd_micro": None}
            row = rows.setdefault(bucket, empty)
            row["gpu_ms"][state] = group.gpu_ms
            if (amount := micro[group.key]) is not None:
                row["usd_micro"] = {**(row["usd_micro"] or {}), state: amount}
        return {"bucket_ms": bucket_ms, "rows": list(rows.values())}

    def teams(self) -> list[dict[str, Any]]:
        """The cost and the waste of each team, most expensive first."""
        teams: dict[str, list[Sum]] = defaultdict(list)
        for group in self.sums("team", "state"):
            teams[group.key[0]].append(group)
        wholes = [added((team,), groups) for team, groups in teams.items()]
        wastes = [added((team,), wasted(groups)) for team, groups in teams.items()]
        rows = [
            {"team": whole.key[0]} | with_waste(whole, micro, waste, waste_micro)
            for whole, waste, micro, waste_micro in zip(wholes, wastes, rounded(wholes), rounded(wastes), strict=True)
        ]
        return sorted(rows, key=lambda row: (-(row["usd_micro"] or 0), -row["gpu_ms"]))

    def experiments(self, teams: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The cost of each experiment of each team.

        The experiments of a team add up to it; unallocated time has none.
        """
        states: dict[tuple[str, str | None], list[Sum]] = defaultdict(list)
        for group in self.sums("team", "experiment", "state"):
            states[group.key[:2]].append(group)
        wholes = [added(key, groups) for key, groups in states.items()]
        wastes = [added(key, wasted(groups)) for key, groups in states.items()]
        micro = divided(wholes, 0, {row["team"]: row["usd_micro"] for row in teams})
        waste_micro = divided(wastes, 0, {row["team"]: row["waste_usd_micro"] for row in teams})
        rows = [
            {"team": whole.key[0], "experiment": whole.key[1]}
            | with_waste(whole, micro[whole.key], waste, waste_micro[whole.key])
            | {
                "train_gpu_ms": sum(g.gpu_ms for g in states[whole.key] if g.key[2] == "train"),
                "held_gpu_ms": 0 if whole.key == UNALLOCATED else whole.gpu_ms,
            }
            for whole, waste in zip(wholes, wastes, strict=True)
        ]
        return sorted(rows, key=lambda row: (-(row["usd_micro"] or 0), -row["gpu_ms"], str(row["experiment"])))

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        return self._store.connection.execute(query).fetchall()


def divided(groups: Sequence[Sum], place: int, wholes: dict[Any, int | None]) -> dict[tuple[Any, ...], int | None]:
    """Micro-dollars of groups, such that groups with the same key part add up to the given whole."""
    parts: dict[Any, list[Sum]] = defaultdict(list)
    for group in groups:
        parts[group.key[place]].append(group)
    found: dict[tuple[Any, ...], int | None] = {}
    for name, of_one in parts.items():
        money = largest_remainder([group.ms_price for group in of_one], wholes[name] or 0)
        for group, micro in zip(of_one, money, strict=True):
            found[group.key] = None if group.unpriced_gpu_ms == group.gpu_ms else micro
    return found


def wasted(groups: Iterable[Sum]) -> list[Sum]:
    """The groups whose state, the last part of their key, is waste."""
    return [group for group in groups if STATE[group.key[-1]].family == "waste"]


def with_waste(whole: Sum, micro: int | None, waste: Sum, waste_micro: int | None) -> dict[str, Any]:
    """The amounts of a row and its waste."""
    lost = None if micro is None else (waste_micro or 0)
    return amounts(whole, micro) | {
        "unpriced_gpu_ms": whole.unpriced_gpu_ms,
        "waste_gpu_ms": waste.gpu_ms,
        "waste_usd_micro": lost,
        "waste_usd": None if lost is None else usd(lost),
    }


def _offset_ms(window: TimeRange, zone: tzinfo) -> int:
    """The reader's UTC offset at the start of the time range, so that long buckets start with local days and hours."""
    ahead = datetime.fromtimestamp(window.from_ms / 1000, zone).utcoffset()
    return round(ahead.total_seconds() * 1000) if ahead else 0


def _rate(store: StoreReader, window: TimeRange, zone: tzinfo, price_usd_micro: int | None) -> dict[str, Any]:
    """The cost per hour and the number of GPUs, over the newest accounted minutes."""
    newest_ms = store.newest_ms(["ledger_row"], window.to_ms - 1)
    to_ms = max(window.from_ms, window.from_ms if newest_ms is None else newest_ms + MS_PER_MINUTE)
    from_ms = max(window.from_ms, to_ms - RATE_MS)
    newest = open_minutes(store, from_ms, to_ms)
    price = price_of(price_usd_micro)
    rows = store.connection.execute(
        f"SELECT state, held, sum(ms), coalesce(sum(ms * {price}::HUGEINT), 0), "
        f"coalesce(sum(ms) FILTER (WHERE {price} IS NULL), 0) "
        f"FROM {newest} GROUP BY ALL"
    ).fetchall()
    groups = [Sum((held, state), int(ms), int(price), int(unpriced)) for state, held, ms, price, unpriced in rows]
    whole, waste = added((), groups), added((), wasted(groups))
    length_ms = max(to_ms - from_ms, 1)
    priced = whole.unpriced_gpu_ms < whole.gpu_ms
    micro = (2 * whole.ms_price + length_ms) // (2 * length_ms) if priced else None
    waste_micro = waste.ms_price // length_ms if priced else None
    return {
        "from": iso(from_ms, zone),
        "to": iso(to_ms, zone),
        "usd_micro_per_hour": micro,
        "usd_per_hour": None if micro is None else usd(micro),
        "wasted_usd_micro_per_hour": waste_micro,
        "wasted_usd_per_hour": None if waste_micro is None else usd(waste_micro),
        "held_gpus": round(sum(group.gpu_ms for group in groups if group.key[0]) / length_ms, 3),
        "gpus": round(whole.gpu_ms / length_ms, 3),
    }
