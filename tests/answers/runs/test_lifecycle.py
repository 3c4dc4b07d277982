"""The lifecycle of a run: its attempts, phases and events in order."""

from __future__ import annotations

from datetime import UTC

from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs.lifecycle import trace_run
from pyrometer.model.records import Event
from tests.support.traced_run import RUN, START_MS, TrainingRecords

EVER = TimeRange(0, 2**62)


def test_lifecycle_lists_attempts_and_phases_in_order(store):
    answer = trace_run(store, RUN, EVER, zone=UTC)
    first, second = answer["attempts"]
    assert [piece["name"] for piece in first["pieces"]][:5] == [
        "imports",
        "rendezvous",
        "compile",
        "first_step",
        "training",
    ]
    assert [piece["name"] for piece in second["pieces"]][:4] == ["imports", "rendezvous", "restore", "compile"]
    assert (first["outcome"], first["lost_steps"], second["outcome"], second["resumed_step"]) == (
        "failed",
        20,
        "succeeded",
        60,
    )
    assert [mark["message"] for mark in first["marks"]] == ["NCCL timeout\nof rank 1"]
    assert answer["traced"]["count"] == 15
    assert answer["traced"]["newest"]["step"] == 120


def test_lifecycle_parts_are_within_their_attempt_and_run(store):
    answer = trace_run(store, RUN, EVER, zone=UTC)
    by_id = {span["span_id"]: span for span in answer["spans"]}
    assert len(by_id) == len(answer["spans"])
    (root,) = (span for span in answer["spans"] if span["parent_id"] is None)
    assert root["name"] == RUN
    for span in answer["spans"]:
        if span is not root:
            parent = by_id[span["parent_id"]]
            assert parent["start_ms"] <= span["start_ms"]
            assert span["start_ms"] + span["duration_ms"] <= parent["start_ms"] + parent["duration_ms"]


def test_hang_lasts_until_its_end_or_the_end_of_the_attempt(tmp_path):
    with TrainingRecords(attempts=((0, 40),)).store(tmp_path / "data") as store:
        at = {"run": RUN, "attempt": 1}
        store.append(
            [
                Event(START_MS + 21_000, "stuck", rank=0, step=9, reason="comm", message="a\nall_reduce", **at),
                Event(START_MS + 21_100, "stuck", rank=3, step=9, reason="data", **at),
                Event(START_MS + 22_000, "unstuck", rank=0, step=9, **at),
                Event(START_MS + 24_000, "stuck", rank=1, step=30, reason="comm", **at),
            ]
        )
        answer = trace_run(store, RUN, EVER, zone=UTC)
    hangs = [piece for piece in answer["attempts"][0]["pieces"] if piece["name"] == "hang"]
    assert [(hang["start_ms"] - START_MS, hang["duration_ms"]) for hang in hangs] == [(21_000, 1_000), (24_000, 2_800)]
    assert (hangs[0]["ranks"], hangs[0]["reason"]) == ([0, 3], "comm")
