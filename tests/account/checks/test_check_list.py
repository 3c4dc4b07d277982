"""Every invariant that `pyrometer check` verifies: a violation is reported, and repaired where possible."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyrometer.account.checks import check_list
from pyrometer.account.checks.check_list import derived_problems, problems
from pyrometer.account.checks.repair import mend
from pyrometer.model.records import Finding, Restatement
from pyrometer.serve.ingest.spooled_bodies import unreadable_bodies
from pyrometer.store import Store
from pyrometer.store.catalog import Part
from tests.support.histories import BASE, account, at, hold, node, pod, samples, until, workload


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hour of two GPUs, one of which is held and measured, sealed."""
    folder = tmp_path_factory.mktemp("made") / "data"
    with Store(folder, create=True) as store:
        finding = Finding(at(50), "f1", "idle_held", "w", at(10), at(40), at(12), gpu_ms=1_000_000)
        restated = Restatement(at(50), "r", 1, "n0", 0, at(3), at(4), "hang")
        held = [pod("p", workload_uid="w", node_uid="n0"), workload("w"), hold("p")]
        store.append(
            [node(BASE, 2)],
            [until(at(60), count=2)],
            held[:1],
            held[1:2],
            held[2:],
            samples("busy", BASE, at(60), 60_000),
            [finding],
            [restated],
            producer="watch",
            sequence=7,
        )
        account(store)
        store.seal()
        account(store)
        assert found(store) == []
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Iterator[Store]:
    with Store(shutil.copytree(made, tmp_path / "data")) as store:
        yield store


def found(store: Store) -> list[str]:
    """As the command does: the ledger against the facts only where the files are well."""
    wrong = [*problems(store), *unreadable_bodies(store.folder)] or list(derived_problems(store))
    return [problem.text for problem in wrong]


def mended(store: Store) -> list[str]:
    wrong = [*problems(store), *unreadable_bodies(store.folder)] or list(derived_problems(store))
    done = list(mend(store, wrong))
    account(store)
    return done


def rewrite(store: Store, kind: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Changes a part, and lists it as it is then: nothing but the rows is wrong."""
    part = store.parts(kind)[0]
    path = store.folder / part.path
    table = change(pq.read_table(path))
    pq.write_table(table, path)
    times = table.column("minute_ms" if kind == "ledger_row" else "time_ms").to_pylist()
    listed = part._replace(
        bytes=path.stat().st_size, row_count=table.num_rows, newest_ms=max(times), columns=",".join(table.column_names)
    )
    store.relist(part, listed)


def with_values(column: str, value: object, rows: int = 1) -> Callable[[pa.Table], pa.Table]:
    """Sets a column of the first rows."""

    def change(table: pa.Table) -> pa.Table:
        values = [value] * rows + table.column(column).to_pylist()[rows:]
        index = table.column_names.index(column)
        return table.set_column(index, column, pa.array(values, table.schema.field(column).type))

    return change


def listed(kind: str = "gpu_sample", /, **changes: object) -> Callable[[Store], None]:
    """Lists a part as something else."""

    def change(store: Store) -> None:
        part: Part = store.parts(kind)[0]
        store.relist(part, part._replace(**changes))

    return change


def sql(statement: str) -> Callable[[Store], None]:
    def change(store: Store) -> None:
        store.connection.execute(statement)
        store._parts = store._hot = None

    return change


def of(kind: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Store], None]:
    return lambda store: rewrite(store, kind, change)


def file(name: str, body: bytes) -> Callable[[Store], None]:
    def change(store: Store) -> None:
        path = store.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    return change


def drop(kind: str) -> Callable[[Store], None]:
    return lambda store: store.drop_parts(store.parts(kind))


# The violation, its message, and whether it can be repaired.
BROKEN: dict[str, tuple[Callable[[Store], None], str, bool]] = {
    "bytes": (listed(bytes=7), r"has [\d,]+ bytes, 7 are listed", True),
    "rows": (listed(row_count=7), "has 60 rows, 7 are listed", True),
    "newest": (listed(newest_ms=7), "has its newest row at", True),
    "columns": (listed(columns="time_ms,node_uid"), "has other columns than are listed: ", True),
    "time": (listed(from_ms=BASE + 3_600_000, to_ms=BASE + 7_200_000), "has rows outside its time", False),
    "order": (of("gpu_sample", lambda table: table.take(list(range(59, -1, -1)))), "is not sorted: 59 rows", True),
    "key": (of("gpu_sample", lambda table: table.take([0, *range(60)])), "1 gpu_sample rows state what another", True),
    "negative": (of("ledger_row", with_values("ms", -1)), "1 rows are negative", True),
    "state": (of("ledger_row", with_values("state", "asleep")), "1 rows are in a state that does not exist", True),
    "evidence": (of("ledger_row", with_values("evidence", 9)), "1 rows have evidence that does not exist", True),
    "price": (of("ledger_row", with_values("usd_micro_per_hour", -1)), "1 rows have a price below zero", True),
    "short minute": (of("ledger_row", with_values("ms", 59_999)), "1 slot-minutes of nodes do not have", True),
    "missing minute": (of("ledger_row", lambda table: table.slice(1)), r"1 slots of nodes were there for 3,600", True),
    "energy below zero": (of("energy", with_values("energy_mj", -1)), "1 rows are below zero", True),
    "energy beyond a device": (of("energy", with_values("energy_mj", 10**13)), "drawn more than a device can", True),
    "energy beyond time": (of("energy", with_values("ms", 900_001)), "longer than a quarter of an hour", True),
    "energy gone": (drop("energy"), "has no energy of the same build", True),
    "carry gone": (drop("carry"), "has no carry", True),
    "no digest": (listed("ledger_row", digest=None), "has no digest of its inputs", True),
    "manifest": (file("manifest.json", b"{}"), "manifest.json does not list what the catalog lists", True),
    "hot table": (sql("CREATE TABLE hot_pod_0123 (x INT)"), "The hot table hot_pod_0123 is not listed", False),
    "mark": (sql("UPDATE marks SET sequence = -3"), "The mark of watch is -3", True),
    "restatement": (of("restatement", with_values("state", "asleep")), "1 restatements have an unknown state", False),
    "cause": (of("finding", with_values("cause", "gremlins")), "1 findings have an unknown cause", False),
    "claim": (of("finding", with_values("gpu_ms", 10**12)), "Finding f1 claims 1,000,000,000,000 ms; all", False),
    "body": (file("inbox/00000000000000000001", b"garbage"), "inbox/00000000000000000001 cannot be read", True),
    "refused": (file("inbox/otlp/1.logs.json.gz.refused", b"x"), "could not be read when it was to be stored", True),
}


QUICK = ("order", "mark", "manifest", "bytes", "short minute", "body")  # the ledger of others is built again
MENDED = [what if what in QUICK else pytest.param(what, marks=pytest.mark.heavy) for what in BROKEN if BROKEN[what][2]]


@pytest.mark.parametrize("what", BROKEN)
def test_check_reports_each_violation(store: Store, what: str) -> None:
    break_it, message, _ = BROKEN[what]
    break_it(store)
    texts = found(store)
    assert [text for text in texts if re.search(message, text)], texts


@pytest.mark.parametrize("what", MENDED)
def test_repair_fixes_each_violation(store: Store, what: str) -> None:
    break_it, _, _ = BROKEN[what]
    break_it(store)
    assert mended(store)
    assert found(store) == []


def test_check_reports_hot_rows_outside_the_time_of_their_table(store: Store) -> None:
    store.append([node(at(61))])
    store.connection.execute(f"UPDATE {store.hot_tables('node')[0].name} SET time_ms = time_ms + 86400000")
    assert found(store) == ["1 hot node rows are outside the time of their table."]


def test_repair_writes_a_fact_in_two_parts_once(store: Store) -> None:
    part = store.parts("gpu_sample")[0]
    other = part._replace(path=part.path.replace(".parquet", "-2.parquet"))
    shutil.copy(store.folder / part.path, store.folder / other.path)
    store.connection.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", list(other))
    store.relist(part, part)  # the manifest knows it too
    assert found(store) == [f"{other.path}: 60 gpu_sample rows state what another one states."]
    assert mended(store)
    assert found(store) == []
    assert [part.row_count for part in store.parts("gpu_sample")] == [60]


def test_every_check_has_a_violation_here() -> None:
    checks = [*check_list.PART_CHECKS, *check_list.CATALOG_CHECKS, *check_list.ROW_CHECKS, *check_list.DERIVED_CHECKS]
    assert len(checks) == len(set(checks))
    named = {function.__name__ for function in checks}
    assert named == {
        "as_listed",
        "columns",
        "order",
        "keys",
        "laws",
        "energy",
        "sums",
        "overlaps",
        "manifest",
        "hot_tables",
        "marks",
        "lives",
        "restatements",
        "findings",
        "made_together",
        "capacity",
    }  # one that is added is broken above


def test_check_reports_overlapping_ledger_parts(store: Store) -> None:
    part = store.parts("ledger_row")[0]
    store.relist(part, part._replace(from_ms=part.from_ms))
    other = part._replace(path=part.path.replace(".parquet", "-2.parquet"))
    shutil.copy(store.folder / part.path, store.folder / other.path)
    store.connection.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", list(other))
    store.relist(part, part)
    assert any("cover the same hours" in text for text in found(store))
    assert mended(store)
    assert found(store) == []
