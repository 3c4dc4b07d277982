"""The ledger as counters: each settled minute counts once, nothing falls, and corrections are separate."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pyrometer.account.build.ledger import build
from pyrometer.account.query.sums import Sum
from pyrometer.export.ledger_metrics import RETIRED_MS, SETTLED_MS, LedgerCollector, SeriesOwner
from pyrometer.export.metrics_text import render_metrics
from pyrometer.model.records import Event
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support import clusters
from tests.support.clusters import MINUTE, START_MS, all_ranks, at, event, job, run
from tests.support.effort import EFFORT


def cluster(hours: int = 2, **more: int) -> list[Any]:
    """Nodes that are present all the time, watched every minute."""
    beats = [Event(at(minute), "watched", cluster="test") for minute in range(hours * 60)]
    return [*clusters.cluster(hours=hours, **more), *beats]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(), *job(), *run(), *all_ranks(0, 120)])
        yield store


def account(store: Store, now_ms: int) -> int:
    covered = build(store, Settings(), now_ms=now_ms)
    assert covered is not None
    return covered.end_ms


def counted(ledger: LedgerCollector) -> Counter[str]:
    """Milliseconds by state, summed over series."""
    found: Counter[str] = Counter()
    for (_, state), amount in ledger.amounts.items():
        found[state] += amount.gpu_ms
    return found


def test_minute_is_counted_once_after_it_settled(store: Store) -> None:
    ledger = LedgerCollector()
    last: Counter[str] = Counter()
    for minute in (30, 37, 44, 80, 81, 118):
        ledger.count(store, account(store, at(minute)))
        now = counted(ledger)
        assert all(now[state] >= seconds for state, seconds in last.items()), "a counter fell"
        last = now
    end_ms = account(store, at(119))
    ledger.count(store, end_ms)
    ledger.count(store, end_ms)  # what is new is shown as zero first; now all is there
    began_ms = at(31) - SETTLED_MS  # the first time: nothing of the past
    assert sum(counted(ledger).values()) == 4 * (end_ms - SETTLED_MS - began_ms)
    assert set(counted(ledger)) == {"train", "data_stall", "comm_stall"}


def test_restart_continues_with_the_next_minute(store: Store) -> None:
    before = LedgerCollector()
    before.count(store, account(store, at(60)))
    assert counted(before) == {}
    after = LedgerCollector()
    after.count(store, account(store, at(90)))
    after.count(store, account(store, at(90)))
    assert sum(counted(after).values()) == 4 * 30 * MINUTE


def test_restart_shows_values_that_were_only_announced(store: Store) -> None:
    first = LedgerCollector()
    for minute in (60, 70):
        first.count(store, account(store, at(minute)))
    for _ in range(2):  # each ends before anything was seen to grow
        ledger = LedgerCollector()
        ledger.count(store, account(store, at(70)))
    assert counted(ledger) == {"train": 0, "data_stall": 0, "comm_stall": 0}
    ledger.count(store, account(store, at(70)))
    assert sum(counted(ledger).values()) == 4 * 10 * MINUTE


def test_new_series_starts_at_zero(store: Store) -> None:
    ledger = LedgerCollector()
    ledger.count(store, account(store, at(60)))
    ledger.count(store, account(store, at(70)))
    assert dict(counted(ledger)) == {"train": 0, "data_stall": 0, "comm_stall": 0}
    ledger.count(store, account(store, at(70)))
    assert sum(counted(ledger).values()) == 4 * 10 * MINUTE


def test_later_corrections_are_counted_separately(store: Store) -> None:
    ledger = LedgerCollector()
    for minute in (30, 100, 100):
        ledger.count(store, account(store, at(minute)))
    before = counted(ledger)
    store.append([event("nonfinite_loss", 40, 0), event("finite_loss", 50, 0)])
    ledger.count(store, account(store, at(100)))
    assert counted(ledger) == before
    assert {to_state for _, to_state in ledger.restated} == {"diverged"}
    assert sum(ledger.restated.values()) == 4 * 10 * MINUTE
    ledger.count(store, account(store, at(100)))
    assert sum(ledger.restated.values()) == 4 * 10 * MINUTE


@pytest.mark.heavy
def test_workloads_beyond_the_limit_are_other_and_the_sum_is_complete(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        jobs = [r for n in range(4) for r in job(f"job-{n}", pods=1, gpus=1, from_min=20 * n, to_min=20 * n + 20)]
        store.append([*cluster(nodes=1, gpus=1), *jobs])
        ledger = LedgerCollector(max_workloads=2)
        for minute in (12, 30, 50, 70, 90, 90):
            ledger.count(store, account(store, at(minute)))
        owners = {owner for owner, _ in ledger.amounts}
        assert {owner.workload for owner in owners} == {"", "ml/job-0", "other"}  # the first two, and the team's others
        assert sum(counted(ledger).values()) == at(91) - at(13)


class HeldRange(NamedTuple):
    """A time range and the workloads of two teams that held GPUs in it, by number."""

    minutes: int
    owners: tuple[tuple[int, str], ...]
    restarts: bool = False  # the process, afterwards

    def groups(self) -> list[Sum]:
        return [
            Sum((state, f"team-{n % 2}", None, {"kind": "Job", "namespace": "ml", "name": str(n)}), ms, 2 * ms, 0)
            for n, state in self.owners
            for ms in (self.minutes * MINUTE,)
        ]


worked = st.builds(
    HeldRange,
    st.sampled_from((1, 10, 45, 90)),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(("train", "hang"))), max_size=6, unique=True).map(tuple),
    st.sampled_from((False, False, False, True)),
)


class Scraper:
    """Prometheus: the newest value of each counter, and its increase between two scrapes that include it."""

    def __init__(self) -> None:
        self.last: dict[tuple[str, ...], float] = {}
        self.ever: dict[tuple[str, ...], float] = {}
        self.increase = 0.0

    def scrape(self, ledger: LedgerCollector) -> None:
        now = {
            tuple(sample.labels.values()): sample.value
            for family in ledger.collect()
            if family.name == "pyrometer_gpu_seconds"
            for sample in family.samples
        }
        for series, value in now.items():
            assert value >= self.ever.get(series, 0), "a counter fell, perhaps while it was not shown"
        self.increase += sum(value - self.last[series] for series, value in now.items() if series in self.last)
        self.last = now
        self.ever |= now


@settings(max_examples=50 * EFFORT)
@given(history=st.lists(worked, max_size=25), most=st.integers(1, 4), most_teams=st.integers(0, 2))
@pytest.mark.heavy
def test_counters_never_fall_or_lose_time_when_workloads_come_and_go(
    history: list[HeldRange], most: int, most_teams: int
) -> None:
    ledger, scraper, whole_ms = LedgerCollector(max_workloads=most, max_teams=most_teams), Scraper(), 0
    before_ms = 0  # what was counted by processes that are gone
    through_ms = ledger.through_ms = START_MS
    for while_ in history:
        through_ms += while_.minutes * MINUTE
        ledger.advance(while_.groups(), through_ms)
        scraper.scrape(ledger)
        whole_ms += sum(group.gpu_ms for group in while_.groups())
        assert len({owner for owner, _ in ledger.amounts}) <= most + most_teams + 1
        shown = sum(amount.gpu_ms for amount in (*ledger.amounts.values(), *ledger.announced.values()))
        retired = sum(amount.gpu_ms for states in ledger.retired.values() for amount in states.values())
        assert shown + retired == whole_ms - before_ms
        if while_.restarts:
            before_ms = whole_ms - sum(amount.gpu_ms for amount in ledger.announced.values())
            pending, ledger = ledger.pending(), LedgerCollector(max_workloads=most, max_teams=most_teams)
            ledger.through_ms = through_ms
            ledger.resume(pending)
            scraper.last = scraper.ever = {}  # what begins anew is a reset, and its first value no increase
            scraper.scrape(ledger)
    ledger.advance([], through_ms)
    scraper.scrape(ledger)
    assert round(scraper.increase * 1000) == whole_ms, "what rate() and increase() add up to is not what was counted"


def test_retired_workload_continues_its_counters() -> None:
    ledger = LedgerCollector()
    ledger.through_ms = START_MS
    busy, idle = HeldRange(1, ((1, "train"),)), HeldRange(1, ())
    ledger.advance(busy.groups(), at(1))
    ledger.advance(idle.groups(), at(1))
    ledger.advance(idle.groups(), at(2) + RETIRED_MS)
    owner = SeriesOwner("team-1", "", "ml/1")
    assert not ledger.amounts
    assert ledger.retired[owner]["train"].gpu_ms == MINUTE
    ledger.advance(busy.groups(), at(3) + RETIRED_MS)
    assert ledger.amounts[owner, "train"].gpu_ms == MINUTE  # unchanged: a first value does not count
    ledger.advance([], at(3) + RETIRED_MS)
    assert ledger.amounts[owner, "train"].gpu_ms == 2 * MINUTE


@pytest.mark.heavy
def test_ended_workload_loses_its_series(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(hours=5), *job(), *job(to_min=60)])
        ledger = LedgerCollector()
        for minute in (15, 30, 60, 75, 135, 150, 285):
            ledger.count(store, account(store, START_MS + minute * MINUTE))
            names = {owner.workload for owner, _ in ledger.amounts}
            assert ("ml/llama" in names) == (15 < minute <= 60 + 75)  # held until minute 66, plus one hour
        assert names == {""}


def test_findings_have_their_current_cost(store: Store) -> None:
    ledger = LedgerCollector()
    workload = {"uid": "u", "kind": "Job", "namespace": "ml", "name": "llama"}
    finding = {"cause": "hang", "team": "nlp", "experiment": "sft", "workload": workload, "usd_micro": 2_500_000}
    ledger.set_findings([finding, finding])
    body, _ = render_metrics([ledger], "")
    assert 'pyrometer_finding_usd{cause="hang",experiment="sft",team="nlp",workload="ml/llama"} 5.0' in body.decode()
    ledger.set_findings([])
    assert "pyrometer_finding_usd{" not in render_metrics([ledger], "")[0].decode()


def test_hostile_names_do_not_break_the_text_format(tmp_path: Path) -> None:
    name = 'evil"} 1\npyrometer_fake 1\n\\'
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(), *(r._replace(team=name) if hasattr(r, "team") else r for r in job())])
        ledger = LedgerCollector()
        for minute in (30, 60, 60):
            ledger.count(store, account(store, at(minute)))
    for accept in ("", "application/openmetrics-text; version=1.0.0"):
        body, form = render_metrics([ledger], accept)
        assert ("openmetrics" in form) == bool(accept)
        assert b"\npyrometer_fake" not in body
    families = {
        family.name: family for family in text_string_to_metric_families(render_metrics([ledger], "")[0].decode())
    }
    assert any(sample.labels["team"] == name for sample in families["pyrometer_gpu_seconds"].samples)


def test_ledger_metrics_pass_promtool(store: Store) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    ledger = LedgerCollector()
    for minute in (30, 60, 60):
        ledger.count(store, account(store, at(minute)))
    result = subprocess.run(
        ["promtool", "check", "metrics"], input=render_metrics([ledger], "")[0], capture_output=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
