"""Writers are killed: what they acknowledged is there once, and a change is there as a whole or not at all."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pyrometer.model.records import Event, LedgerRow
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import Store
from pyrometer.store.store import NewPart
from tests.support.effort import THOROUGH

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z
KILLS = 24 if THOROUGH else 8
EVERY = 3 if THOROUGH else 9  # of the steps of a change, which one is its last
EVENTS, METRICS = 3, 2  # rows of one batch

# Of each kind: how many batches, the last of them, and how many rows the poorest and the richest of them has.
FOUND = """
SELECT count(step), max(step), min(rows_in), max(rows_in)
FROM (
    SELECT 'event' AS kind, step, count(*) AS rows_in FROM event GROUP BY step
    UNION ALL SELECT 'metric', step, count(*) FROM metric GROUP BY step
)
RIGHT JOIN (VALUES ('event'), ('metric')) AS every(kind) USING (kind)
GROUP BY kind ORDER BY kind
"""

# Starting Python would be most of the time. So one process imports what is needed and forks every writer.
NURSERY = f"""
import itertools, json, os, signal, sys, traceback
from pathlib import Path

import pyarrow

from pyrometer.model.records import Event, Metric
from pyrometer.store import Store
from pyrometer.store.store import NewPart


def events(n):
    times = [{DAY} + (n // 9 + hour) % 5 * {MS_PER_HOUR} + n for hour in range({EVENTS})]
    return [Event(time_ms, "seen", step=n, rank=rank) for rank, time_ms in enumerate(times)]


def metrics(n):
    return [Metric({DAY} + n, "run", 1, rank, "loss", 0.5, step=n) for rank in range({METRICS})]


def write(folder, first):
    '''Says what it finds, then appends and seals until it is killed. A batch also states events of the one before.'''
    print("opening", flush=True)
    store = Store(folder, create=True)
    store.expose_all(["event", "metric"])
    found = store.connection.execute({FOUND!r}).fetchall()
    print("found", json.dumps(found), flush=True)
    for n in itertools.count(first):
        is_new = store.append(events(n) + (events(n - 1) if n else []), metrics(n), producer="writer", sequence=n)
        print("ack", n, "new" if is_new else "known", flush=True)
        if n % 3 == 2:
            store.seal(before_ms={DAY} + n % 7 * {MS_PER_HOUR})
            print("sealed", flush=True)


def change(folder, die_at, rows, new_parts, drop_before_ms):
    '''Appends, seals, replaces and drops, and dies before the step of that number. Reading is not a step.'''
    steps = itertools.count()

    def counted(does):
        def step(*values, **named):
            reads = str(values[0]).startswith("SELECT")
            if not reads and next(steps) == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return does(*values, **named)
        return step

    class Connection:
        def __init__(self, real):
            self.real = real
            self.execute = counted(real.execute)
        def __getattr__(self, name):
            return getattr(self.real, name)

    store = Store(folder)
    store.connection = Connection(store.connection)
    os.fsync, Path.replace, Path.unlink = counted(os.fsync), counted(Path.replace), counted(Path.unlink)
    store.append([Event(*row) for row in rows], producer="writer", sequence=0)
    print("appended", flush=True)
    store.seal()
    store.replace([NewPart(*part) for part in new_parts])
    print("replaced", flush=True)
    store.drop_before(drop_before_ms)
    print("finished", next(steps), flush=True)


for line in sys.stdin:
    task = json.loads(line)
    child = os.fork()
    if not child:
        print("pid", os.getpid(), flush=True)
        try:
            globals()[task.pop("do")](**task)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


class Nursery:
    """Where writers come from."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JE_ARROW_MALLOC_CONF": "background_thread:false"},  # a process with threads cannot fork
        )

    def start(self, do: str, **task: object) -> int:
        """Starts a writer; says its process id."""
        self.process.stdin.write(json.dumps({"do": do, **task}) + "\n")
        self.process.stdin.flush()
        word, pid = self.hear()
        assert word == "pid"
        return int(pid)

    def hear(self) -> list[str]:
        """The next thing that the writer says; `dead` is its last word."""
        line = self.process.stdout.readline()
        assert line, "the nursery is gone"
        return line.split(maxsplit=1)

    def last_words(self) -> list[list[str]]:
        """What it says until it is dead."""
        return list(iter(self.hear, ["dead"]))


@pytest.fixture(scope="module")
def nursery():
    made = Nursery()
    with made.process:
        yield made
        made.process.stdin.close()


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in (folder / "parts").rglob("*") if path.is_file()}


# -- anywhere -----------------------------------------------------------------------------------------------------


class Producer:
    """The other side: it knows what was acknowledged, and so what must be there."""

    def __init__(self) -> None:
        self.acked = -1
        self.present = -1  # the last batch that was found, acknowledged or not
        self.checked = 0
        self.last_word = ""
        self.sealing = False  # whether the last report of the writer was before sealing

    def take(self, word: str, rest: str = "") -> None:
        self.last_word = word
        self.sealing = False
        if word == "found":
            self.check(json.loads(rest))
        if word == "ack":
            number, answer = int(rest.split()[0]), rest.split()[1]
            assert number <= self.acked + 1
            assert answer == ("known" if number <= max(self.present, self.acked) else "new")
            self.acked = max(self.acked, number)
            self.sealing = number % 3 == 2

    def check(self, found: list) -> None:
        """Every acknowledged batch is there whole and once, and at most one more: the one in the writer's hands."""
        (batches, last, *rows), (metric_batches, metric_last, *metric_rows) = found
        assert (batches, last) == (metric_batches, metric_last)
        self.present = -1 if last is None else last
        assert batches == self.present + 1
        assert self.present in (self.acked, self.acked + 1)
        if batches:
            assert (rows, metric_rows) == ([EVENTS] * 2, [METRICS] * 2)
        self.checked += 1


def look_into(folder: Path) -> list:
    """What this process finds in the folder, after it has compared it with what other engines read."""
    with Store(folder) as store:
        store.expose_all(["event", "metric"])
        found = [list(row) for row in store.connection.execute(FOUND).fetchall()]
        parts = store.parts()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [entry["path"] for entry in manifest["parts"]] == [part.path for part in parts]
    assert files_in(folder) == {part.path for part in parts}
    for part in parts:
        times = pq.read_table(folder / part.path, columns=["time_ms"])["time_ms"].to_pylist()
        assert len(times) == part.row_count
        assert part.from_ms <= min(times) <= max(times) == part.newest_ms < part.to_ms
    return found


def leave_stray(folder: Path) -> Path | None:
    """An unlisted part: reading it would count rows twice."""
    parts = sorted((folder / "parts").rglob("*.parquet"))
    if not parts:
        return None
    stray = parts[0].with_name("23-feedfeedfeed.parquet")
    stray.write_bytes(parts[0].read_bytes())
    return stray


@pytest.mark.heavy
@pytest.mark.heavy
def test_acknowledged_batches_survive_every_kill(nursery, tmp_path):
    chance = random.Random(20251010)
    folder = tmp_path / "data"
    producer = Producer()
    killed: Counter[str] = Counter()
    for number in range(KILLS):
        # Every fifth writer is hit while it opens the folder, the others some batches later: appending, sealing.
        awaited, left = ("opening", 1) if number % 5 == 4 else ("ack", chance.randint(1, 6))
        stray = leave_stray(folder) if number % 3 == 0 else None

        lost_acks = chance.randint(0, 2)  # on their way to the producer, which then sends those batches again
        pid = nursery.start("write", folder=str(folder), first=max(0, producer.acked + 1 - lost_acks))
        while left:
            report = nursery.hear()
            assert report != ["dead"], "it ended by itself"
            producer.take(*report)
            assert not (report[0] == "found" and stray and stray.exists())
            left -= report[0] == awaited
        time.sleep(chance.uniform(0, 0.040 if awaited == "opening" else 0.020))  # waits for nothing: to hit it anywhere
        os.kill(pid, signal.SIGKILL)
        for report in nursery.last_words():
            producer.take(*report)
        killed["sealing" if producer.sealing else producer.last_word] += 1
        if number % 10 == 9:
            producer.check(look_into(folder))
    assert producer.checked >= KILLS * 4 // 5
    assert min(killed["opening"], killed["sealing"], killed["ack"]) > 0, killed

    with Store(folder) as store:
        store.seal()
    producer.check(look_into(folder))


# -- at every step ------------------------------------------------------------------------------------------------


def ledger_query(state: str, hour: int) -> str:
    columns = (DAY + hour * MS_PER_HOUR, "n", 0, None, 1, state, 1, None, 60_000)
    values = ", ".join(
        "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value) for value in columns
    )
    return f"SELECT * FROM (VALUES ({values})) AS made({', '.join(LedgerRow._fields)})"


def ledger_parts(state: str) -> list[tuple]:
    return [
        ("ledger_row", DAY + hour * MS_PER_HOUR, DAY + (hour + 1) * MS_PER_HOUR, ledger_query(state, hour), state)
        for hour in range(2)
    ]


@pytest.mark.heavy
def test_a_kill_at_any_step_leaves_a_change_complete_or_absent(nursery, tmp_path):
    hours = [DAY + hour * MS_PER_HOUR for hour in range(3)]
    sealed = [Event(hours[0], "seen", message="first"), Event(hours[1], "seen")]
    hot = [Event(hours[0] + 1, "seen"), Event(hours[2], "seen")]
    again = [Event(hours[0], "seen", message="again"), hot[1]]  # states what is known already
    fresh = [Event(hours[0] + 2, "seen"), Event(hours[2] + 2, "seen")]
    before = tmp_path / "before"
    with Store(before, create=True) as store:
        store.append(sealed)
        store.seal()
        store.append(hot)
        store.replace([NewPart(*part) for part in ledger_parts("old")])
    rows, more = {*sealed, *hot}, {*sealed, *hot, *fresh}
    kept = {row for row in more if row.time_ms >= hours[1]}
    stages = [(rows, {"old"}), (more, {"old"}), (more, {"new"}), (kept, {"new"})]

    reached = []
    finished = False
    for step in range(0, 500, EVERY):
        folder = tmp_path / str(step)
        shutil.copytree(before, folder)
        nursery.start(
            "change",
            folder=str(folder),
            die_at=step,
            rows=again + fresh,
            new_parts=ledger_parts("new"),
            drop_before_ms=hours[1],
        )
        words = [report[0] for report in nursery.last_words()]
        with Store(folder) as store:
            store.expose_all(["event", "ledger_row"])
            events = [Event(*row) for row in store.connection.execute("FROM event").fetchall()]
            states = {state for (state,) in store.connection.execute("SELECT state FROM ledger_row").fetchall()}
            assert files_in(folder) == {part.path for part in store.parts()}
        assert len(events) == len(set(events))
        reached.append(stages.index((set(events), states)))
        assert reached[-1] >= {"appended": 1, "replaced": 2, "finished": 3}.get(words[-1] if words else "", 0)
        shutil.rmtree(folder)
        if "finished" in words:
            finished = True
            break
    assert finished
    assert reached == sorted(reached)
    assert set(reached) == {0, 1, 2, 3}
    assert len(reached) > 30 // EVERY
