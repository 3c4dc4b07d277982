"""Handwritten ledgers of a few minutes per day, for laws about money over months.

Building such ledgers from records would take minutes."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from datetime import UTC, date, timedelta
from typing import Any

from pyrometer.account.build import sql
from pyrometer.account.query.time_range import midnight_ms
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Allocation, LedgerRow, Node, Pod, Workload
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, SHARE_WHOLE
from pyrometer.store import Store
from pyrometer.store.store import NewPart

TEAMS = ("vision", "nlp", "platform", "o'brien")  # one has the name that marks GPUs without a paying team
STATES = ("train", "startup", "idle_held")
PRICES = (None, 0, 1_999_999, 2_500_001, 12_000_000)
NODES = ("n0", "n1")
PODS = tuple(f"pod-{number}" for number in range(5))
FIRST = date(2026, 9, 1)
H100 = "NVIDIA-H100-80GB-HBM3"


def ms_of(day: date) -> int:
    return midnight_ms(day, UTC)


def objects(chance: random.Random, time_ms: int) -> list[Any]:
    """The objects that hold GPUs, as recorded at one time."""
    found: list[Any] = [Node(time_ms, "here", uid, f"node-{uid}", 8, "H100", pool=f"pool-{uid}") for uid in NODES]
    for uid in PODS:
        team = chance.choice(TEAMS)
        found.append(Workload(time_ms, "here", f"job-{uid}", "Job", "ml", uid, team=team, experiment=f"e-{uid[-1:]}"))
        found.append(Pod(time_ms, "here", uid, "ml", uid, "Running", f"job-{uid}", user=chance.choice(("ann", None))))
    return found


def random_day(chance: random.Random, day: date, rows: int = 6) -> list[LedgerRow]:
    """Ledger rows of a day, of held and of free GPUs."""
    found = {}
    for _ in range(rows):
        pod = chance.choice((*PODS, None, None))
        state = chance.choice(STATES if pod else ("free", "unhealthy"))
        minute = chance.choice((0, 7, 23 * 60 + 59)) * MS_PER_MINUTE
        row = LedgerRow(
            ms_of(day) + minute,
            chance.choice(NODES),
            chance.randrange(3),
            pod,
            1,
            state,
            1,
            chance.choice(PRICES),
            chance.randint(1, 60_000),
        )
        found[row[:-1]] = row
    return list(found.values())


def write_days(store: Store, days: dict[date, list[LedgerRow]]) -> None:
    """Replaces the ledger of some days."""
    for day, rows in days.items():
        table = SCHEMAS["ledger_row"].table(rows)
        store.connection.register("written_rows", table)
        digest = hashlib.sha256(repr(rows).encode()).hexdigest()
        from_ms = ms_of(day)
        wanted = {"ledger_row": "FROM written_rows", "hour_sum": sql.text(sql.SUMMED["hour_sum"])}
        store.replace([NewPart(kind, from_ms, from_ms + MS_PER_DAY, query, digest) for kind, query in wanted.items()])
        store.connection.unregister("written_rows")


def node_records(from_ms: int, to_ms: int) -> list[Any]:
    """A node of two GPUs from one time to another."""
    seen = [Node(time_ms, "here", "n0", "node-0", 2, H100, instance_type="p5") for time_ms in (from_ms, to_ms - 1)]
    return [*seen, Node(to_ms, "here", "n0", "node-0", 2, H100, present=False)]


def job_records(team: str, pod: str, from_ms: int, to_ms: int) -> list[Any]:
    """A job of one pod that holds the first GPU of the node for a while."""
    return [
        Workload(from_ms, "here", f"w-{pod}", "Job", "ml", pod, team=team, experiment=f"e-{pod}"),
        Pod(
            to_ms,
            "here",
            pod,
            "ml",
            pod,
            "Succeeded",
            f"w-{pod}",
            node_uid="n0",
            scheduled_ms=from_ms,
            started_ms=from_ms,
            ended_ms=to_ms,
        ),
        Allocation(to_ms, pod, "n0", 0, from_ms, to_ms, SHARE_WHOLE),
    ]


def random_days(chance: random.Random, months: int = 3) -> list[date]:
    """A few days of each month, including its first and last day."""
    listed = []
    first = FIRST
    for _ in range(months):
        next_month = (first + timedelta(days=31)).replace(day=1)
        listed += [first, first + timedelta(days=chance.randrange(1, 27)), next_month - timedelta(days=1)]
        first = next_month
    return sorted(set(listed))


def gpu_ms_by_charge(answer: dict[str, Any]) -> Counter[str]:
    """GPU-milliseconds by all keys of charges, including the price, so that equal results mean equal money."""
    columns = answer["columns"]
    found: Counter[str] = Counter()
    for row in answer["rows"]:
        charge = dict(zip(columns, row, strict=True))
        named = ("day", "node", "team", "experiment", "workload", "namespace", "usd_micro_per_hour")
        found[repr([charge[name] for name in named])] += charge["gpu_ms"]
    return Counter({key: ms for key, ms in found.items() if ms})


def hours_after(day: date, hours: int = 1) -> int:
    """The time that is `hours` after the start of a day."""
    return ms_of(day) + hours * MS_PER_HOUR


def month_of(day: date) -> str:
    return f"{day:%Y-%m}"


def next_month(day: date) -> date:
    """The first day of the next month."""
    return (day.replace(day=1) + timedelta(days=31)).replace(day=1)
