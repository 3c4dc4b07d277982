"""The results of the accounting rules for frozen facts: tests/data/ledger.

    python tools/ledger_results.py            record the results, after ACCOUNT_RULES was raised
    python tools/ledger_results.py --facts    generate the facts again, too: for new kinds of records or new rules

tests/account/build/test_rules.py compares the results of today's rules with the recorded ones.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from pyarrow import parquet

from pyrometer.account.build import ledger, sql
from pyrometer.account.build.chunk_inputs import MEASUREMENTS
from pyrometer.account.build.rules import ACCOUNT_RULES
from pyrometer.model.columns import SCHEMAS, derived_kinds
from pyrometer.model.records import Price
from pyrometer.model.settings import Settings
from pyrometer.store import Store

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "ledger"
RESULTS = FOLDER / "results.json"
RESULT_KINDS = ("ledger_row", "energy", *sql.SUMMED, "restatement")
SCENARIOS = ("histories", "night")
HISTORIES = 80
EVER_MS = 4_000_000_000_000


def results(scenario: str) -> dict[str, Any]:
    """The results of today's rules for a scenario: GPU-milliseconds by state, and a digest of every row."""
    with _store() as store, mock.patch.object(ledger, "SUMMED_SLOT_MINUTES", 0):
        for path in sorted((FOLDER / scenario).glob("*.parquet")):
            store.append_tables({path.stem: parquet.read_table(path)})
        ledger.build(store, Settings(), now_ms=EVER_MS)
        store.expose_all(RESULT_KINDS)
        states = store.connection.execute(
            "SELECT state, sum(ms)::BIGINT FROM ledger_row GROUP BY state ORDER BY state"
        ).fetchall()
        return {"states": dict(states), "rows": {kind: _digest(store, kind) for kind in RESULT_KINDS}}


def record() -> None:
    """Records the results of today's rules."""
    found = {scenario: results(scenario) for scenario in SCENARIOS}
    RESULTS.write_text(json.dumps({"rules": ACCOUNT_RULES, "results": found}, indent=1, sort_keys=True) + "\n")


def make_facts() -> None:
    """Generates random histories with all kinds of records, and a simulated night."""
    from pyrometer.simulate.night import simulate

    sys.path.append(str(FOLDER.parents[2]))
    from tests.support.histories import HistoryMaker, with_prefix

    histories = [HistoryMaker(random.Random(f"rules {seed}")).history() for seed in range(HISTORIES)]
    with _store() as store:
        records = [
            with_prefix(f"{number}/", one) for number, history in enumerate(histories) for one in history.records
        ]
        store.append(*([one for one in records if type(one) is kind] for kind in {type(one) for one in records}))
        _freeze(store, "histories")
    with _store() as store:
        simulate(store, "overnight", seed=11, gpus=80, hours=4)
        _freeze(store, "night")


def _freeze(store: Store, scenario: str) -> None:
    store.append([Price(1_700_000_000_000, 2_500_000, 0)])  # instead of list prices, which change
    into = FOLDER / scenario
    into.mkdir(parents=True, exist_ok=True)
    for kind in (*ledger.OBJECTS, *MEASUREMENTS):
        if kind not in derived_kinds() and store.has(kind):
            store.expose_all([kind])
            rows = store.connection.sql(f"FROM {kind} ORDER BY ALL").to_arrow_table()
            parquet.write_table(rows, into / f"{kind}.parquet", compression="zstd")


@contextmanager
def _store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder, Store(folder, create=True) as store:
        yield store


def _digest(store: Store, kind: str) -> str:
    columns = ", ".join(SCHEMAS[kind].column_names)
    rows = store.connection.execute(f"SELECT {columns} FROM {kind} ORDER BY ALL").fetchall()
    return hashlib.sha256("\n".join(map(repr, rows)).encode()).hexdigest()


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--facts"]):
        raise SystemExit(__doc__)
    if sys.argv[1:]:
        make_facts()
    record()
