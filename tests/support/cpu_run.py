"""A small run on two CPU ranks that saves, hangs, is killed, resumes, diverges and fails."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.support.otlp_json import Message, Part, span_id, trace_id, window

RUN, EXPERIMENT, HOST = "tiny-gpt", "warmup", "laptop"
FIRST, SECOND = "a" * 32, "b" * 32
CHECKPOINT = "/ckpt/last.pt"
STACK = 'File "train.py", line 42 in all_reduce'

# Milliseconds after the start.
FIRST_STEP, HANGS, KILLED = 20_000, 320_000, 500_000
AGAIN, AGAIN_STEP, DIVERGES, ENDS = 510_000, 530_000, 630_000, 731_000
SAVED_STEP, LATE = 200, 300  # rank 1 starts a little later
RANK_MS = {0: KILLED + ENDS - AGAIN, 1: KILLED - LATE + ENDS - AGAIN - LATE}


def identity(launch: str, rank: int, started_ms: int, **more: object) -> dict[str, object]:
    known = {
        "run": RUN,
        "launch": launch,
        "experiment": EXPERIMENT,
        "rank": rank,
        "ranks": 2,
        "local_rank": rank,
        "pid": 100 + rank,
        "host": HOST,
        "started_ms": started_ms + LATE * rank,
        "device": "cpu",
        "framework": "torch",
    }
    return known | more


def step_spans(launch: str, rank: int, step: int, at_ms: int) -> Iterator[Message]:
    trace, parent, at_ns = trace_id(launch, step), span_id(launch, step, rank, 0), at_ms * 1_000_000
    yield (
        "span",
        {
            "start_ns": at_ns,
            "duration_ns": 1_000_000_000,
            "name": "step",
            "trace_id": trace,
            "span_id": parent,
            "step": step,
        },
    )
    for number, name in enumerate(("data", "forward", "backward", "sync", "optimizer"), 1):
        batch = {"pyrometer.batch": f"0/0/{step}", "pyrometer.micro_batch": 0} if name == "forward" else {}
        yield (
            "span",
            {
                "start_ns": at_ns + number * 100_000_000,
                "duration_ns": 99_999_999,
                "name": name,
                "trace_id": trace,
                "span_id": span_id(launch, step, rank, number),
                "parent_id": parent,
                "step": step,
                "attributes": batch,
            },
        )


def steps(launch: str, rank: int, from_ms: int, to_ms: int, first_step: int) -> Iterator[Message]:
    """Windows of ten steps in ten seconds, with their loss, and the spans of every hundredth step."""
    for number, at_ms in enumerate(range(from_ms, to_ms, 10_000)):
        step = first_step + 10 * number
        yield window(at_ms, step, comm_ms=400 + 200 * rank)
        if rank == 0:
            loss = math.nan if launch == SECOND and step >= SAVED_STEP + 100 else 4.0 / (1 + step)
            yield "metric", {"time_ms": at_ms + 9_999, "name": "loss", "value": loss, "step": step + 9, "goal": "min"}
        if number % 10 == 0:
            yield from step_spans(launch, rank, step, at_ms)
            yield (
                "batch",
                {
                    "time_ms": at_ms,
                    "loader": 0,
                    "epoch": 0,
                    "send_index": step,
                    "micro_batch": 0,
                    "step": step,
                    "dataset": "tiny",
                    "samples": [8 * step + rank, f"id-{step}"],
                },
            )


def event(at_ms: int, kind: str, **more: object) -> Message:
    return "event", {"time_ms": at_ms, "kind": kind, **more}


def first_attempt(rank: int, t0: int) -> Iterator[Message]:
    yield "run", {"time_ms": t0 + 1_000}
    yield event(t0 + 5_000, "rendezvous", duration_ms=3_000)
    yield event(t0 + 15_000, "compiled", duration_ms=9_000)
    yield "run", {"time_ms": t0 + FIRST_STEP, "first_step_ms": t0 + FIRST_STEP}
    yield from steps(FIRST, rank, t0 + FIRST_STEP, t0 + HANGS, 0)
    if rank == 0:
        yield event(t0 + 2_000, "configured", reason="digest-1")
        at_ms = t0 + FIRST_STEP + SAVED_STEP * 1_000
        yield event(at_ms, "checkpoint_saved", duration_ms=900, step=SAVED_STEP, message=CHECKPOINT)
    yield event(t0 + HANGS, "stuck", step=300, reason="data" if rank == 1 else "comm", message=STACK)
    yield "run", {"time_ms": t0 + KILLED, "ended_ms": t0 + KILLED, "outcome": "killed"}


def second_attempt(rank: int, t0: int) -> Iterator[Message]:
    yield "run", {"time_ms": t0 + AGAIN + 1_000}
    yield event(t0 + AGAIN + 8_000, "restored", duration_ms=700, message=CHECKPOINT)
    yield "run", {"time_ms": t0 + AGAIN_STEP, "first_step_ms": t0 + AGAIN_STEP}
    yield from steps(SECOND, rank, t0 + AGAIN_STEP, t0 + ENDS - 1_000, SAVED_STEP)
    if rank == 0:
        yield event(t0 + DIVERGES, "nonfinite_loss", step=300)
        yield event(t0 + ENDS - 500, "exception", reason="ValueError", message="loss is nan")
    yield "run", {"time_ms": t0 + ENDS, "ended_ms": t0 + ENDS, "outcome": "failed" if rank == 0 else "succeeded"}


def story(t0: int, **more: object) -> list[Part]:
    """All messages: one part per rank and attempt."""
    return [
        *((identity(FIRST, rank, t0, **more), list(first_attempt(rank, t0))) for rank in (0, 1)),
        *((identity(SECOND, rank, t0 + AGAIN, **more), list(second_attempt(rank, t0))) for rank in (0, 1)),
    ]
