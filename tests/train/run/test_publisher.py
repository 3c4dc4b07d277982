"""What a rank publishes into its spool."""

from __future__ import annotations

import pytest

from pyrometer.train.run.outbox import Outbox
from pyrometer.train.run.publisher import Publisher
from pyrometer.train.run.step_numbers import StepNumbers
from pyrometer.train.ship.spool import Spool
from pyrometer.train.steps.metrics import Metrics
from pyrometer.train.steps.recorder import Recorder
from pyrometer.train.steps.ring import Ring
from pyrometer.train.steps.sample_lineage import DrawnBatch, Lineage, UsedBatch

IDENTITY = {"launch": "ab12", "rank": 0}


class Rows:
    pass


class Rank:
    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.recorder = Recorder(Ring.in_memory())
        self.outbox = Outbox()
        steps = StepNumbers(self.recorder.ring, self.outbox, 100)
        self.lineage = Lineage()
        self.metrics = Metrics(lambda: self.recorder.count, lambda *_: None)
        self.publisher = Publisher(spool, IDENTITY, self.recorder, self.outbox, steps, self.lineage, self.metrics)

    def published(self) -> list[tuple[str, dict]]:
        return [message for part in self.spool.parts() for message in self.spool.read(part)[1]]


@pytest.fixture
def rank(tmp_path) -> Rank:
    return Rank(Spool(tmp_path / "spool").make())


def test_nothing_new_writes_no_part(rank):
    rank.publisher.publish(urgent=False, final=False)
    assert rank.spool.parts() == []


def test_messages_batches_and_metrics_are_published_with_global_steps(rank):
    rank.outbox.event("note", at_ms=5)
    rows = Rows()
    loader = rank.lineage.loader(rows)
    rank.lineage.used.append(UsedBatch(3, 0, 0, DrawnBatch(loader, 0, 1, [7, 8])))
    rank.metrics.log({"loss": 0.5}, step=None)
    rank.publisher.publish(urgent=True, final=True)
    (kind, note), (batch_kind, batch), *metrics = rank.published()
    assert (kind, note) == ("event", {"time_ms": 5, "kind": "note"})
    assert (batch_kind, batch["step"], batch["samples"]) == ("batch", 103, [7, 8])
    assert [(name, metric["name"], metric["value"], metric["step"]) for name, metric in metrics] == [
        ("metric", "loss", 0.5, 100)
    ]
    rank.publisher.publish(urgent=True, final=True)
    assert len(rank.spool.parts()) == 1
