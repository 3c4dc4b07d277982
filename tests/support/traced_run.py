"""The records of a run from the SDK: two clocks, gradient accumulation, a resume, a slow rank, a bad sample."""

from __future__ import annotations

import hashlib
import json
import random
from typing import NamedTuple

from pyrometer.model.records import (
    Allocation,
    Batch,
    Event,
    Metric,
    Node,
    Pod,
    Run,
    Span,
    StepWindow,
    Workload,
    named_samples,
)
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.store import Store

START_MS = 1_791_000_000_000
RUN = "llama-sft"
STEP_US = 120_000
PHASES_US = (("data", 2_000), ("copy", 500), ("forward", 9_000), ("backward", 8_000))  # of one micro-batch


class Training(NamedTuple):
    """The parameters of a training."""

    ranks: int = 4
    accumulation: int = 4
    batch: int = 4
    dataset: int = 1_024
    attempts: tuple[tuple[int, int], ...] = ((0, 80), (60, 130))  # first step, and the one after the last
    save_every: int = 20
    trace_every: int = 10
    slow_rank: int | None = 2
    slow_us: int = 6_000  # of each backward
    skew_us: int = 7_300  # of every second rank's node
    bad_sample: int | None = 137
    seed: int = 1


def hex_digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


class TrainingRecords:
    """The records of a training, and the samples that each step consumed."""

    def __init__(self, **options) -> None:
        self.training = training = Training(**options)
        self.records: list[tuple] = []
        self.consumed: dict[tuple[int, int], dict[int, list[list[int]]]] = {}  # attempt, step → rank → micro-batches
        self.rng = random.Random(training.seed)
        self.epochs = {}
        for number, (first, end) in enumerate(training.attempts, start=1):
            self._attempt(number, first, end)

    def store(self, folder) -> Store:
        store = Store(folder, create=True)
        store.append(self.records)
        return store

    def samples(self, attempt: int, step: int) -> set[int]:
        return {one for rank in self.consumed[attempt, step].values() for micro in rank for one in micro}

    def _shuffled(self, epoch: int) -> list[int]:
        if epoch not in self.epochs:
            order = list(range(self.training.dataset))
            random.Random(f"{self.training.seed} {epoch}").shuffle(order)
            self.epochs[epoch] = order
        return self.epochs[epoch]

    def _attempt(self, number: int, first: int, end: int) -> None:
        training, launch = self.training, f"launch{number}"
        started_ms = START_MS + (number - 1) * 600_000
        loop_ms = started_ms + 20_000
        ended_ms = loop_ms + (end - first) * STEP_US // 1000 + 2_000
        last = number == len(training.attempts)
        for rank in range(training.ranks):
            self._place(number, rank, started_ms, ended_ms)
            self.records.append(
                Run(
                    ended_ms,
                    RUN,
                    number,
                    rank,
                    started_ms,
                    training.ranks,
                    launch,
                    experiment="sft",
                    workload_uid=RUN,
                    pod_uid=f"pod-{number}-{rank}",
                    node_uid=node(rank),
                    slot_index=rank // 2,
                    first_step_ms=loop_ms + STEP_US // 1000,
                    ended_ms=ended_ms,
                    outcome="succeeded" if last else "failed",
                    resumed_step=first or None,
                    framework="torch",
                )
            )
            self._event(number, started_ms + 9_000, "rendezvous", 3_000, rank)
        if first:
            self._event(number, started_ms + 14_000, "restored", 5_000, 0, first)
        self._event(number, started_ms + 19_000, "compiled", 4_000, 0)
        if not last:
            self._event(number, ended_ms, "exception", None, 1, end - 1, "RuntimeError", "NCCL timeout\nof rank 1")
        for step in range(first, end):
            self._step(number, launch, step, loop_ms + (step - first) * STEP_US // 1000)
            if step > first and step % training.save_every == 0:
                self._event(number, loop_ms + (step - first) * STEP_US // 1000, "checkpoint_saved", 5, 0, step)

    def _place(self, number: int, rank: int, started_ms: int, ended_ms: int) -> None:
        slot, pod = (node(rank), rank // 2), f"pod-{number}-{rank}"
        self.records += [
            Node(started_ms, "here", slot[0], slot[0], (self.training.ranks + 1) // 2, "NVIDIA H100 80GB HBM3"),
            Node(ended_ms, "here", slot[0], slot[0], (self.training.ranks + 1) // 2, "NVIDIA H100 80GB HBM3"),
            Workload(started_ms, "here", RUN, "Run", "here", RUN, experiment="sft", team="speech"),
            Pod(
                started_ms,
                "here",
                pod,
                "here",
                pod,
                "Running",
                RUN,
                number,
                rank,
                slot[0],
                created_ms=started_ms,
                scheduled_ms=started_ms,
                started_ms=started_ms,
                ended_ms=ended_ms,
            ),
            Allocation(started_ms, pod, *slot, started_ms, ended_ms, SHARE_WHOLE, source="sdk"),
        ]

    def _event(self, attempt, time_ms, kind, duration_ms, rank, step=None, reason=None, message=None) -> None:
        self.records.append(
            Event(
                time_ms,
                kind,
                duration_ms,
                workload_uid=RUN,
                run=RUN,
                attempt=attempt,
                rank=rank,
                step=step,
                reason=reason,
                message=message,
            )
        )

    def _step(self, attempt: int, launch: str, step: int, at_ms: int) -> None:
        training = self.training
        self.consumed[attempt, step] = {rank: [] for rank in range(training.ranks)}
        for rank in range(training.ranks):
            for micro in range(training.accumulation):
                self._batch(attempt, rank, step, micro, at_ms)
            if step % training.trace_every == 0:
                self._spans(attempt, launch, rank, step, at_ms)
            if step % 10 == 0:
                self._window(attempt, rank, step, at_ms)
        usual = 2.0 + 4.0 / (step + 4) + self.rng.gauss(0, 0.01)
        bad = training.bad_sample is not None and training.bad_sample in self.samples(attempt, step)
        loss = usual + (3.0 if bad else 0.0)
        self.records.append(Metric(at_ms + 119, RUN, attempt, 0, "loss", loss, step, "min", "pyrometer", step, step))

    def _batch(self, attempt: int, rank: int, step: int, micro: int, at_ms: int) -> None:
        training = self.training
        index = step * training.accumulation + micro  # of the rank's batches, over all epochs
        per_epoch = training.dataset // (training.ranks * training.batch)
        epoch, place = divmod(index, per_epoch)
        begin = (place * training.ranks + rank) * training.batch
        samples = self._shuffled(epoch)[begin : begin + training.batch]
        self.consumed[attempt, step][rank].append(samples)
        self.records.append(
            Batch(at_ms, RUN, attempt, rank, 0, epoch, place, micro, step, "pairs.parquet", **named_samples(samples))
        )

    def _spans(self, attempt: int, launch: str, rank: int, step: int, at_ms: int) -> None:
        training = self.training
        trace, count = hex_digest(f"{launch}:{step}", 32), 0
        skew_us = training.skew_us if node(rank) == "node-b" else 0
        start_us = at_us = at_ms * 1000 + skew_us
        parent = hex_digest(f"{launch}:{step}:{rank}:0", 16)

        def span(name: str, begin_us: int, lasted_us: int, attributes: dict | None = None) -> None:
            nonlocal count
            count += name != "step"
            own = hex_digest(f"{launch}:{step}:{rank}:{0 if name == 'step' else count}", 16)
            self.records.append(
                Span(
                    begin_us // 1000,
                    trace,
                    own,
                    name,
                    lasted_us,
                    RUN,
                    attempt,
                    rank,
                    step,
                    None if name == "step" else parent,
                    json.dumps(attributes) if attributes else None,
                    begin_us % 1000,
                )
            )

        per_epoch = training.dataset // (training.ranks * training.batch)
        for micro in range(training.accumulation):
            epoch, place = divmod(step * training.accumulation + micro, per_epoch)
            for name, usual_us in PHASES_US:
                lasted_us = usual_us + (training.slow_us if name == "backward" and rank == training.slow_rank else 0)
                attributes = {"pyrometer.batch": f"0/{epoch}/{place}", "pyrometer.micro_batch": micro}
                span(name, at_us, lasted_us, attributes if name == "forward" else None)
                at_us += lasted_us
        span("augment", start_us + 100, 1_500, {"images": 4})
        optimizer_us = 5_000
        synced_us = start_us + STEP_US - 1_000 - optimizer_us
        if training.ranks > 1:
            span("sync", at_us, synced_us - at_us)
            at_us = synced_us
        span("optimizer", at_us, optimizer_us)
        span("step", start_us, at_us + optimizer_us - start_us)

    def _window(self, attempt: int, rank: int, step: int, at_ms: int) -> None:
        training = self.training
        micro_ms = {name: us * training.accumulation * 10 // 1000 for name, us in PHASES_US}
        slow_ms = training.slow_us * training.accumulation * 10 // 1000 if rank == training.slow_rank else 0
        self.records.append(
            StepWindow(
                at_ms,
                at_ms + 10 * STEP_US // 1000,
                RUN,
                attempt,
                rank,
                node(rank),
                rank // 2,
                f"pod-{attempt}-{rank}",
                step,
                10,
                micro_ms["data"],
                micro_ms["copy"],
                micro_ms["forward"],
                micro_ms["backward"] + slow_ms,
                160 - slow_ms // 2,
                50,
                step_p50_us=STEP_US - 1_000,
                step_max_us=STEP_US + 9_000,
                step_lengths=(STEP_US - 1_000, 9, STEP_US + 9_000, 1),
                samples=10 * training.accumulation * training.batch,
                tokens=10 * training.accumulation * training.batch * 512,
                flops=300_000_000_000_000,
                memory_peak_mib=40_000 + rank,
            )
        )


def node(rank: int) -> str:
    return "node-b" if rank % 2 else "node-a"
