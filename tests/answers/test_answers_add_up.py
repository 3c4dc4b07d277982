"""What holds for the answers behind the web page, whatever the records say."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import UTC
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pyrometer.account.closing.charges import charges
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.burn import burn
from pyrometer.answers.fleet.cluster_map import cluster
from pyrometer.export.focus import COLUMNS, focus_table
from pyrometer.model.records import LedgerRow
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.store import Store
from tests.support.histories import History, account, folder, law, rows_of

ZONES = (UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kathmandu"))


@pytest.mark.heavy
@law(3)
def test_timelines_experiments_and_cells_add_up(history: History) -> None:
    with folder() as store:
        store.append(history.records)
        covered = account(store, history.now_ms)
        if covered is None:
            return
        rows = rows_of(store)
        chance = random.Random(len(rows))
        minutes = range(covered.from_ms, covered.end_ms + 1, MS_PER_MINUTE)
        window = TimeRange(*sorted(chance.sample(minutes, 2))) if chance.random() < 0.5 else TimeRange(*covered[:2])
        _burn(store, window, [row for row in rows if window.from_ms <= row.minute_ms < window.to_ms])
        at_ms = chance.choice([row.minute_ms for row in rows])
        _cells(store, TimeRange(*covered[:2]), at_ms, [row for row in rows if row.minute_ms == at_ms])


def _burn(store: Store, window: TimeRange, rows: list[LedgerRow]) -> None:
    answer = burn(store, window, Settings(), zone=ZONES[len(rows) % len(ZONES)])
    timeline, total = answer["timeline"], answer["total"]
    assert total["gpu_ms"] == sum(row.ms for row in rows)
    for state in answer["states"]:
        name = state["state"]
        assert sum(bucket["gpu_ms"].get(name, 0) for bucket in timeline["rows"]) == state["gpu_ms"]
        money = [(bucket["usd_micro"] or {}).get(name, 0) for bucket in timeline["rows"]]
        assert sum(money) == (state["usd_micro"] or 0)
    _one_bucket_after_the_other(timeline, window)
    for amount in ("gpu_ms", "usd_micro", "unpriced_gpu_ms", "waste_gpu_ms", "waste_usd_micro"):
        of_team = Counter({row["team"]: row[amount] or 0 for row in answer["teams"]})
        of_experiments: Counter[str] = Counter()
        for row in answer["experiments"]:
            of_experiments[row["team"]] += row[amount] or 0
        assert of_experiments == of_team
    assert sum(row["usd_micro"] or 0 for row in answer["experiments"]) == (total["usd_micro"] or 0)
    assert sum(row["held_gpu_ms"] for row in answer["experiments"]) == sum(row.ms for row in rows if row.pod_uid)
    assert 0 <= answer["rate"]["held_gpus"] <= answer["rate"]["gpus"]
    charged = charges(store, window, zone=ZONES[len(rows) % len(ZONES)])
    assert {name: charged["total"][name] for name in charged["total"]} == {n: total[n] for n in charged["total"]}
    _, *table = focus_table(charged)
    billed = [Decimal(str(row[COLUMNS.index("BilledCost")])) for row in table]
    assert sum(billed) * 1_000_000 == (total["usd_micro"] or 0)


def _one_bucket_after_the_other(timeline: dict[str, Any], window: TimeRange) -> None:
    begins = [row["from_ms"] for row in timeline["rows"]]
    assert begins == sorted(set(begins))
    assert all((begin - begins[0]) % timeline["bucket_ms"] == 0 for begin in begins)
    assert all(window.from_ms - timeline["bucket_ms"] < begin < window.to_ms for begin in begins)


def _cells(store: Store, window: TimeRange, at_ms: int, rows: list[LedgerRow]) -> None:
    answer = cluster(store, window, zone=UTC, at_ms=at_ms)
    assert answer["counts"] == _by_state(rows)
    nodes = [node for pool in answer["pools"] for node in pool["nodes"]]
    uids = dict(store.connection.execute("SELECT node, node_uid FROM node_name").fetchall())
    cells = [(uids.get(node["node"], node["node"]), *cell) for node in nodes for cell in node["cells"]]
    parts: dict[tuple[str, int], Counter[tuple[str, bool]]] = defaultdict(Counter)
    for row in rows:
        parts[row.node_uid, row.slot_index][row.state, row.pod_uid is None] += row.ms
    assert {(node, slot) for node, slot, *_ in cells} == set(parts)
    assert len(cells) == len(parts)
    for node, slot, state, holder, share in cells:
        of_slot = parts[node, slot]
        assert 0 < share <= round(1000 * of_slot[answer["states"][state], holder is None] / of_slot.total())
    assert {holder for *_, holder, _ in cells if holder is not None} == set(range(len(answer["holders"])))
    assert answer["queue_total"] == len(answer["queue"])


def _by_state(rows: list[LedgerRow]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found[row.state] += row.ms
    return found
