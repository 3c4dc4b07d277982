"""What is forgotten is gone for good, and what is kept does not change."""

from __future__ import annotations

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.build.retention import forget, kept_from_ms
from pyrometer.account.checks.repair import replace_catalog
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from pyrometer.store.data_folder import DATABASE
from tests.support.clusters import HOUR, START_MS, at, cluster, job, node_samples, samples

HOURS = 29
NOW_MS = START_MS + HOURS * HOUR
FIVE_HOURS = 5 * 60 * 4  # slot-minutes of four GPUs: a part ends where a day before now begins


def ledger(store, from_ms=0):
    store.expose_all(["ledger_row"])
    return store.connection.execute("FROM ledger_row WHERE minute_ms >= ? ORDER BY ALL", [from_ms]).fetchall()


@pytest.mark.heavy
def test_forget_does_not_change_the_remaining_ledger(tmp_path):
    busy = {"gpu_util_permille": 900, "sm_active_permille": 700, "power_w": 500}
    idle = {"gpu_util_permille": 0, "sm_active_permille": 0, "power_w": 110}
    telemetry = samples("n0", 0, 0, HOURS * 30 + 7, **busy) + samples("n0", 0, HOURS * 30 + 7, HOURS * 60, **idle)
    with Store(tmp_path, create=True) as store:
        telemetry += node_samples(0, 0, HOURS * 60, cpu_busy_permille=500)
        store.append([*cluster(hours=HOURS), *job(pods=1, gpus=1, from_min=3), *telemetry])
        store.seal()
        build(store, Settings(), now_ms=NOW_MS, chunk_slot_minutes=FIVE_HOURS)
        before = ledger(store)
        assert forget(store, keep_days=1, now_ms=NOW_MS) > 0
        cut_ms = kept_from_ms(store)
        assert cut_ms == NOW_MS - 24 * HOUR
        covered = build(store, Settings(), now_ms=NOW_MS, chunk_slot_minutes=FIVE_HOURS)
        assert covered is not None
        assert covered.from_ms == cut_ms
        assert ledger(store) == [row for row in before if row[0] >= cut_ms]
        store.expose_all(["gpu_sample", "node_sample", "pod"])
        for kind in ("gpu_sample", "node_sample"):
            oldest = store.connection.execute(f"SELECT min(time_ms) FROM {kind}").fetchone()
            assert oldest == (cut_ms - HOUR,), kind
        assert store.connection.execute("SELECT count(*) FROM pod").fetchone() == (1,)


def test_forget_drops_ledger_parts_as_a_whole(tmp_path):
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(hours=HOURS), *job(pods=1, gpus=1)])
        build(store, Settings(), now_ms=NOW_MS)
        whole = max(part.to_ms - part.from_ms for part in store.parts("ledger_row"))
        assert whole > 24 * HOUR
        before = ledger(store)
        forget(store, keep_days=1, now_ms=NOW_MS)
        assert kept_from_ms(store) == START_MS
        build(store, Settings(), now_ms=NOW_MS)
        assert ledger(store) == before


def test_longer_retention_does_not_restore_dropped_time(tmp_path):
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(hours=HOURS), *job(pods=1, gpus=1)])
        build(store, Settings(), now_ms=NOW_MS, chunk_slot_minutes=FIVE_HOURS)
        forget(store, keep_days=1, now_ms=NOW_MS)
        forget(store, keep_days=30, now_ms=NOW_MS)
        covered = build(store, Settings(), now_ms=NOW_MS, chunk_slot_minutes=FIVE_HOURS)
        assert covered is not None
        assert covered.from_ms == at(0) + (HOURS - 24) * HOUR


def test_dropped_time_is_not_rebuilt_from_remaining_records(tmp_path):
    """A new catalog does not record retention: from objects alone, the past would look idle."""
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(hours=HOURS), *job(pods=1, gpus=1)])
        store.seal()
        build(store, Settings(), now_ms=NOW_MS, chunk_slot_minutes=FIVE_HOURS)
        forget(store, keep_days=1, now_ms=NOW_MS)
        before = ledger(store)
    (tmp_path / DATABASE).write_bytes(b"torn")
    assert "A new catalog" in next(replace_catalog(tmp_path))
    with Store(tmp_path) as store:
        build(store, Settings(), now_ms=NOW_MS, chunk_slot_minutes=FIVE_HOURS)
        assert ledger(store) == before
