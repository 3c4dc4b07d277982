"""Sums that are written with the ledger: questions that read them say what its rows say, whatever is asked of them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.account.build import ledger
from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.checks.check_list import problems
from pyrometer.account.query.cost import cost
from pyrometer.account.query.names import open_names
from pyrometer.account.query.stored_sums import open_hours, open_minutes
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.burn import burn
from pyrometer.model.records import GpuSample, LedgerRow
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE, MS_PER_QUARTER
from pyrometer.store import Store
from pyrometer.store.store import NewPart
from tests.support.effort import DETERMINISTIC, EFFORT
from tests.support.histories import History, account, at, folder, hold, law, node, pod, rows_of, samples, until

SUMS = ("hour_sum", "minute_sum", "minute_use", "hour_use")
HELD = ("pod_uid", "node_uid", "state", "evidence", "usd_micro_per_hour")
BY = (["team"], ["workload", "state"], ["node", "hour"], ["day", "experiment"], ["hour", "state"], ["pod", "node"])


@pytest.fixture(autouse=True)
def _sums_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SUMMED_SLOT_MINUTES", 0)


def _windows(from_ms: int, end_ms: int, chance: random.Random) -> Iterator[TimeRange]:
    yield TimeRange(from_ms, end_ms)
    whole = -(-from_ms // MS_PER_HOUR) * MS_PER_HOUR
    yield TimeRange(whole, whole + MS_PER_HOUR)
    yield TimeRange(from_ms - 3 * MS_PER_HOUR, end_ms + MS_PER_QUARTER)
    for _ in range(3):
        minutes = sorted(chance.sample(range(from_ms, max(end_ms, from_ms + MS_PER_MINUTE) + 1, MS_PER_MINUTE), 2))
        yield TimeRange(*minutes)


@contextmanager
def _accounted(history: History) -> Iterator[tuple[Store, LedgerCoverage | None, random.Random]]:
    with folder() as store:
        store.append(history.records)
        yield store, account(store, history.now_ms), random.Random(len(history.records))


@law(3)
def test_stored_sums_equal_the_rows_of_the_ledger(history: History) -> None:
    with _accounted(history) as (store, covered, chance):
        if covered is None:
            return
        _some_are_missing(store, chance)
        rows = rows_of(store)
        for window in _windows(covered.from_ms, covered.end_ms, chance):
            inside = [row for row in rows if window.from_ms <= row.minute_ms < window.to_ms]
            query = f"SELECT {', '.join(HELD)}, sum(ms)::BIGINT FROM {open_hours(store, *window)} "
            query += f"WHERE minute_ms >= {window.from_ms} AND minute_ms < {window.to_ms} GROUP BY ALL"
            found = {row[:-1]: row[-1] for row in store.connection.execute(query).fetchall()}
            assert found == _summed(inside, *HELD)
            minutes = open_minutes(store, *window)
            query = f"SELECT minute_ms, state, held, sum(ms)::BIGINT FROM {minutes} GROUP BY ALL"
            timeline: Counter[Any] = Counter()
            for row in inside:
                timeline[row.minute_ms, row.state, row.pod_uid is not None] += row.ms
            assert {tuple(row[:-1]): row[-1] for row in store.connection.execute(query).fetchall()} == timeline


def _some_are_missing(store: Store, chance: random.Random) -> None:
    """As of hours that were too small, and of a folder that was half mended."""
    store.drop_parts([part for part in store.parts() if part.kind in SUMS and chance.random() < 0.3])


def _summed(rows: list[LedgerRow], *names: str) -> dict[tuple[Any, ...], int]:
    found: defaultdict[tuple[Any, ...], int] = defaultdict(int)
    for row in rows:
        found[tuple(getattr(row, name) for name in names)] += row.ms
    return dict(found)


@law(2)
def test_answers_do_not_depend_on_stored_sums(history: History) -> None:
    with _accounted(history) as (store, covered, chance):
        if covered is None:
            return
        open_names(store)
        questions = [
            (window, by, zone)
            for window in _windows(covered.from_ms, covered.end_ms, chance)
            for by in chance.sample(BY, 2)
            for zone in chance.sample((UTC, ZoneInfo("Asia/Kolkata"), ZoneInfo("Europe/Berlin")), 1)
        ]
        summed = [_answer(store, *question) for question in questions]
        store.drop_parts(part for part in store.parts() if part.kind in SUMS)
        assert summed == [_answer(store, *question) for question in questions]


def test_any_range_of_minutes_is_the_same_with_and_without_stored_sums() -> None:
    """Three hours of two pods and a change between them, with energy and activity."""
    held = [
        node(count=2),
        pod("p"),
        hold("p", at(0), at(70)),
        pod("q"),
        hold("q", at(70), at(171)),
        until(at(200), count=2),
    ]
    busy = [GpuSample(at(m), "n0", m % 2, sm_active_permille=7 * m % 1000, power_w=100 + m) for m in range(200)]
    windows = [TimeRange(at(begin), at(end)) for begin in (0, 7, 37) for end in (62, 75, 119, 200)]
    with folder() as store:
        store.append([*held, *busy])
        account(store)
        open_names(store)
        questions = [(window, by, UTC) for window in windows for by in (["pod"], ["node", "hour"])]
        summed = [_answer(store, *question) for question in questions]
        store.drop_parts(part for part in store.parts() if part.kind in SUMS)
        assert summed == [_answer(store, *question) for question in questions]
    assert len({answer["total"]["energy_wh"] for answer, _ in summed}) == len(windows)


def _answer(store: Store, window: TimeRange, by: list[str], zone: Any) -> Any:
    return cost(store, window, by, zone=zone), burn(store, window, Settings(), zone=zone)


def test_the_incomplete_newest_hour_is_read_from_its_sum() -> None:
    with folder() as store:
        store.append([node(), pod("p"), hold("p"), until(at(95))])
        covered = account(store)
        assert covered is not None
        assert open_hours(store, at(60), covered.end_ms) == "ledger_hours"
        text = store.connection.execute("SELECT sql FROM duckdb_views() WHERE view_name = 'ledger_hours'").fetchall()
        assert "ledger_row" not in text[0][0]
        open_names(store)
        assert (
            cost(store, TimeRange(at(60), covered.end_ms), ["pod"], zone=UTC)["total"]["gpu_ms"] == 35 * MS_PER_MINUTE
        )


# -- how busy GPUs were -----------------------------------------------------------------------------------------------


def _busy(minutes: range, permille: int | None, **more: Any) -> list[GpuSample]:
    return [GpuSample(at(minute), "n0", 0, sm_active_permille=permille, **more) for minute in minutes]


def _activity(records: list[Any], window: TimeRange | None = None, by: str = "pod") -> dict[str | None, float | None]:
    with folder() as store:
        store.append(records)
        covered = account(store)
        assert covered is not None
        open_names(store)
        answer = cost(store, window or TimeRange(covered.from_ms, covered.end_ms), [by], zone=UTC)
        return {row[by]: row["activity"] for row in answer["rows"]} | {"total": answer["total"]["activity"]}


def test_activity_is_the_mean_of_readings_while_held() -> None:
    records = [node(), pod("p"), hold("p", at(0), at(40)), pod("q"), hold("q", at(40)), until(at(60))]
    records += [*_busy(range(0, 40), 800), *_busy(range(40, 60), 200)]
    assert _activity(records) == {"p": 0.8, "q": 0.2, "total": 0.6}


def test_free_time_and_unmeasured_time_have_no_activity() -> None:
    records = [node(), pod("p"), hold("p", at(0), at(30)), until(at(60)), *_busy(range(60), 500)]
    assert _activity(records) == {"p": 0.5, None: None, "total": 0.5}
    assert _activity([node(), pod("p"), hold("p"), until(at(60))]) == {"p": None, "total": None}


def test_activity_uses_the_best_available_counter() -> None:
    held = [node(), pod("p"), hold("p"), until(at(60))]
    assert _activity([*held, *_busy(range(60), 300, gpu_util_permille=990)])["p"] == 0.3
    assert _activity([*held, *_busy(range(60), None, graphics_active_permille=700, gpu_util_permille=990)])["p"] == 0.7
    assert _activity([*held, *_busy(range(60), None, gpu_util_permille=990)])["p"] == 0.99
    assert _activity([*held, *_busy(range(60), 300)], by="state")["total"] == 0.3


def test_a_time_range_has_the_quarters_that_start_in_it() -> None:
    records = [node(), pod("p"), hold("p"), until(at(60)), *_busy(range(0, 30), 100), *_busy(range(30, 60), 900)]
    assert _activity(records, TimeRange(at(15), at(31)))["p"] == pytest.approx((15 * 0.1 + 15 * 0.9) / 30)
    assert _activity(records, TimeRange(at(16), at(60)))["p"] == 0.9
    assert _activity(records, TimeRange(at(0), at(15)))["p"] == 0.1


@settings(deadline=None, derandomize=DETERMINISTIC, max_examples=3 * EFFORT)
@given(st.integers(0, 2**32))
def test_activity_equals_the_readings_in_any_grouping_of_hours(seed: int) -> None:
    chance = random.Random(seed)
    ends = sorted(chance.sample(range(1, 150), 5))
    records: list[Any] = [node(), until(at(150))]
    held = []
    for name, (begin, end) in zip("abc", zip(ends[::2], ends[1::2], strict=False), strict=False):
        records += [pod(name), hold(name, at(begin), at(end))]
        held.append((name, at(begin), at(end)))
    times = {at(chance.uniform(0, 149)) for _ in range(80)}
    read = [GpuSample(time_ms, "n0", 0, sm_active_permille=chance.randint(0, 1000)) for time_ms in sorted(times)]
    known = {}
    for name, from_ms, to_ms in held:
        values = [sample.sm_active_permille for sample in read if from_ms <= sample.time_ms < to_ms]
        known[name] = round(sum(values) / len(values) / 1000, 4) if values else None
    for size in (1, 10**9):
        with folder() as store:
            store.append([*records, *read])
            covered = account(store, chunk_slot_minutes=size)
            assert covered is not None
            open_names(store)
            answer = cost(store, TimeRange(covered.from_ms, covered.end_ms), ["pod"], zone=UTC)
            assert {row["pod"]: row["activity"] for row in answer["rows"] if row["pod"]} == known


def test_check_reports_sums_that_differ_from_the_ledger() -> None:
    with folder() as store:
        store.append([node(), pod("p"), hold("p"), until(at(60)), *samples("busy", at(0), at(60))])
        account(store)
        assert not list(problems(store))
        (part,) = store.parts("hour_sum")
        store.expose_all(["hour_sum"])
        wrong = "SELECT * REPLACE (ms + 1 AS ms) FROM hour_sum"
        store.replace([NewPart("hour_sum", part.from_ms, part.to_ms, wrong, part.digest)])
        (problem,) = problems(store)
        assert "do not add up" in problem.text
        assert problem.part == store.parts("hour_sum")[0]
