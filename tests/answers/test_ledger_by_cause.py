"""The ledger by cause: claimed and unclaimed parts add up to the ledger."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.ledger_by_cause import with_causes
from pyrometer.causes.registry import DETECTORS
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import HOUR, START_MS, all_ranks, cluster, event, job, run


def test_with_causes_splits_each_state_into_findings_and_the_rest(tmp_path: Path) -> None:
    stuck = [event("stuck", 40, rank, step=3999) for rank in range(4)]
    window = TimeRange(START_MS, START_MS + 2 * HOUR)
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(), *job(), *run(), *all_ranks(0, 40), *stuck])
        build(store, Settings(), now_ms=window.to_ms)
        name = with_causes(store, window, Settings(), UTC, detectors=DETECTORS)
        ask = store.connection.execute
        by_state = "SELECT state, sum(ms) FROM {} GROUP BY state ORDER BY state"
        assert ask(by_state.format(name)).fetchall() == ask(by_state.format("ledger_row")).fetchall()
        causes = dict(ask(f"SELECT cause, sum(ms) FROM {name} WHERE state = 'hang' GROUP BY cause").fetchall())
        assert causes == {"hang": 4 * 80 * 60_000}
        assert ask(f"SELECT count(*) FROM {name} WHERE ms <= 0").fetchall() == [(0,)]


def test_with_causes_without_detectors_has_no_cause(tmp_path: Path) -> None:
    window = TimeRange(START_MS, START_MS + HOUR)
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(), *job(), *run(), *all_ranks(0, 60)])
        build(store, Settings(), now_ms=window.to_ms)
        name = with_causes(store, window, Settings(), UTC, detectors=())
        assert store.connection.execute(f"SELECT DISTINCT cause FROM {name}").fetchall() == [(None,)]
