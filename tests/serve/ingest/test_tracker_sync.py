"""Runs of trackers in a store with a cluster: joins, cost, and visibility to teams."""

from __future__ import annotations

import asyncio
from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.scope import only
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.experiments.worth import worth
from pyrometer.answers.runs.overview import runs, show
from pyrometer.answers.runs.progress import Progress
from pyrometer.collect.trackers.common import RunLocation, TrackedPoint, TrackedRun
from pyrometer.collect.trackers.mlflow import FoundRun, Mlflow
from pyrometer.model.settings import Settings
from pyrometer.serve.ingest.tracker_sync import AMBIGUOUS, JOINED, UNJOINED, MlflowFollower, TrackedRunWriter
from pyrometer.store import Store
from tests.support.clusters import START_MS, all_ranks, at, cluster, job, pod, run
from tests.support.kube_server import free_port

DAY = TimeRange(START_MS, at(120))


def tracked(run_id="abc", from_min=10, to_min=70, **where) -> TrackedRun:
    return TrackedRun(
        "mlflow", run_id, "bold-carp", "sft", at(from_min), at(to_min), "succeeded", RunLocation(**where), "words"
    )


def curve(from_min=10, to_min=70) -> list[TrackedPoint]:
    return [TrackedPoint(at(minute), "val_loss", 4 / (minute + 1), minute) for minute in range(from_min, to_min)]


def ledger(store: Store) -> list[tuple]:
    build(store, Settings(), now_ms=at(120))
    store.expose(["ledger_row"], *DAY)
    return store.connection.execute("FROM ledger_row ORDER BY ALL").fetchall()


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "data", create=True) as store:
        store.append([*cluster(), *job()])
        yield store


def take(store, *tracked_runs, local=True) -> TrackedRunWriter:
    tracking = TrackedRunWriter(store, local=local)
    for one, points in tracked_runs:
        tracking.add(one, points)
    tracking.write()
    return tracking


def test_tracker_run_adds_metrics_without_changing_the_ledger(store):
    before = ledger(store)
    tracking = take(store, (tracked(host="llama-0"), curve()))
    assert tracking.counts == {JOINED["pod"]: 1}
    assert ledger(store) == before
    (row,) = runs(store, DAY, zone=UTC)["rows"]
    assert (row["run"], row["experiment"], row["team"], row["ranks"]) == ("abc", "llama-sft", "nlp", 4)
    assert row["gpu_ms"] == 4 * 120 * 60_000  # a pod's time belongs to the run that is in it
    assert row["trackers"] == [{"tracker": "mlflow", "id": "abc", "message": "words"}]
    shown = show(store, "abc", DAY, Settings(), zone=UTC)
    assert [(step, time_ms, value) for step, time_ms, value, *_ in shown["metrics"]["val_loss"]] == [
        (point.step, point.time_ms, point.value) for point in curve()
    ]
    spent = [usd_micro for *_, usd_micro in shown["metrics"]["val_loss"]]
    assert spent == sorted(spent)
    assert sum(state["gpu_ms"] for state in shown["states"]) == row["gpu_ms"]
    (of_run,) = worth(store, "llama-sft", DAY, zone=UTC)["runs"]
    assert (of_run["best"], of_run["usd_micro"]) == (4 / 70, row["usd_micro"])


def test_restarted_run_is_one_curve_with_its_concurrent_ranks(tmp_path):
    again = pod("llama-b", "llama", "n0", from_min=40, attempt=2)
    with Store(tmp_path / "data", create=True) as store:
        store.append([*cluster(), *job(pods=1, to_min=30), *again])
        take(store, (tracked(workload="llama"), curve()))
        build(store, Settings(), now_ms=at(120))
        (row,) = runs(store, DAY, zone=UTC)["rows"]
        assert (row["attempts"], row["ranks"], row["gpu_ms"]) == (2, 2, (30 + 80) * 2 * 60_000)
        (of_run,) = worth(store, "llama-sft", DAY, zone=UTC)["runs"]
        assert of_run["best"] == 4 / 70
        assert len(show(store, "abc", DAY, Settings(), zone=UTC)["metrics"]["val_loss"]) == 60


def test_reading_a_run_twice_changes_nothing(store):
    tracked_run = (tracked(host="llama-0"), curve())
    take(store, tracked_run)
    before = show(store, "abc", DAY, Settings(), zone=UTC)
    take(store, tracked_run)
    store.seal()
    take(store, tracked_run)
    assert show(store, "abc", DAY, Settings(), zone=UTC) == before


def test_sdk_run_keeps_its_cost(store):
    store.append([*run(launch="1a2b"), *all_ranks(0, 60)])
    build(store, Settings(), now_ms=at(120))
    before = runs(store, DAY, zone=UTC)["rows"]
    tracking = take(store, (tracked(host="llama-0"), curve()))
    assert tracking.counts == {JOINED["pod"]: 1}
    (row,) = runs(store, DAY, zone=UTC)["rows"]
    assert {**row, "trackers": []} == before[0]
    assert [one["id"] for one in row["trackers"]] == ["abc"]
    assert "val_loss" in show(store, "run", DAY, Settings(), zone=UTC)["metrics"]  # no other source reported it


def test_two_trackers_of_one_run_do_not_repeat_metrics(store):
    store.append([*run(launch="1a2b"), *all_ranks(0, 60)])
    build(store, Settings(), now_ms=at(120))
    other = tracked("other", host="llama-0")._replace(tracker="wandb")
    late = [point._replace(time_ms=point.time_ms + 1) for point in curve()]
    take(store, (tracked(host="llama-0"), curve()), (other, late))
    points = show(store, "run", DAY, Settings(), zone=UTC)["metrics"]["val_loss"]
    assert [time_ms for _, time_ms, *_ in points] == [point.time_ms for point in curve()]


def test_unwritten_runs_are_read_again(store, monkeypatch):
    one = FoundRun(tracked(host="llama-0"), {}, {"val_loss": (at(69), 69, 4 / 70)})

    class FailingMlflow(Mlflow):
        """A server with one run."""

        async def experiments(self):
            return {"1": "sft"}

        async def search(self, *_):
            yield one

        async def history(self, run_id, name, after=0):
            return curve()[after:]

    async def looks() -> None:
        following = MlflowFollower(store, asyncio.Lock(), FailingMlflow("http://127.0.0.1"))
        with monkeypatch.context() as disk_full:
            disk_full.setattr(store, "append", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await following.look()
        await following.look()

    asyncio.run(looks())
    assert len(show(store, "abc", DAY, Settings(), zone=UTC)["metrics"]["val_loss"]) == 60


def test_unjoined_run_has_no_cost_and_does_not_extend_the_ledger(store):
    before = ledger(store)
    late = tracked("late", 100, 500, host="somewhere")
    tracking = take(store, (late, curve(100, 500)), (tracked("two", host="node-0"), curve()))
    assert ledger(store) == before
    assert tracking.counts == {UNJOINED: 1, JOINED["host"]: 1}
    rows = {row["run"]: row for row in runs(store, DAY, zone=UTC)["rows"]}
    assert (rows["late"]["gpu_ms"], rows["late"]["experiment"], rows["late"]["workload"]) == (0, "sft", None)


def test_ambiguous_run_is_reported(store, tmp_path):
    store.append(job("bert", pods=1, gpus=1))
    tracking = take(store, (tracked(host="node-0"), []))
    assert tracking.counts == {AMBIGUOUS: 1}
    (words,) = tracking.ambiguous.values()
    assert words == "Run abc (host node-0) is not joined, because it may be any of ml/bert, ml/llama."


def test_team_sees_only_its_own_tracker_runs(store):
    take(store, (tracked("ours", host="llama-0"), curve()), (tracked("nobodys", host="laptop"), curve()))
    build(store, Settings(), now_ms=at(120))
    with only(store, "nlp", None):
        assert [row["run"] for row in runs(store, DAY, zone=UTC)["rows"]] == ["ours"]
        store.expose_all(["metric", "event"])
        seen = store.connection.execute(
            "SELECT DISTINCT run FROM metric UNION SELECT DISTINCT run FROM event"
        ).fetchall()
        assert {run for (run,) in seen if run} == {"ours"}


def test_unreachable_tracking_server_is_a_shortcoming(store):
    async def once() -> list[str]:
        mlflow = Mlflow(f"http://user:secret@127.0.0.1:{free_port()}")
        following = MlflowFollower(store, asyncio.Lock(), mlflow, every_s=0.01)
        task = asyncio.create_task(following.run())
        while not following.trouble:
            await asyncio.sleep(0.01)
        task.cancel()
        await mlflow.close()
        return following.shortcomings()

    (words,) = asyncio.run(once())
    assert "does not answer" in words
    assert "secret" not in words


def test_local_tracker_run_has_a_device_and_a_server_run_none(tmp_path):
    tracked_run = (tracked(host="box", gpus=2, gpu_model="NVIDIA H100 80GB HBM3"), curve())
    for local, gpu_ms in ((True, 2 * 60 * 60_000), (False, 0)):
        with Store(tmp_path / str(local), create=True) as store:
            take(store, tracked_run, local=local)
            build(store, Settings(), now_ms=at(120))
            (row,) = runs(store, DAY, zone=UTC)["rows"]
            assert row["gpu_ms"] == gpu_ms


def test_progress_has_a_tracker_run_while_its_tracker_reports(store):
    one = tracked(host="llama-0")._replace(ended_ms=None, outcome=None)
    take(store, (one, [TrackedPoint(at(minute), "loss", 1 / minute, minute) for minute in (100, 1_000, 1_445)]))
    progress = Progress()
    progress.read(store, at(1_446), at(1_430))  # a day after it began
    assert progress.runs["abc"].metrics == {"loss": 1 / 1_445}
    assert (progress.runs["abc"].ranks, progress.runs["abc"].workload) == (4, "ml/llama")
    progress.read(store, at(2_300), at(2_290))
    assert progress.runs == {}
