"""Who holds GPUs right now: rates of the newest minute, states of the last five, how far it is, who waits."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

from pyrometer.account.build.ledger import build
from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.fleet.top import top
from pyrometer.model.records import Metric, Pod
from pyrometer.model.settings import Settings
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.store import Store
from tests.support.clusters import (
    HOUR,
    MINUTE,
    NORMAL_STEP_MS,
    PRICE_USD_MICRO,
    START_MS,
    all_ranks,
    at,
    cluster,
    job,
    run,
    samples,
)

NOW_MIN = 120


def ask_top(folder: Path, records: list[Any], **more: Any) -> dict[str, Any]:
    with Store(folder, create=True) as store:
        store.append(records)
        build(store, Settings(), now_ms=START_MS + 2 * HOUR)
        return top(store, TimeRange(at(NOW_MIN - 60), at(NOW_MIN)), zone=UTC, **more)


def trained(to_min: float = NOW_MIN, **more: Any) -> list[Any]:
    return [*cluster(), *job(), *run(), *all_ranks(0, to_min, **more)]


def test_top_shows_a_training_job(tmp_path: Path) -> None:
    losses = [Metric(at(m), "run", 1, 0, "loss", 5 - m / 40, 100 * m, "min") for m in range(60, NOW_MIN)]
    answer = ask_top(tmp_path, [*trained(), *losses])
    (row,) = answer["rows"]
    assert row["workload"] == {"uid": "llama", "kind": "PyTorchJob", "namespace": "ml", "name": "llama"}
    assert (row["run"], row["experiment"], row["team"], row["gpus"]) == ("run", "llama-sft", "nlp", 4.0)
    assert (row["state"], row["running_ms"]) == ("train", NOW_MIN * MINUTE)
    assert row["states"]["train"] > 0.9
    assert abs(sum(row["states"].values()) - 1) < 0.001
    assert row["usd_micro_per_hour"] == 4 * PRICE_USD_MICRO
    assert row["usd_micro"] == 4 * PRICE_USD_MICRO  # for one hour
    assert row["progress"] == {"step": 12_000, "total_steps": None, "share": None, "eta_ms": None, "source": "steps"}
    assert row["metric"] == {"name": "loss", "value": 5 - 119 / 40}
    assert len(row["spark"]) == 20
    assert min(row["spark"]) > 0.9
    assert answer["at"] == iso(at(NOW_MIN), UTC)
    assert answer["rate"] | {"wasted_usd_micro_per_hour": 0, "wasted_usd_per_hour": 0} == {
        "usd_micro_per_hour": 4 * PRICE_USD_MICRO,
        "usd_per_hour": 14.4,
        "gpus": 4.0,
        "held_gpus": 4.0,
        "free_gpus": 0.0,
        "unhealthy_gpus": 0.0,
        "wasted_usd_micro_per_hour": 0,
        "wasted_usd_per_hour": 0,
    }
    assert 0 < answer["rate"]["wasted_usd_micro_per_hour"] < 0.1 * 4 * PRICE_USD_MICRO
    assert (answer["others"], answer["queue"]) == (0, {"pods": 0, "gpus": 0.0, "longest_ms": None})


def test_top_state_covers_the_last_five_minutes(tmp_path: Path) -> None:
    starving = all_ranks(
        NOW_MIN - 5, NOW_MIN, **(NORMAL_STEP_MS | {"data_ms": 50_000, "forward_ms": 1_000, "backward_ms": 1_000})
    )
    answer = ask_top(tmp_path, [*trained(NOW_MIN - 5), *starving])
    (row,) = answer["rows"]
    assert row["state"] == "data_stall"
    assert row["goodput"] > 0.8  # of the hour
    assert row["spark"][0] > 0.9 > 0.3 > row["spark"][-1]
    assert answer["rate"]["wasted_usd_per_hour"] > 0.8 * answer["rate"]["usd_per_hour"]


def test_top_omits_ended_jobs_and_starts_the_line_of_new_jobs_late(tmp_path: Path) -> None:
    gone = job("gone", pods=1, from_min=0, to_min=100)
    came = job("came", pods=1, from_min=110)
    busy = [s for slot in range(2) for s in samples("n0", slot, 110, NOW_MIN, gpu_util_permille=900, power_w=500)]
    answer = ask_top(tmp_path, [*cluster(), *gone, *came, *busy])
    (row,) = answer["rows"]
    assert row["workload"]["name"] == "came"
    assert (row["gpus"], row["run"], row["goodput"], row["progress"], row["metric"]) == (2.0, None, None, None, None)
    assert row["spark"][:16] == [None] * 16
    assert row["spark"][-1] is not None
    assert row["running_ms"] == 10 * MINUTE
    assert (answer["rate"]["held_gpus"], answer["rate"]["free_gpus"]) == (2.0, 2.0)


def test_top_estimates_the_end_only_from_controller_progress(tmp_path: Path) -> None:
    percent = [Metric(at(m), "llama", 1, 0, "progress", v) for m, v in ((80, 20.0), (100, 40.0), (110, 50.0))]
    losses = [Metric(at(110), "llama", 1, 0, "loss", 1.5)]
    (row,) = ask_top(tmp_path / "pace", [*cluster(), *job(), *percent, *losses])["rows"]
    assert row["progress"] == {
        "step": None,
        "total_steps": None,
        "share": 0.5,
        "eta_ms": 40 * MINUTE,
        "source": "trainjob",
    }
    assert row["metric"] == {"name": "loss", "value": 1.5}
    remaining = Metric(at(110), "llama", 1, 0, "remaining_seconds", 1800.0)
    (row,) = ask_top(tmp_path / "reported", [*cluster(), *job(), *percent, remaining])["rows"]
    assert row["progress"]["eta_ms"] == 20 * MINUTE
    (row,) = ask_top(tmp_path / "stuck", [*cluster(), *job(), *percent[:1]])["rows"]
    assert (row["progress"]["share"], row["progress"]["eta_ms"]) == (0.2, None)


def test_top_sorts_by_cost_and_counts_the_rest(tmp_path: Path) -> None:
    records = [*cluster(), *job("big", pods=1, gpus=2), *job("small", pods=2, gpus=1)]
    records = [r for r in records if getattr(r, "pod_uid", "") != "small-0"]
    answer = ask_top(tmp_path, records, limit=1)
    assert [row["workload"]["name"] for row in answer["rows"]] == ["big"]
    assert answer["others"] == 1
    assert answer["rate"]["held_gpus"] == 3.0


def test_top_without_prices_counts_waiting_pods(tmp_path: Path) -> None:
    waiting = [
        Pod(at(m), "test", f"queued/w/{m}", "ml", "w", "Pending", created_ms=at(m), gpu_share=8 * SHARE_WHOLE)
        for m in (90, 100)
    ]
    records = [r for r in cluster() if type(r).__name__ != "Price"]
    answer = ask_top(tmp_path, [*records, *job(), *waiting])
    assert answer["queue"] == {"pods": 2, "gpus": 16.0, "longest_ms": 30 * MINUTE}
    assert answer["rate"]["usd_per_hour"] is answer["rate"]["wasted_usd_per_hour"] is None
    assert answer["rows"][0]["usd_per_hour"] is answer["rows"][0]["usd_micro"] is None
