"""A closed month never changes, what later facts change in it is adjusted in the next one, and nothing is lost or there
twice on the way."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, date
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pyrometer.account.build.ledger import build
from pyrometer.account.build.retention import forget
from pyrometer.account.closing.charge_basis import adjustments, basis_of
from pyrometer.account.closing.charges import charges
from pyrometer.account.closing.closed_months import FOLDER, problems, read_closed_months
from pyrometer.account.closing.closing_months import ClosingError, close, closed_answer
from pyrometer.account.query.cost import cost
from pyrometer.account.query.groupings import GROUPINGS
from pyrometer.account.query.names import open_names
from pyrometer.account.query.scope import ScopeNotFoundError, only
from pyrometer.account.query.time_range import TimeRange, month_range
from pyrometer.model.records import LedgerRow, Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, usd_micro
from pyrometer.store import Store
from tests.support.effort import DETERMINISTIC, EFFORT
from tests.support.hand_ledgers import (
    FIRST,
    gpu_ms_by_charge,
    hours_after,
    job_records,
    month_of,
    ms_of,
    next_month,
    node_records,
    objects,
    random_day,
    random_days,
    write_days,
)
from tests.support.histories import folder

OCTOBER, NOVEMBER, DECEMBER = date(2026, 10, 1), date(2026, 11, 1), date(2026, 12, 1)
BERLIN = ZoneInfo("Europe/Berlin")
LATE = hours_after(date(2027, 3, 1))
EVERYTHING = TimeRange(ms_of(FIRST), LATE)


def closing(store: Store, day: date, *, now_ms: int = LATE, zone: Any = UTC) -> Any:
    return close(store, Settings(), month_of(day), zone, now_ms=now_ms, by="ann")


def charged(store: Store, window: TimeRange, zone: Any = UTC) -> dict[str, Any]:
    return charges(store, window, zone=zone, basis=basis_of(store, window, (), zone))


def month(store: Store, day: date, by: tuple[str, ...] = ("team",), **more: Any) -> dict[str, Any]:
    """The answer of `cost --month`."""
    open_names(store)
    window = month_range(month_of(day), UTC)
    return cost(store, window, by, zone=UTC, basis=basis_of(store, window, by, UTC, **more))


def frozen(store: Store) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store.folder / FOLDER).glob("*")}


@settings(max_examples=EFFORT, derandomize=DETERMINISTIC, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 2**48))
def test_charges_and_adjustments_add_up_to_the_ledger(seed: int) -> None:
    chance = random.Random(seed)
    days = random_days(chance)
    with folder() as store:
        store.append(objects(chance, ms_of(FIRST)))
        write_days(store, {day: random_day(chance, day) for day in days if chance.random() < 0.8})
        charged_before: dict[str, str] = {}
        next_to_close, kept = FIRST, {}
        for step in range(5):
            if chance.random() < 0.4 and next_to_close < date(2026, 12, 1):
                with suppress(ClosingError):  # there may be nothing in it
                    closing(store, next_to_close)
                    name = month_of(next_to_close)
                    charged_before[name], kept = json.dumps(charged(store, month_range(name, UTC))), frozen(store)
                next_to_close = next_month(next_to_close)
            elif chance.random() < 0.3:
                store.append(objects(chance, ms_of(FIRST) + step + 1))  # whose a job is turns out to be another's
            else:
                changed = chance.sample(days, 2)
                write_days(store, {day: random_day(chance, day, chance.choice((0, 4))) for day in changed})
            _nothing_is_lost_or_twice(store)
            for name, before in charged_before.items():
                assert json.dumps(charged(store, month_range(name, UTC))) == before
            assert {name: content for name, content in frozen(store).items() if name in kept} == kept
        assert list(problems(store.folder, store.connection)) == []


@pytest.mark.heavy
@settings(max_examples=2 * EFFORT, derandomize=DETERMINISTIC, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 2**48))
def test_charges_and_adjustments_add_up_with_late_records_and_new_prices(seed: int) -> None:
    """Real ledgers, around the end of October in Berlin."""
    chance = random.Random(seed)
    begin = ms_of(date(2026, 10, 31)) + 21 * MS_PER_HOUR  # two hours before November
    records: list[Any] = node_records(begin, begin + 5 * MS_PER_HOUR)
    for number in range(6):
        from_ms = begin + chance.randrange(4 * 60) * 60_000 + chance.choice((0, 1234))
        to_ms = from_ms + chance.randrange(1, 90) * 60_000
        records += job_records(chance.choice(("vision", "nlp")), f"late-{number}", from_ms, to_ms)
    chance.shuffle(records)
    books = ([], [Price(0, 2_000_001, 0)], [Price(0, 3_333_333, 0), Price(0, 1, begin + 2 * MS_PER_HOUR)])
    with folder() as store:
        charged_before: dict[str, str] = {}
        next_to_close = OCTOBER
        for _ in range(6):
            some = chance.randrange(0, 9)
            store.append(records[:some])
            records = records[some:]
            build(store, Settings(), now_ms=LATE, prices=chance.choice(books))
            if chance.random() < 0.5 and next_to_close <= NOVEMBER:
                with suppress(ClosingError):
                    closing(store, next_to_close, zone=BERLIN)
                    window = month_range(month_of(next_to_close), BERLIN)
                    charged_before[month_of(next_to_close)] = json.dumps(charged(store, window, zone=BERLIN))
                    next_to_close = next_month(next_to_close)
            _nothing_is_lost_or_twice(store, BERLIN)
            for name, before in charged_before.items():
                assert json.dumps(charged(store, month_range(name, BERLIN), zone=BERLIN)) == before


def _nothing_is_lost_or_twice(store: Store, zone: Any = UTC) -> None:
    months = read_closed_months(store.folder)
    everything: Counter[str] = Counter()
    for closed in months:
        everything.update(gpu_ms_by_charge(charged(store, TimeRange(closed.from_ms, closed.to_ms), zone)))
    end_ms = EVERYTHING.from_ms
    if months:
        first_open = month_range(month_of(next_month(date.fromisoformat(f"{months[-1].month}-01"))), zone)
        everything.update(gpu_ms_by_charge(charged(store, first_open, zone)))
        end_ms = first_open.to_ms
    everything.update(gpu_ms_by_charge(charges(store, TimeRange(end_ms, EVERYTHING.to_ms), zone=zone)))
    now = gpu_ms_by_charge(charges(store, EVERYTHING, zone=zone))
    assert {key: ms for key, ms in everything.items() if ms} == dict(now)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Two months: a job of `vision`, and free GPUs."""
    with Store(tmp_path / "data", create=True) as store:
        chance = random.Random(1)
        store.append([one for one in objects(chance, ms_of(FIRST)) if not isinstance(one, Workload)])
        store.append([_job("vision", 0)])
        write_days(store, {OCTOBER: _held(OCTOBER), NOVEMBER: _held(NOVEMBER)})
        yield store


def _job(team: str, seconds: int) -> Workload:
    return Workload(ms_of(FIRST) + seconds * 1000, "here", "job-pod-0", "Job", "ml", "job", team=team, experiment="e")


def _held(day: date, price: int | None = 3_600_000, ms: int = 60_000) -> list[LedgerRow]:
    return [
        LedgerRow(ms_of(day), "n0", 0, "pod-0", 1, "train", 1, price, ms),
        LedgerRow(ms_of(day), "n0", 1, None, 1, "free", 1, price, 60_000),
    ]


def dollars_by(answer: dict[str, Any], *names: str) -> dict[Any, int]:
    return {tuple(row[name] for name in (*names, "adjusts")): row["usd_micro"] for row in answer["rows"]}


def test_a_price_that_changes_afterwards_is_adjusted_in_the_next_month_once(store: Store) -> None:
    closing(store, OCTOBER)
    write_days(store, {OCTOBER: _held(OCTOBER, 7_200_000)})
    assert dollars_by(month(store, OCTOBER), "team") == {("platform", None): 60_000, ("vision", None): 60_000}
    answer = month(store, NOVEMBER)
    assert dollars_by(answer, "team") == {
        ("platform", None): 60_000,
        ("vision", None): 60_000,
        ("platform", "2026-10"): 60_000,
        ("vision", "2026-10"): 60_000,
    }
    assert answer["total"]["usd_micro"] == 240_000
    assert [answer["books"][part]["usd_micro"] for part in ("ledger", "adjustments")] == [120_000, 120_000]
    assert answer["books"]["adjustments"]["gpu_ms"] == 0  # the time is the same, the price is another
    found = closing(store, NOVEMBER)
    assert (found.ledger["usd_micro"], found.adjustments["usd_micro"]) == (120_000, 120_000)
    assert dollars_by(month(store, NOVEMBER), "team") == dollars_by(answer, "team")
    assert month(store, DECEMBER)["rows"] == []  # nothing is adjusted twice


def test_a_smaller_ledger_gives_a_negative_adjustment(store: Store) -> None:
    closing(store, OCTOBER)
    write_days(store, {OCTOBER: _held(OCTOBER, ms=15_000)})
    rows = dollars_by(month(store, NOVEMBER, ("team", "day", "state")), "team", "day", "state")
    assert rows["vision", "2026-10-01", "train", "2026-10"] == -45_000
    assert month(store, NOVEMBER)["total"]["usd_micro"] == 120_000 - 45_000
    charge = [row for row in charged(store, month_range("2026-11", UTC))["rows"] if row[-1]]
    assert charge[0][charged(store, EVERYTHING)["columns"].index("billing_from")] == "2026-11-01T00:00:00Z"


def test_a_changed_owner_is_adjusted(store: Store) -> None:
    closing(store, OCTOBER)
    store.append([_job("nlp", 5)])
    assert dollars_by(month(store, OCTOBER), "team")["vision", None] == 60_000
    adjusted = dollars_by(month(store, NOVEMBER), "team")
    assert (adjusted["vision", "2026-10"], adjusted["nlp", "2026-10"]) == (-60_000, 60_000)
    assert dollars_by(month(store, NOVEMBER, team="vision"), "team")["vision", "2026-10"] == -60_000


def test_a_change_of_states_only_is_not_an_adjustment(store: Store) -> None:
    closing(store, OCTOBER)
    rows = [row._replace(state="lost_work") if row.pod_uid else row for row in _held(OCTOBER)]
    write_days(store, {OCTOBER: rows})
    for by in (("team",), ("state",), ("day", "workload", "state")):
        assert {row["adjusts"] for row in month(store, NOVEMBER, by)["rows"]} == {None}
    assert all(row[-1] is None for row in charged(store, month_range("2026-11", UTC))["rows"])


def test_an_adjustment_of_time_shows_its_states(store: Store) -> None:
    closing(store, OCTOBER)
    lost = [row._replace(state="lost_work", ms=15_000) if row.pod_uid else row for row in _held(OCTOBER)]
    write_days(store, {OCTOBER: lost})
    by_state = dollars_by(month(store, NOVEMBER, ("state",)), "state")
    assert (by_state["train", "2026-10"], by_state["lost_work", "2026-10"]) == (-60_000, 15_000)


def test_other_groupings_and_times_are_answered_from_the_ledger(store: Store) -> None:
    closing(store, OCTOBER)
    write_days(store, {OCTOBER: _held(OCTOBER, 7_200_000)})
    open_names(store)
    october = month_range("2026-10", UTC)
    for by, window, zone, basis in (
        (("team",), october, UTC, "closed"),
        (("hour",), october, UTC, "ledger"),
        (("team",), month_range("2026-10", ZoneInfo("Europe/Berlin")), ZoneInfo("Europe/Berlin"), "ledger"),
        (("team",), TimeRange(october.from_ms, october.to_ms + MS_PER_DAY), UTC, "ledger"),
        (("team",), month_range("2026-11", UTC), UTC, "open"),
        (("hour",), month_range("2026-11", UTC), UTC, "ledger"),
        (("team",), month_range("2026-12", UTC), UTC, "ledger"),
    ):
        found = basis_of(store, window, by, zone)
        assert (by, found.kind, found.touches_closed) == (
            by,
            basis,
            basis == "ledger" and window.from_ms < october.to_ms,
        )
    answer = cost(store, october, ["hour"], zone=UTC, basis=basis_of(store, october, ["hour"], UTC))
    assert answer["total"]["usd_micro"] == 240_000
    assert (answer["books"]["basis"], answer["books"]["closed_time"]) == ("ledger", True)


def test_all_groupings_are_answered_for_closed_and_later_months(store: Store) -> None:
    closing(store, OCTOBER)
    write_days(store, {OCTOBER: _held(OCTOBER, 7_200_000)})
    for name in set(GROUPINGS) - {"cause"}:  # which takes a ledger with causes
        answers = [month(store, day, (name, "team")) for day in (OCTOBER, NOVEMBER)]
        assert all(answer["rows"] for answer in answers), name
        kept = [answer["books"]["basis"] for answer in answers] == ["closed", "open"]
        assert kept or answers[1]["books"]["adjustments_left_out"], name


def test_closing_errors_name_the_reason(store: Store) -> None:
    for day, now_ms, why in (
        (
            OCTOBER,
            hours_after(NOVEMBER, 0),
            "2026-10 has not ended or settled yet. It can be closed from 2026-11-01T01:00:00Z",
        ),
        (NOVEMBER, LATE, "2026-10 has charges and is not closed: close it before 2026-11."),
        (FIRST, LATE, "2026-09 has no charges to close."),
    ):
        with pytest.raises(ClosingError, match=why):
            closing(store, day, now_ms=now_ms)
    closing(store, OCTOBER)
    for day, zone, why in (
        (OCTOBER, UTC, "2026-10 was closed at 2027-03-01T01:00:00Z and cannot be changed."),
        (FIRST, UTC, "2026-09 is before 2026-10, which is closed"),
        (NOVEMBER, ZoneInfo("Asia/Tokyo"), "closed in UTC, not in Asia/Tokyo"),
    ):
        with pytest.raises(ClosingError, match=why):
            closing(store, day, zone=zone)
    assert [closed.month for closed in read_closed_months(store.folder)] == ["2026-10"]


def test_time_before_the_first_closed_month_is_adjusted_too(store: Store) -> None:
    closing(store, OCTOBER)
    write_days(store, {FIRST: _held(FIRST)})
    assert dollars_by(month(store, NOVEMBER), "team")["vision", "2026-09"] == 60_000


def test_a_closed_month_outlives_its_ledger(store: Store) -> None:
    closing(store, OCTOBER)
    before = month(store, OCTOBER, ("team", "state"))
    write_days(store, {OCTOBER: _held(OCTOBER, 7_200_000)})
    assert forget(store, keep_days=34, now_ms=ms_of(date(2026, 12, 5))) > 0
    assert month(store, OCTOBER, ("team", "state")) == before
    assert {row["adjusts"] for row in month(store, NOVEMBER)["rows"]} == {None}  # and nothing is taken back
    forget(store, keep_days=20, now_ms=ms_of(date(2026, 12, 5)))
    with pytest.raises(ClosingError, match="was dropped"):
        closing(store, NOVEMBER)


def test_a_team_sees_only_its_own_closed_charges(store: Store) -> None:
    found = closing(store, OCTOBER)
    everything, own = closed_answer(store), closed_answer(store, "vision")
    assert everything["months"][0]["total"] == found.total
    assert own["months"][0]["total"]["usd_micro"] == 60_000
    assert own["months"][0]["closed_by"] is own["months"][0]["sha256"] is None
    assert (everything["next"], own["next"]) == ("2026-11", "2026-11")


def test_a_team_without_current_holds_sees_its_charges(store: Store) -> None:
    window = month_range("2026-10", UTC)
    (before,) = {row["team"] for row in month(store, OCTOBER)["rows"]} - {"platform"}
    closing(store, OCTOBER)
    store.append([_job("another", 5)])
    with only(store, before, None):
        assert [row["team"] for row in month(store, OCTOBER, team=before)["rows"]] == [before]
        assert [row["usd_micro"] < 0 for row in month(store, NOVEMBER, team=before)["rows"]] == [True]
        assert closed_answer(store, before)["months"][0]["total"]["usd_micro"] > 0
        assert not charges(store, window, zone=UTC)["rows"]
    with pytest.raises(ScopeNotFoundError), only(store, "nobody-at-all", None):
        pass


def test_an_unchanged_month_is_not_read_again(store: Store) -> None:
    closing(store, OCTOBER)
    basis = basis_of(store, month_range("2026-11", UTC), (), UTC)
    read = store.expose
    seen = []
    store.expose = lambda kinds, *window, **more: (seen.extend(kinds), read(kinds, *window, **more))[1]  # type: ignore[method-assign]
    adjustments(store, basis, UTC)
    assert "ledger_row" not in seen
    write_days(store, {OCTOBER: _held(OCTOBER, 7_200_000)})
    adjustments(store, basis, UTC)
    assert "ledger_row" in seen


def test_check_reports_changed_and_missing_closed_months(store: Store) -> None:
    closing(store, OCTOBER)
    closing(store, NOVEMBER)
    october, november = read_closed_months(store.folder)
    path = store.folder / FOLDER / "2026-10.json"
    path.write_text(path.read_text().replace('"ann"', '"bob"'))
    path = store.folder / FOLDER / november.file
    path.write_bytes(path.read_bytes() + b" ")
    (store.folder / FOLDER / october.file).unlink()
    found = list(problems(store.folder, store.connection))
    assert [text.split(" ")[0] for text in found] == [
        f"closed/{october.file}",
        f"closed/{november.file}",
        "closed/2026-10.json",
    ]


@pytest.mark.parametrize("amount", ["gpu_ms", "usd_micro"])
def test_check_reports_a_total_that_differs_from_its_charges(store: Store, amount: str) -> None:
    closing(store, OCTOBER)
    path = store.folder / FOLDER / "2026-10.json"
    closed = json.loads(path.read_text())
    closed["total"][amount] += 1_000_000
    path.write_text(json.dumps(closed))
    (found,) = problems(store.folder, store.connection)
    assert found.endswith(" does not add up to what closed/2026-10.json says.")


def test_closing_drops_its_temporary_tables(store: Store) -> None:
    closing(store, OCTOBER)
    write_days(store, {OCTOBER: _held(OCTOBER, 7_200_000)})
    closing(store, NOVEMBER)
    with pytest.raises(ClosingError):
        closing(store, DECEMBER)
    left = "SELECT table_name FROM duckdb_tables() WHERE temporary AND table_name LIKE 'book%'"
    assert store.connection.execute(left).fetchall() == []


def test_an_interrupted_closing_leaves_no_files(store: Store) -> None:
    into = store.folder / FOLDER
    into.mkdir()
    (into / "2026-10-0123456789ab.parquet").write_bytes(b"half")
    assert read_closed_months(store.folder) == []
    found = closing(store, OCTOBER)
    assert sorted(path.name for path in into.glob("*")) == sorted([found.file, "2026-10.json"])
    assert found.total["usd_micro"] == usd_micro(2 * 60_000 * 3_600_000)
