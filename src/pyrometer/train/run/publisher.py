"""Writes everything that a rank has to report into the spool."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyrometer.train.run.configuration import BATCHES, Configuration
from pyrometer.train.steps import fold, ring
from pyrometer.train.steps.sample_names import BatchNamer

if TYPE_CHECKING:
    from pyrometer.train.run.outbox import Outbox
    from pyrometer.train.run.step_numbers import StepNumbers
    from pyrometer.train.ship.spool import Message, Spool
    from pyrometer.train.steps.metrics import Metrics, MetricValue
    from pyrometer.train.steps.recorder import Recorder
    from pyrometer.train.steps.sample_lineage import Lineage, UsedBatch


class Publisher:
    """Turns messages, kept steps, used batches and metrics of one rank into parts of the spool."""

    def __init__(
        self,
        spool: Spool,
        identity: dict[str, Any],
        recorder: Recorder,
        outbox: Outbox,
        steps: StepNumbers,
        lineage: Lineage,
        metrics: Metrics,
    ) -> None:
        self._spool = spool
        self._identity = identity
        self._ring = recorder.ring
        self._recorder = recorder
        self._outbox = outbox
        self._steps = steps
        self._lineage = lineage
        self._metrics = metrics
        self._namer = BatchNamer()
        self._configuration: Configuration | None = None  # until it is reported
        self._configured_ms = 0
        self._first_batches: list[dict[str, Any]] = []

    def configure(self, configuration: Configuration) -> None:
        """Reports this configuration of the run as soon as its first batches are known."""
        self._configuration = configuration
        self._configured_ms = time.time_ns() // 1_000_000

    def publish(self, *, urgent: bool, final: bool) -> None:
        """Writes what is new. At the end of the rank, nothing is held back."""
        messages = self._outbox.take()
        kept = [self._recorder.kept.popleft() for _ in range(len(self._recorder.kept))]
        used = [self._lineage.used.popleft() for _ in range(len(self._lineage.used))]
        for step in kept:
            messages += fold.spans(self._ring, step, used, self._identity["launch"], self._identity["rank"])
        messages += map(self._batch, used)
        self._add_configuration(messages, final=final)
        while self._metrics.waiting:
            messages.append(self._metric(self._metrics.waiting.popleft()))
        if messages:
            self._spool.put(self._identity, messages, urgent=urgent)

    def _batch(self, used: UsedBatch) -> Message:
        batch = self._namer.batch(used, self._steps.number(used.number), self._ring.wall_ns(used.at_ns))
        if len(self._first_batches) < BATCHES:
            self._first_batches.append(batch)
        return "batch", batch

    def _metric(self, value: MetricValue) -> Message:
        step = value.step if value.step is not None else self._steps.number(value.number)
        metric = {"time_ms": value.at_ns // 1_000_000, "name": value.name, "value": value.value, "step": step}
        metric["source"] = value.source
        if value.goal:
            metric["goal"] = value.goal
        if value.covers is not None:
            metric["first_step"], metric["last_step"] = map(self._steps.number, value.covers)
        return "metric", metric

    def _add_configuration(self, messages: list[Message], *, final: bool) -> None:
        """Adds the configuration once its first batches are known, or will not become known."""
        configuration, batches = self._configuration, self._first_batches
        has_no_loader = not batches and self._ring.view[ring.FOLDED] > 1
        if configuration is not None and (len(batches) == BATCHES or has_no_loader or final):
            self._configuration = None
            fields = {"kind": "configured", "reason": configuration.digest(batches)}
            fields["message"] = configuration.text(batches)
            messages.append(("event", {"time_ms": self._configured_ms, **fields}))
