"""Small histories of clusters: builders of single records, the ledger of a list of them, and arbitrary histories."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pyrometer.account.build.ledger import LedgerCoverage, build
from pyrometer.model import events
from pyrometer.model.columns import schema_of
from pyrometer.model.records import (
    Allocation,
    Energy,
    Event,
    GpuSample,
    LedgerRow,
    Node,
    Pod,
    Price,
    Run,
    Slot,
    StepWindow,
    Workload,
)
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND, SHARE_WHOLE
from pyrometer.store import Store
from tests.support.effort import DETERMINISTIC, EFFORT

BASE = 1_790_000_000_000 // MS_PER_HOUR * MS_PER_HOUR
HOURS = 3
AFTER_END_MS = BASE + 30 * MS_PER_HOUR  # a "now" after the end of all histories
ONE_CHUNK = 10**9
H100 = "NVIDIA-H100-80GB-HBM3"  # near idle up to 152 W; the public list knows its price
UNLISTED = "Abacus-1"  # no public price; near idle up to 150 W

MEMORY = Path("/dev/shm")

# -- one record each ----------------------------------------------------------------------------------------------


def at(minutes: float, seconds: float = 0) -> int:
    """A time after the start of all histories, which is a full hour."""
    return BASE + round(minutes * MS_PER_MINUTE + seconds * MS_PER_SECOND)


def node(time_ms: int = BASE, count: int = 1, uid: str = "n0", **more: Any) -> Node:
    """An observation of a node, by default with H100 GPUs."""
    return Node(time_ms, "prod", uid, uid, count, **{"gpu_model": H100, **more})


def until(time_ms: int, uid: str = "n0", count: int = 1) -> Node:
    """Another observation of the node, so that the accounted time ends with this minute."""
    return node(time_ms - 1, count, uid)


def pod(uid: str = "p", *, started: int | None = BASE, ended: int | None = None, **more: Any) -> Pod:
    """A pod, by default running since the start."""
    phase = more.pop("phase", "Running" if ended is None else "Failed")
    seen = more.pop("time_ms", BASE if ended is None else ended)
    return Pod(seen, "prod", uid, "research", uid, phase, started_ms=started, ended_ms=ended, **more)


def workload(uid: str = "w", **more: Any) -> Workload:
    """A workload."""
    return Workload(more.pop("time_ms", BASE), "prod", uid, "PyTorchJob", "research", uid, **more)


def hold(pod_uid: str = "p", from_ms: int = BASE, to_ms: int | None = None, **more: Any) -> Allocation:
    """A hold on a whole slot, by default on the first slot of node n0."""
    return Allocation(
        more.pop("time_ms", from_ms),
        pod_uid,
        more.pop("node_uid", "n0"),
        more.pop("slot", 0),
        from_ms,
        to_ms,
        more.pop("share", SHARE_WHOLE),
        **more,
    )


SAMPLE_KINDS: dict[str, dict[str, int | None]] = {
    "idle": {"gpu_util_permille": 0, "sm_active_permille": 0, "power_w": 70},
    "busy": {"gpu_util_permille": 990, "sm_active_permille": 800, "power_w": 600},
    "util": {"gpu_util_permille": 400},
    "spins": {"gpu_util_permille": 1000, "sm_active_permille": 0, "power_w": 130},
    "works": {"gpu_util_permille": 1000, "sm_active_permille": 0, "tensor_active_permille": 0, "power_w": 480},
    "mig_busy": {"sm_active_permille": 300},
    "mig_idle": {"sm_active_permille": 0, "dram_active_permille": 0},
    "edge": {"gpu_util_permille": 900, "sm_active_permille": 49, "power_w": 151},
    "absent": {"power_w": 300},
}


def samples(look: str, from_ms: int, to_ms: int, every_ms: int = 30_000, **more: Any) -> list[GpuSample]:
    """Samples of one kind between two times, without the end."""
    place = (more.pop("node_uid", "n0"), more.pop("slot", 0))
    return [GpuSample(t, *place, **{**SAMPLE_KINDS[look], **more}) for t in range(from_ms, to_ms, every_ms)]


def run(started: int, **more: Any) -> Run:
    """A rank of a run, by default on the first slot of n0 and in pod p."""
    where = {"pod_uid": "p", "node_uid": "n0", "slot_index": 0, **more}
    return Run(
        where.pop("time_ms", started),
        where.pop("run", "r"),
        where.pop("attempt", 1),
        where.pop("rank", 0),
        started,
        **where,
    )


def window(from_ms: int, to_ms: int, **more: Any) -> StepWindow:
    """A window of steps of that rank."""
    where = {"pod_uid": "p", "node_uid": "n0", "slot_index": 0, **more}
    return StepWindow(from_ms, to_ms, where.pop("run", "r"), where.pop("attempt", 1), where.pop("rank", 0), **where)


def windows(from_ms: int, to_ms: int, every_ms: int = 10_000, step: int = 0, **more: Any) -> list[StepWindow]:
    """Windows of ten steps each, without a gap."""
    return [
        window(t, min(t + every_ms, to_ms), first_step=step + 10 * i, steps=10, **more)
        for i, t in enumerate(range(from_ms, to_ms, every_ms))
    ]


def event(kind: str, time_ms: int, **more: Any) -> Event:
    """An event of that rank."""
    return Event(time_ms, kind, **{"run": "r", "attempt": 1, "rank": 0, **more})


# -- the ledger of records ----------------------------------------------------------------------------------------


@contextmanager
def folder() -> Iterator[Store]:
    """A new data folder, in memory if the system has a file system for that."""
    where = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="pyrometer-", dir=where) as path, Store(path, create=True) as store:
        yield store


def account(store: Store, now_ms: int = AFTER_END_MS, **options: Any) -> LedgerCoverage | None:
    """Brings the ledger of a folder up to date."""
    rules = options.pop("settings", Settings())
    return build(store, rules, now_ms=now_ms, **options)


def rows_of(store: Store) -> list[LedgerRow]:
    """All rows of a ledger, in one order."""
    store.expose_all(["ledger_row"])
    rows = store.connection.execute("FROM ledger_row").fetchall()
    return sorted((LedgerRow(*row) for row in rows), key=_order)


def energy_of(store: Store) -> list[Energy]:
    """All rows of energy, in one order."""
    store.expose_all(["energy"])
    rows = store.connection.execute("FROM energy").fetchall()
    return sorted((Energy(*row) for row in rows), key=_order)


def _order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((value is not None, value) for value in row)


class Ledger(NamedTuple):
    """The rows of a ledger."""

    rows: list[LedgerRow]
    covered: LedgerCoverage | None
    energy: list[Energy] = []  # noqa: RUF012 - never changed

    def states(self, **of: Any) -> dict[str, int]:
        """Milliseconds by state of the rows whose columns have these values."""
        found: Counter[str] = Counter()
        for row in self.rows:
            if all(getattr(row, name) == value for name, value in of.items()):
                found[row.state] += row.ms
        return dict(found)


def ledger(*records: Any, now_ms: int = AFTER_END_MS, **options: Any) -> Ledger:
    """The ledger of records, built once. Arguments may be lists of records."""
    with folder() as store:
        store.append(flat(records))
        covered = account(store, now_ms, **options)
        return Ledger(rows_of(store), covered, energy_of(store))


def flat(records: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Records and lists of records as one list."""
    listed: list[tuple[Any, ...]] = []
    for one in records:
        listed += flat(one) if isinstance(one, list) else [one]
    return listed


# -- small histories that are accounted for together ---------------------------------------------------------------

Scenario = Generator[Any, Any, None]
_SCENARIOS: dict[str, dict[str, Callable[[], Scenario]]] = {}
_ACCOUNTED: dict[str, dict[str, list[Ledger]]] = {}
UIDS = {"node_uid", "pod_uid", "workload_uid", "run"}


def scenario(test: Callable[[], Scenario]) -> Callable[[], None]:
    """A test that yields one or several lists of records and receives the ledger of each.

    Building a ledger takes half a second, even a small one. So all scenarios of a module share one ledger, each with
    its own names. Rows after the newest minute of a scenario are left out.
    """
    module, name = test.__module__, test.__name__
    _SCENARIOS.setdefault(module, {})[name] = test

    def run_scenario() -> None:
        if module not in _ACCOUNTED:
            _ACCOUNTED[module] = _account_together(_SCENARIOS[module])
        found = _ACCOUNTED[module][name]
        started = test()
        yielded = next(started)
        try:
            started.send(found[0] if isinstance(yielded, list) else found)
        except StopIteration:
            return
        raise AssertionError("a scenario yields once")

    run_scenario.__name__, run_scenario.__doc__ = name, test.__doc__
    return run_scenario


def _account_together(tests: dict[str, Callable[[], Scenario]]) -> dict[str, list[Ledger]]:
    yielded = {name: next(test()) for name, test in tests.items()}
    cases = {name: [flat(one) for one in ([of] if isinstance(of, list) else of)] for name, of in yielded.items()}
    everything = ledger(
        [
            with_prefix(f"{name}-{i}/", record)
            for name, case in cases.items()
            for i, one in enumerate(case)
            for record in one
        ]
    )
    rows: dict[str, list[LedgerRow]] = {}
    for row in everything.rows:
        prefix, node_uid = row.node_uid.split("/")
        pod_uid = row.pod_uid and row.pod_uid.split("/")[1]
        rows.setdefault(prefix, []).append(row._replace(node_uid=node_uid, pod_uid=pod_uid))
    energy: dict[str, list[Energy]] = {}
    for drawn in everything.energy:
        prefix, node_uid = drawn.node_uid.split("/")
        pod_uid = drawn.pod_uid and drawn.pod_uid.split("/")[1]
        energy.setdefault(prefix, []).append(drawn._replace(node_uid=node_uid, pod_uid=pod_uid))
    found: dict[str, list[Ledger]] = {}
    for name, case in cases.items():
        for i, one in enumerate(case):
            end_ms = max(record.time_ms for record in one)
            mine = [row for row in rows.get(f"{name}-{i}", []) if row.minute_ms <= end_ms]
            found.setdefault(name, []).append(Ledger(mine, None, energy.get(f"{name}-{i}", [])))
    return found


def with_prefix(prefix: str, record: Any) -> Any:
    """A record whose names have a prefix."""
    uids = {
        name: prefix + getattr(record, name) for name in UIDS & set(record._fields) if getattr(record, name) is not None
    }
    return record._replace(**uids)


# -- arbitrary histories ------------------------------------------------------------------------------------------


class History(NamedTuple):
    """Records of a few hours without contradictions, and the time at which they are read."""

    records: tuple[Any, ...]
    now_ms: int = AFTER_END_MS

    def __repr__(self) -> str:
        return f"History({len(self.records)} records, now_ms={self.now_ms})"


def histories(salt: str = "") -> st.SearchStrategy[History]:
    """A few hours of a small cluster, with everything that can go wrong in its records.

    One number determines one history, so that every example is another cluster. Drawing each value would give many
    similar or nearly empty histories. `shrink` makes a failing one small, record by record.
    """
    return st.integers(0, 2**48).map(lambda seed: HistoryMaker(random.Random(f"{salt}{seed}")).history())


def shrink(history: History, fails: Callable[[History], bool]) -> History:
    """A history that still fails and needs all of its records for that."""
    records = list(history.records)
    size = len(records)
    while size:
        kept = 0
        while kept < len(records):
            fewer = records[:kept] + records[kept + size :]
            if fails(history._replace(records=tuple(fewer))):
                records = fewer
            else:
                kept += size
        size //= 2
    return history._replace(records=tuple(records))


def law(examples: int) -> Callable[[Callable[[History], None]], Callable[[], None]]:
    """A test of a law about every history: the same examples in every run, and a failing one as small as possible.

    `make test-all` tests more of them (PYROMETER_EXAMPLES). Above its number, every run draws other examples.
    """

    def decorate(holds: Callable[[History], None]) -> Callable[[], None]:
        @settings(
            max_examples=examples * EFFORT,
            derandomize=DETERMINISTIC,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
        )
        @given(histories(holds.__name__))
        def test(history: History) -> None:
            try:
                holds(history)
            except Exception as error:
                kind = type(error)
                small = shrink(history, lambda fewer: _raises(holds, fewer, kind))
                lines = "\n".join(f"    {record}" for record in small.records)
                message = f"now_ms={small.now_ms}, {len(small.records)} records:\n{lines}"
                try:
                    holds(small)
                except Exception as again:
                    again.add_note(message)
                    raise
                raise

        test.__name__ = holds.__name__
        test.__doc__ = holds.__doc__
        return test

    return decorate


def _raises(holds: Callable[[History], None], history: History, kind: type[Exception]) -> bool:
    try:
        holds(history)
    except kind:
        return True
    except Exception:
        return False
    return False


def distinct(records: Iterable[Any]) -> tuple[Any, ...]:
    """The first record of each fact. Of two contradicting records, the order of arrival decides."""
    found: dict[Any, Any] = {}
    for record in records:
        schema = schema_of(type(record))
        found.setdefault((schema.name, *(getattr(record, name) for name in schema.key)), record)
    return tuple(found.values())


EVENT_KINDS = tuple(kind for pair in events.RESTATING for kind in (pair.opens, pair.closes))
MINUTE = MS_PER_MINUTE


class HistoryMaker:
    """Makes one history from random numbers."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.records: list[Any] = []
        self.places: list[tuple[str, int]] = [("nowhere", 0)]
        self.holds: list[Allocation] = []
        self.ranks: list[Run] = []

    def history(self) -> History:
        """The whole history."""
        for uid in self.some("n0", "n1", least=1):
            self.node(uid)
        if self.rarely():
            self.life("life")
        for _ in range(self.one(0, 0, 1, 2)):
            self.records.append(Slot(self.moment(), *self.one(*self.places), healthy=self.rarely(), reason="XID 79"))
        for uid in ("w0", "w1"):
            self.workload(uid)
        for number in range(self.one(1, 3, 5, 7)):
            self.pod(f"p{number}")
        for on in self.holds:
            if not self.rarely():
                self.samples((on.node_uid, on.slot_index), self.one(on.instance, on.instance, -1), on.from_ms)
        if self.rarely():
            self.samples(self.one(*self.places), self.one(-1, 0), self.moment())
        for name in self.some("r0", "r1", "r2"):
            self.run(name)
        for _ in range(self.one(0, 1, 2, 4) if self.ranks else 0):
            self.event()
        for _ in range(self.one(0, 1, 2, 4)):
            self.price()
        now_ms = self.one(AFTER_END_MS, AFTER_END_MS, AFTER_END_MS, self.moment())
        return History(distinct(record for record in self.records if record.time_ms >= BASE), now_ms)

    # -- chance

    def one(self, *values: Any) -> Any:
        return self.chance.choice(values)

    def some(self, *values: str, least: int = 0) -> list[str]:
        return self.chance.sample(values, self.chance.randint(least, len(values)))

    def rarely(self) -> bool:
        return self.chance.random() < 0.2

    def rest(self) -> int:
        return self.one(0, 0, 1, 12_345, 30_000, 59_999)

    def moment(self) -> int:
        minute = self.one(self.chance.randrange(60 * HOURS), self.one(0, 0, 1, 45, 59, 60, 61, 118, 120))
        return BASE + minute * MINUTE + self.rest()

    def length(self) -> int:
        minutes = self.one(self.one(0, 0, 1, 2, 14, 15, 16, 31, 61, 90, 180), self.chance.randrange(120))
        return minutes * MINUTE + self.rest()

    def share(self) -> int:
        sevenths = self.chance.randint(1, 7) * SHARE_WHOLE // 7
        part = self.one(1, SHARE_WHOLE // 2, SHARE_WHOLE * 3 // 10, SHARE_WHOLE // 3, 2 * SHARE_WHOLE, sevenths)
        return self.one(SHARE_WHOLE, SHARE_WHOLE, SHARE_WHOLE, part, sevenths)

    # -- objects

    def node(self, uid: str) -> None:
        """Observed a few times, perhaps changed: fewer devices, cordoned, removed."""
        model = self.one(H100, UNLISTED, None)
        count = self.one(1, 2, 3)
        for time_ms in sorted(
            {self.one(BASE, BASE + self.rest()), *(self.moment() for _ in range(self.one(0, 1, 2, 4)))}
        ):
            self.records.append(
                Node(
                    time_ms,
                    "prod",
                    uid,
                    f"name of {uid}",
                    self.one(count, count, self.chance.randint(0, 3)),
                    gpu_model=self.one(H100, None) if self.rarely() else model,
                    pool=self.one("blue", "green", None),
                    purchase=self.one("spot", None),
                    ready=not self.rarely(),
                    schedulable=not self.rarely(),
                    present=not self.rarely(),
                )
            )
        self.places += [(uid, index) for index in range(3)]

    def life(self, uid: str) -> None:
        """A slot without a node."""
        from_ms = self.moment()
        to_ms = self.one(None, from_ms + self.length())
        for time_ms in {self.moment(), self.moment()}:
            healthy = not self.rarely()
            self.records.append(
                Slot(time_ms, uid, 0, gpu_model=UNLISTED, healthy=healthy, from_ms=from_ms, to_ms=to_ms)
            )
        self.places.append((uid, 0))

    def workload(self, uid: str) -> None:
        self.records.append(
            workload(
                uid,
                time_ms=self.one(BASE, self.moment()),
                gang_pods=self.one(None, None, 1, 2, 3),
                serves=self.rarely(),
                team=self.one("vision", None),
                queue=self.one("fast", None),
            )
        )

    def pod(self, uid: str) -> None:
        """Observed once or twice, or never and known only from its allocations."""
        from_ms = self.moment()
        seen = Pod(
            self.one(from_ms, self.moment()),
            "prod",
            uid,
            self.one("research", "ops"),
            uid,
            self.one("Pending", "Running", "Running"),
            workload_uid=self.one("w0", "w0", "w1", None),
            attempt=self.one(1, 1, 2),
            user=self.one("ada", None),
            started_ms=self.one(None, from_ms, from_ms + 12_345, from_ms + self.length()),
        )
        if not self.rarely():
            self.records.append(seen)
        if self.one(True, False):
            ended = from_ms + self.length()
            phase = self.one("Succeeded", "Failed", "Unknown")
            self.records.append(seen._replace(time_ms=max(ended, seen.time_ms + 1), phase=phase, ended_ms=ended))
        for place in self.chance.sample(self.places, self.one(1, 1, 2, 3)):
            for begins in {from_ms, self.moment()} if self.rarely() else {self.one(from_ms, from_ms, self.moment())}:
                ends = self.one(None, None, begins + self.length(), begins + self.length(), begins, begins - 1)
                instances = {self.one(-1, -1, -1, 0)} if not self.rarely() else {0, 1}
                for instance in instances:
                    held = Allocation(begins, uid, *place, begins, ends, self.share(), instance=instance)
                    self.holds.append(held)
                    self.records.append(held)

    # -- measurements

    def samples(self, place: tuple[str, int], instance: int, begins: int) -> None:
        """Stretches of equal samples, with gaps between them."""
        time_ms = begins + self.one(0, 7, -30_000, 20_000)
        every_ms = self.one(30_000, 60_000, 74_999, 90_000)
        for _ in range(self.one(1, 2, 3, 4)):
            look = SAMPLE_KINDS[self.one("idle", "idle", "busy", self.one(*SAMPLE_KINDS))]
            times = range(time_ms, time_ms + self.length() + 1, every_ms)
            # an energy counter at 200 W that restarts now and then; some exporters have none
            counted = [None if every_ms == 74_999 else t // 5 % 1_000_003 for t in times]
            self.records += [
                GpuSample(t, *place, instance=instance, energy_j=j, **look) for t, j in zip(times, counted, strict=True)
            ]
            time_ms = times[-1] + every_ms + self.one(0, 0, 0, 1, 50_000, 20 * MINUTE)

    def run(self, name: str) -> None:
        """One or two attempts of a few ranks, each with the same steps."""
        step = 0
        for attempt in range(1, self.one(1, 2, 2) + 1):
            on = self.one(*self.holds)
            started = on.from_ms + self.one(0, 12_345, self.length())
            steps_from = started + self.one(0, 12_345, self.length())
            ended = self.one(None, None, started + self.length())
            first = Run(
                self.one(started, self.moment()),
                name,
                attempt,
                0,
                started,
                ended_ms=ended,
                first_step_ms=self.one(steps_from, steps_from, None),
                resumed_step=self.chance.randint(0, step + 1) if attempt > 1 and not self.rarely() else None,
            )
            folds = self.folds(steps_from, step)
            for rank in range(self.one(1, 1, 2, 3)):
                on = on if rank == 0 else self.one(*self.holds)
                where = {
                    "node_uid": on.node_uid,
                    "slot_index": on.slot_index,
                    "pod_uid": self.one(on.pod_uid, on.pod_uid, None),
                }
                self.ranks.append(first._replace(rank=rank, **where))
                self.records.append(self.ranks[-1])
                for fold in folds:
                    amounts = {amount: self.amount(fold["to_ms"] - fold["time_ms"]) for amount in AMOUNTS}
                    self.records.append(StepWindow(run=name, attempt=attempt, rank=rank, **where, **fold, **amounts))
            step = max((fold["first_step"] + fold["steps"] for fold in folds), default=step)

    def amount(self, length_ms: int) -> int:
        return self.one(0, 0, 0, 1, length_ms // 3, length_ms // 10, 2 * length_ms, -5)

    def folds(self, time_ms: int, step: int) -> list[dict[str, int]]:
        """The times and steps of windows: aligned, with gaps, overlapping, without steps, empty, long."""
        found = []
        length = self.one(10_000, 37_501, 5 * MINUTE)
        for _ in range(self.one(0, 2, 5, 9)):
            if self.rarely():
                length = self.one(10_000, 37_501, 5 * MINUTE, 40 * MINUTE, 90 * MINUTE, 0, -7)
            steps = self.one(0, 1, 10, 10)
            found.append({"time_ms": time_ms, "to_ms": time_ms + length, "first_step": step, "steps": steps})
            step += steps
            time_ms += max(length, 0) + self.one(0, 0, 0, 0, 999, 5_000, 20 * MINUTE, -max(length, 0) // 2)
        return found

    def event(self) -> None:
        of = self.one(*self.ranks)
        time_ms = max(BASE, self.one(of.started_ms + self.length(), self.moment()))
        self.records.append(
            Event(time_ms, self.one(*EVENT_KINDS), run=of.run, attempt=of.attempt, rank=of.rank, step=self.one(3, None))
        )

    def price(self) -> None:
        from_ms = self.one(BASE, self.moment())
        self.records.append(
            Price(
                BASE,
                self.one(0, 1, 1_000_000, 3_333_333),
                from_ms,
                self.one(None, from_ms + self.length()),
                gpu_model=self.one(H100, UNLISTED, None),
                pool=self.one("blue", None, None),
                cluster=self.one("prod", None),
                purchase=self.one("spot", None, None),
            )
        )


AMOUNTS = ("checkpoint_ms", "data_ms", "comm_ms", "evaluate_ms")
