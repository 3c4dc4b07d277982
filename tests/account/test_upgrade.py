"""Folders with a closed month, made by an earlier version: closed time stays as it is, and nothing is adjusted."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from pyrometer.account import ledger, rules
from pyrometer.account.books import basis_of, month_window
from pyrometer.account.closed import closed_until_ms
from pyrometer.account.cost import cost
from pyrometer.account.ledger import build
from pyrometer.account.retention import DERIVED
from pyrometer.account.rules import Provenance
from pyrometer.account.sums import Window, open_names
from pyrometer.model.records import Allocation, GpuSample, Pod, Price
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE, SHARE_WHOLE
from pyrometer.store import Store
from pyrometer.store.catalog import Part

FOLDERS = Path(__file__).parents[1] / "data" / "closed"
BEGIN_MS = 1_759_255_200_000
NOW_MS = BEGIN_MS + 48 * MS_PER_HOUR
NAMES = sorted(path.stem for path in FOLDERS.glob("*.json"))
BY = ("day", "team", "node", "state")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(name: str, tmp_path: Path) -> Any:
    with tarfile.open(FOLDERS / f"{name}.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    with Store(tmp_path / "data") as store:
        yield store


def parts_of(store: Store, closed: bool) -> list[Part]:
    cut_ms = closed_until_ms(store.folder)
    return [part for kind in ("ledger_row", "energy") for part in store.parts(kind) if (part.to_ms <= cut_ms) == closed]


def rows_of(store: Store, to_ms: int = 2**62) -> list[Any]:
    store.expose_all(["ledger_row"])
    query = f"FROM ledger_row WHERE minute_ms < {to_ms} ORDER BY ALL"
    return store.connection.execute(query).fetchall()


def answer(store: Store, month: str, by: tuple[str, ...] = BY) -> dict[str, Any]:
    """The answer of `cost --month`."""
    from pyrometer.account.closed import closed_months

    open_names(store)
    zone = closed_months(store.folder)[-1].zone
    window = month_window(month, zone)
    return cost(store, window, by, zone=zone, basis=basis_of(store, window, by, zone))


def amounts(rows: list[dict[str, Any]]) -> dict[Any, Any]:
    return {tuple(row[name] for name in (*BY, "adjusts")): (row["gpu_ms"], row["usd_micro"]) for row in rows}


def change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other accounting rules: what was training is something else now."""
    text = rules.sql.text(rules.sql.LEDGER)
    other = text.replace("state", "state", 1) if "REPLACE" in text else text
    monkeypatch.setattr(ledger, "ACCOUNT_RULES", rules.ACCOUNT_RULES + 1)
    changed = f"SELECT * REPLACE (CASE WHEN state = 'train' THEN 'evaluate' ELSE state END AS state) FROM ({other})"
    real = rules.sql.text
    monkeypatch.setattr(rules.sql, "text", lambda step: changed if step == rules.sql.LEDGER else real(step))


def test_closed_time_of_an_older_folder_is_not_rebuilt_and_nothing_is_adjusted(store: Store, name: str) -> None:
    told = json.loads((FOLDERS / f"{name}.json").read_text())
    before = rows_of(store)
    files = {part.path for part in parts_of(store, closed=True)}
    build(store, Settings(), now_ms=NOW_MS)
    assert rows_of(store) == before
    assert files <= {part.path for part in parts_of(store, closed=True)}
    for question, month in (("closed", "2025-09"), ("next", "2025-10")):
        found = answer(store, month)
        assert amounts(found["rows"]) == amounts(told[question]["rows"])
        assert {row["adjusts"] for row in found["rows"]} == {None}
    for part in store.parts("ledger_row"):
        made = Provenance.parse(part.digest)
        assert made is not None
        closed = part.to_ms <= closed_until_ms(store.folder)
        assert made.rules == (rules.UNVERSIONED_RULES if closed else rules.ACCOUNT_RULES)
    accounted = build(store, Settings(), now_ms=NOW_MS)
    assert accounted is not None
    assert accounted.chunks_built == 0
