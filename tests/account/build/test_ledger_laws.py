"""What holds for every ledger, whatever the records say: nothing is lost, nothing is there twice, and money adds up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, tzinfo
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.checks.check_list import derived_problems, problems
from pyrometer.account.query.cost import cost
from pyrometer.account.query.energy import Tariff, energy_in, energy_total
from pyrometer.account.query.groupings import GROUPINGS
from pyrometer.account.query.names import open_names
from pyrometer.account.query.sums import sums
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.ledger_by_cause import with_causes
from pyrometer.answers.why import why
from pyrometer.causes.registry import DETECTORS
from pyrometer.findings.claims import find
from pyrometer.findings.evidence import Evidence
from pyrometer.model.records import LedgerRow, Node
from pyrometer.model.settings import Settings
from pyrometer.model.states import CLAIMS, STATE
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE, usd_micro
from pyrometer.store import Store
from tests.support.histories import AFTER_END_MS, History, Ledger, account, folder, hold, law, node, rows_of, until
from tests.support.histories import at as time_of
from tests.support.reference_ledger import Cluster, HeldKey, minutes_of

TARIFF = Tariff(Fraction("0.123"), Fraction(381), Fraction("1.27"))
EVERYTHING = Settings(finding_min_ms=0, finding_min_usd_micro=0)
ZONES = tuple(
    ZoneInfo(name)
    for name in ("UTC", "Europe/Berlin", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns")
)


@law(3)
def test_time_money_and_findings_add_up_in_every_grouping(history: History) -> None:
    with folder() as store:
        store.append(history.records)
        covered = account(store, history.now_ms)
        rows = rows_of(store)
        _every_millisecond(Ledger(rows, covered), Cluster(history))
        if covered is None:
            return
        chance = random.Random(len(rows))
        window = _window(covered, chance)
        inside = [row for row in rows if window.from_ms <= row.minute_ms < window.to_ms]
        _money(store, window, inside, chance)
        _claims(store, window, inside)
        _why(store, window, inside, chance)
        assert history.now_ms < AFTER_END_MS or not [*problems(store), *derived_problems(store)]


def _every_millisecond(found: Ledger, cluster: Cluster) -> None:
    _in_order(found.rows)
    of_minute: Counter[tuple[str, int, int]] = Counter()
    held: Counter[tuple[str, int, int, str]] = Counter()
    for row in found.rows:
        of_minute[row.node_uid, row.slot_index, row.minute_ms] += row.ms
        held[row.node_uid, row.slot_index, row.minute_ms, row.pod_uid or row.state] += row.ms
    assert _settled(held, cluster) == _settled(cluster.held(), cluster)  # who held what, to the millisecond
    for place, known_by in cluster.places().items():
        there = cluster.there(place, known_by)
        if known_by == "node":
            assert {of_minute[(*place, span.from_ms)] for span in there} <= {MS_PER_MINUTE}
        if known_by != "hold":
            capacity_ms = sum(span.to_ms - span.from_ms for span in there)
            assert sum(of_minute[(*place, m)] for span in there for m in minutes_of(span)) == capacity_ms
    covered = found.covered
    assert covered is None or covered.end_ms == cluster.end_ms
    assert not found.rows or found.rows[0].minute_ms == covered.from_ms


def _settled(held: Counter[HeldKey], cluster: Cluster) -> dict[HeldKey, int]:
    """All minutes except those in which a node is removed: its state on return in the same minute does not matter."""
    went = {(seen.node_uid, seen.time_ms // MS_PER_MINUTE * MS_PER_MINUTE) for seen in cluster.of(Node, present=False)}
    return {key: ms for key, ms in held.items() if (key[0], key[2]) not in went}


def _in_order(rows: list[LedgerRow]) -> None:
    keys = [row[:-1] for row in rows]
    assert len(set(keys)) == len(keys)
    assert all(0 < row.ms <= MS_PER_MINUTE and row.minute_ms % MS_PER_MINUTE == 0 for row in rows)
    assert {row.state for row in rows} <= set(STATE)
    for row in rows:  # the platform has its own states, and only those
        assert (row.pod_uid is None) == (STATE[row.state].family == "platform")


def _window(covered: LedgerCoverage, chance: random.Random) -> TimeRange:
    """The whole time range, or a range of whole minutes in it."""
    if chance.random() < 0.7:
        return TimeRange(covered.from_ms, covered.end_ms)
    minutes = sorted(chance.sample(range(covered.from_ms, covered.end_ms + 1, MS_PER_MINUTE), 2))
    return TimeRange(*minutes) if covered.end_ms > covered.from_ms else TimeRange(covered.from_ms, covered.end_ms)


def _money(store: Store, window: TimeRange, rows: list[LedgerRow], chance: random.Random) -> None:
    gpu_ms = sum(row.ms for row in rows)
    unpriced = sum(row.ms for row in rows if row.usd_micro_per_hour is None)
    exact = sum(row.ms * row.usd_micro_per_hour for row in rows if row.usd_micro_per_hour is not None)
    open_names(store)
    known = [name for name in GROUPINGS if name != "cause"]
    energy = energy_total(energy_in(store, *window), TARIFF)
    assert 0 <= energy["energy_estimated_gpu_ms"] <= energy["energy_gpu_ms"]
    for by in [chance.sample(known, 1), chance.sample(known, 2), chance.sample(known, 3), ["hour", "state"]]:
        answer = cost(store, window, by, zone=chance.choice(ZONES), tariff=TARIFF)
        assert answer["total"]["gpu_ms"] == sum(row["gpu_ms"] for row in answer["rows"]) == gpu_ms
        assert answer["total"]["unpriced_gpu_ms"] == unpriced
        assert answer["total"]["usd_micro"] == (usd_micro(exact) if unpriced < gpu_ms else None)
        assert sum(row["usd_micro"] or 0 for row in answer["rows"]) == (answer["total"]["usd_micro"] or 0)
        for unit in ("energy_wh", "energy_usd_micro", "co2e_g"):
            assert sum(row[unit] or 0 for row in answer["rows"]) == (answer["total"][unit] or 0)
            assert answer["total"][unit] == energy[unit]
    by_state = {group.key[0]: group for group in sums(store, window, ["state"], zone=UTC)}
    assert {state: group.gpu_ms for state, group in by_state.items()} == _by_state(rows)
    for row in cost(store, window, ["state"], zone=UTC)["rows"]:
        nothing_priced = by_state[row["state"]].unpriced_gpu_ms == row["gpu_ms"]
        assert (row["usd_micro"] is None) == nothing_priced  # unpriced time is never shown as free of charge


def _by_state(rows: list[LedgerRow]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found[row.state] += row.ms
    return found


def _claims(store: Store, window: TimeRange, rows: list[LedgerRow]) -> None:
    detectors = [detector.__wrapped__ for detector in DETECTORS]  # all of them, whatever states there are
    everything = find(Evidence(store, window, EVERYTHING, UTC), detectors)
    findings = find(Evidence(store, window, EVERYTHING, UTC), DETECTORS)
    assert findings == everything  # who is not asked had nothing to claim
    assert all(finding.proposal.states == CLAIMS[finding.proposal.cause] for finding in findings)
    assert len({finding.id for finding in findings}) == len(findings)
    columns = ", ".join(LedgerRow._fields)
    claimed: Counter[tuple[object, ...]] = Counter()
    of_cause: Counter[str] = Counter()
    for *row, cause in store.connection.execute(f"SELECT {columns}, cause FROM claim").fetchall():
        claim = LedgerRow(*row)
        assert claim.ms > 0
        claimed[claim[:-1]] += claim.ms
        of_cause[cause] += claim.ms
        assert claim.state in {s for f in findings if f.proposal.cause == cause for s in f.proposal.states}
    have = {row[:-1]: row.ms for row in rows}
    assert all(ms <= have[key] for key, ms in claimed.items())  # no time is claimed twice, and none that does not exist
    found: Counter[str] = Counter()
    for finding in findings:
        found[finding.proposal.cause] += finding.gpu_ms
        assert 0 <= finding.unpriced_gpu_ms <= finding.gpu_ms
    assert found == of_cause
    answer = cost(
        store, window, ["cause"], zone=UTC, ledger=with_causes(store, window, EVERYTHING, UTC, detectors=DETECTORS)
    )
    assert answer["total"]["gpu_ms"] == sum(row.ms for row in rows)
    assert {row["cause"]: row["gpu_ms"] for row in answer["rows"] if row["cause"]} == dict(found)


def _why(store: Store, window: TimeRange, rows: list[LedgerRow], chance: random.Random) -> None:
    answer = why(store, window, Settings(), zone=chance.choice(ZONES))
    assert {row["state"]: row["gpu_ms"] for row in answer["states"]} == _by_state(rows)
    assert answer["total"]["gpu_ms"] == sum(row.ms for row in rows)
    assert sum(row["usd_micro"] or 0 for row in answer["states"]) == (answer["total"]["usd_micro"] or 0)
    assert sum(sum(bucket["states"].values()) for bucket in answer["timeline"]["rows"]) == answer["total"]["gpu_ms"]
    assert sum(row["gpu_ms"] for row in answer["teams"]) == answer["total"]["gpu_ms"]
    assert all(0 <= share <= 1 for share in answer["evidence"].values())
    assert answer["total"] == cost(store, window, ["team"], zone=UTC)["total"]
    _what_if(answer)


def _what_if(answer: dict[str, Any]) -> None:
    saved = [finding["what_if"] for finding in answer["findings"]]
    assert sum(row["saved_gpu_ms"] for row in saved) == answer["saved_if_caught"]["gpu_ms"]
    assert sum(row["saved_usd_micro"] or 0 for row in saved) == (answer["saved_if_caught"]["usd_micro"] or 0)
    for finding, row in zip(answer["findings"], saved, strict=True):
        assert 0 <= row["saved_gpu_ms"] <= finding["gpu_ms"]
        assert 0 <= (row["saved_usd_micro"] or 0) <= (finding["usd_micro"] or 0)
        assert row["detect_s"] >= 0
        assert row.get("elapsed_without_ms", 0) <= row.get("elapsed_ms", 0)


# -- hours that a clock repeats or leaves out ---------------------------------------------------------------------

BERLIN = ZoneInfo("Europe/Berlin")


@contextmanager
def _around(middle_ms: int) -> Iterator[Callable[[tzinfo, str], list[tuple[str, int]]]]:
    """One GPU over six hours around a time: its minutes by local hour, day or month of a zone."""
    from_ms, to_ms = middle_ms - 3 * MS_PER_HOUR, middle_ms + 3 * MS_PER_HOUR
    with folder() as store:
        store.append([node(from_ms), until(to_ms)])
        account(store, to_ms)
        open_names(store)

        def minutes(zone: tzinfo, by: str) -> list[tuple[str, int]]:
            answer = cost(store, TimeRange(from_ms, to_ms), [by], zone=zone)
            assert answer["total"]["gpu_ms"] == 6 * MS_PER_HOUR
            return [(row[by], row["gpu_ms"] // MS_PER_MINUTE) for row in answer["rows"]]

        yield minutes


AUTUMN_MS = 1_792_890_000_000  # 2026-10-25 01:00 UTC: in Berlin 3:00 becomes 2:00
SPRING_MS = 1_774_746_000_000  # 2026-03-29 01:00 UTC: in Berlin 2:00 becomes 3:00
MONTH_MS = 1_793_487_600_000  # 2026-10-31 23:00 UTC: in Berlin a new month


def test_a_repeated_clock_hour_counts_as_two_hours() -> None:
    with _around(AUTUMN_MS) as minutes:
        assert minutes(BERLIN, "hour") == [
            ("2026-10-25T00:00+02:00", 60),
            ("2026-10-25T01:00+02:00", 60),
            ("2026-10-25T02:00+02:00", 60),
            ("2026-10-25T02:00+01:00", 60),
            ("2026-10-25T03:00+01:00", 60),
            ("2026-10-25T04:00+01:00", 60),
        ]
        assert minutes(BERLIN, "day") == [("2026-10-25", 360)]


def test_a_skipped_clock_hour_has_no_row() -> None:
    with _around(SPRING_MS) as minutes:
        assert [hour[11:] for hour, _ in minutes(BERLIN, "hour")] == [
            "23:00+01:00",
            "00:00+01:00",
            "01:00+01:00",
            "03:00+02:00",
            "04:00+02:00",
            "05:00+02:00",
        ]
        assert minutes(BERLIN, "day") == [("2026-03-28", 60), ("2026-03-29", 300)]
        assert minutes(BERLIN, "month") == [("2026-03", 360)]


def test_a_month_begins_at_local_midnight() -> None:
    with _around(MONTH_MS) as minutes:
        assert minutes(BERLIN, "month") == [("2026-10", 180), ("2026-11", 180)]
        assert minutes(ZoneInfo("UTC"), "month") == [("2026-10", 240), ("2026-11", 120)]


def test_hours_of_a_half_hour_zone_begin_at_its_own_full_hour() -> None:
    with _around(AUTUMN_MS) as minutes:
        hours = minutes(ZoneInfo("Asia/Kolkata"), "hour")
    assert [length for _, length in hours] == [30, 60, 60, 60, 60, 60, 30]
    assert hours[1][0] == "2026-10-25T04:00+05:30"


def test_a_repeated_half_hour_has_its_own_row() -> None:
    lord_howe = ZoneInfo("Australia/Lord_Howe")  # 2026-04-04 15:00 UTC: 2:00 becomes 1:30
    with _around(1_775_314_800_000) as minutes:
        hours = minutes(lord_howe, "hour")
    assert ("2026-04-05T01:00+11:00", 60) in hours
    assert ("2026-04-05T01:00+10:30", 30) in hours


@pytest.fixture(scope="module")
def of_unpriced_time() -> Iterator[Callable[[str], dict[str, Any]]]:
    """Ten minutes of a GPU that no price is known for: what they cost, by a grouping."""
    with folder() as store:
        store.append(
            [*(node(time, gpu_model="Abacus-1") for time in (time_of(0), time_of(10) - 1)), hold(to_ms=time_of(5))]
        )
        covered = account(store)
        assert covered is not None
        open_names(store)
        yield lambda by: cost(store, TimeRange(covered.from_ms, covered.end_ms), [by], zone=UTC)


@pytest.mark.parametrize("by", [name for name in GROUPINGS if name != "cause"])
def test_time_without_a_price_is_unpriced_in_every_grouping(
    by: str, of_unpriced_time: Callable[[str], dict[str, Any]]
) -> None:
    answer = of_unpriced_time(by)
    assert answer["total"]["usd_micro"] is None
    assert answer["total"]["unpriced_gpu_ms"] == answer["total"]["gpu_ms"] == 10 * MS_PER_MINUTE
    assert {row["usd_micro"] for row in answer["rows"]} == {None}
