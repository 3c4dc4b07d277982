"""Folders with a closed month, made by an earlier version: closed time stays as it is, and nothing is adjusted."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pyrometer.account.build import chunk_inputs, ledger, sql
from pyrometer.account.build.ledger import build
from pyrometer.account.build.rebuilding import rebuild_month
from pyrometer.account.build.rules import ACCOUNT_RULES, UNVERSIONED_RULES, Provenance, input_code
from pyrometer.account.closing import charge_basis
from pyrometer.account.closing.charge_basis import basis_of
from pyrometer.account.closing.closed_months import closed_until_ms, read_closed_months
from pyrometer.account.query.cost import cost
from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import month_range
from pyrometer.model.records import Allocation, Price
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE, SHARE_WHOLE
from pyrometer.store import Store
from pyrometer.store.catalog import Part

FOLDERS = Path(__file__).parents[2] / "data" / "closed"
BEGIN_MS = 1_759_255_200_000
NOW_MS = BEGIN_MS + 48 * MS_PER_HOUR
NAMES = sorted(path.stem for path in FOLDERS.glob("*.json"))
BY = ("day", "team", "node", "state")
SETTINGS = Settings()


@pytest.fixture(params=[NAMES[0], *(pytest.param(name, marks=pytest.mark.heavy) for name in NAMES[1:])])
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
    open_names(store)
    zone = read_closed_months(store.folder)[-1].zone
    window = month_range(month, zone)
    return cost(store, window, by, zone=zone, basis=basis_of(store, window, by, zone))


def amounts(rows: list[dict[str, Any]]) -> dict[Any, Any]:
    return {tuple(row[name] for name in (*BY, "adjusts")): (row["gpu_ms"], row["usd_micro"]) for row in rows}


def use_other_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that give other results: what trained now evaluates."""
    text = sql.text
    query = f"SELECT * REPLACE (if(state = 'train', 'evaluate', state) AS state) FROM ({text(sql.LEDGER)})"
    monkeypatch.setattr(sql, "text", lambda step: query if step == sql.LEDGER else text(step))
    for module in (ledger, chunk_inputs):
        monkeypatch.setattr(module, "ACCOUNT_RULES", ACCOUNT_RULES + 1)


def comment_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    text = sql.text
    monkeypatch.setattr(sql, "text", lambda step: f"-- A comment.\n{text(step)}")
    input_code.cache_clear()


@pytest.fixture(autouse=True)
def _own_code() -> Any:
    yield
    input_code.cache_clear()


def account(store: Store, settings: Settings = SETTINGS, prices: Iterable[Price] = ()) -> int:
    """Brings the ledger up to date; says how many chunks were built."""
    accounted = build(store, settings, now_ms=NOW_MS, prices=prices)
    assert accounted is not None
    return accounted.chunks_built


def states_of(store: Store, from_ms: int, to_ms: int) -> set[str]:
    store.expose_all(["ledger_row"])
    query = "SELECT DISTINCT state FROM ledger_row WHERE minute_ms >= ? AND minute_ms < ?"
    return {state for (state,) in store.connection.execute(query, [from_ms, to_ms]).fetchall()}


def test_closed_time_of_an_older_folder_is_not_rebuilt_and_nothing_is_adjusted(store: Store, name: str) -> None:
    recorded = json.loads((FOLDERS / f"{name}.json").read_text())
    before = rows_of(store)
    files = {part.path for part in parts_of(store, closed=True)}
    account(store)
    assert rows_of(store) == before
    assert files <= {part.path for part in parts_of(store, closed=True)}
    for question, month in (("closed", "2025-09"), ("next", "2025-10")):
        found = answer(store, month)
        assert amounts(found["rows"]) == amounts(recorded[question]["rows"])
        assert {row["adjusts"] for row in found["rows"]} == {None}
    for part in store.parts("ledger_row"):
        made = Provenance.parse(part.digest)
        assert made is not None
        closed = part.to_ms <= closed_until_ms(store.folder)
        assert made.rules == (UNVERSIONED_RULES if closed else ACCOUNT_RULES)
    assert account(store) == 0


def test_a_comment_in_the_rules_rebuilds_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    account(store)
    before = {part.path for part in store.parts()}
    comment_every_step(monkeypatch)
    assert account(store) == 0
    assert {part.path for part in store.parts()} == before


def test_other_rules_rebuild_open_time_only_and_adjust_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    account(store)
    cut_ms = closed_until_ms(store.folder)
    closed = rows_of(store, cut_ms)
    use_other_rules(monkeypatch)
    comment_every_step(monkeypatch)
    assert account(store) > 0
    assert rows_of(store, cut_ms) == closed
    assert "train" not in states_of(store, cut_ms, NOW_MS)
    assert "evaluate" in states_of(store, cut_ms, NOW_MS)
    assert {row["adjusts"] for row in answer(store, "2025-10")["rows"]} == {None}
    assert account(store) == 0


def test_a_setting_that_changes_leaves_closed_time_alone(store: Store) -> None:
    account(store)
    cut_ms = closed_until_ms(store.folder)
    closed = rows_of(store, cut_ms)
    patient = SETTINGS._replace(idle_gap_ms=4 * MS_PER_HOUR, hang_limit_ms=10 * MS_PER_MINUTE)
    assert account(store, patient) > 0
    assert rows_of(store, cut_ms) == closed
    assert account(store, patient) == 0
    store.append([late_holder()])  # and what comes later is still noticed
    account(store, patient)
    assert rows_of(store, cut_ms) != closed


def late_holder() -> Allocation:
    """Evidence that the job had the second GPU too while it was free in the first edition's folders."""
    from_ms = BEGIN_MS + 15 * MS_PER_MINUTE
    return Allocation(NOW_MS - MS_PER_HOUR, "pod-job", "n0", 1, from_ms, from_ms + 10 * MS_PER_MINUTE, SHARE_WHOLE)


def test_a_late_holder_of_closed_time_is_adjusted(store: Store) -> None:
    account(store)
    store.append([late_holder()])
    account(store)
    adjusted = [row for row in answer(store, "2025-10", ("team",))["rows"] if row["adjusts"] == "2025-09"]
    assert {row["team"]: row["gpu_ms"] for row in adjusted} == {"nlp": 300_000, "vision": -300_000}


def test_a_price_that_changes_with_the_version_is_adjusted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    account(store)
    use_other_rules(monkeypatch)
    comment_every_step(monkeypatch)
    account(store, prices=[Price(BEGIN_MS + 1, 5_000_000, BEGIN_MS - MS_PER_HOUR, gpu_model="NVIDIA-H100-80GB-HBM3")])
    charged = sum(row["usd_micro"] for row in answer(store, "2025-09", ("team",))["rows"])
    rows = answer(store, "2025-10", ("team",))["rows"]
    assert sum(row["usd_micro"] for row in rows if row["adjusts"]) == charged  # twice the price


def test_a_closed_month_is_rebuilt_on_request(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    account(store)
    cut_ms = closed_until_ms(store.folder)
    use_other_rules(monkeypatch)
    zone = read_closed_months(store.folder)[-1].zone
    answered = rebuild_month(store, "2025-09", zone, lambda: account(store))
    assert "train" not in states_of(store, 0, cut_ms)
    changed = {row["state"]: row["gpu_ms_after"] - row["gpu_ms_before"] for row in answered["states"]}
    assert changed["evaluate"] == -changed["train"] == answered["changed_gpu_ms"] > 0
    assert not answered["adjusted"]
    assert {row["adjusts"] for row in answer(store, "2025-10")["rows"]} == {None}
    assert account(store) == 0


def test_closed_charges_are_compared_with_the_ledger_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A month whose ledger was made again, and says the same, is not read by every question."""
    account(store)
    read: list[str] = []
    monkeypatch.setattr(charge_basis, "_summed", lambda *_, **__: read.append("ledger") or "")
    answer(store, "2025-10")
    assert read == []
