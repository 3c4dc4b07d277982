"""Converts a ring to messages: steps to windows, kept steps to spans. Off the hot path, and after a rank has died."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import sub
from typing import TYPE_CHECKING, Any

from pyrometer.train.steps import ring as columns
from pyrometer.train.steps.ring import CHECKPOINT, COMM, COMPILE, EVALUATE, FORWARD, GARBAGE, MEASURED, OTHER, PHASES

if TYPE_CHECKING:
    from pyrometer.train.steps.gpu_time import TimedStep
    from pyrometer.train.steps.recorder import KeptStep
    from pyrometer.train.steps.ring import Ring
    from pyrometer.train.steps.sample_lineage import UsedBatch

Message = tuple[str, dict[str, Any]]
MIN_COMPARED_STEPS = 100  # marked and unmarked steps; their medians are compared
MAX_COMPARED_STEPS = 1_000
MAX_COMPARED_NS = 5_000_000  # longer steps vary by more than marks cost
# The step lengths of a window. These limits allow 840 different lengths: at most 16 kB of JSON, and usually less than
# 100 bytes.
RELATIVE_ERROR = 0.015  # of a length, in windows with more than a few steps
MAX_EXACT_STEPS = 8
MAX_STEP_US = 86_400_000_000  # one day
_LOG_WIDTH = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
_BETWEEN_STEPS = (CHECKPOINT, EVALUATE, COMPILE)  # phases that are not part of a step's length
_SPANS = tuple("sync" if name == "comm" else name for name in PHASES)


def window(ring: Ring, first: int, after: int, timed: Sequence[TimedStep] = ()) -> dict[str, Any] | None:
    """Folds the steps from `first` to before `after` into a window; None if the ring does not have all of them any
    more."""
    first = max(first, ring.view[columns.COUNT] - ring.rows + 1)
    if first >= after or not ring.column(columns.BEGIN_NS, first, first + 1)[0]:
        return None
    begins, ends = ring.column(columns.BEGIN_NS, first, after), ring.column(columns.END_NS, first, after)
    marked = _marked(ring, first, after)
    lengths = list(map(sub, ends, begins))
    between = {phase: ring.column(phase, first, after) for phase in _BETWEEN_STEPS}
    if len(marked) in (0, after - first):
        marked_share = 1.0
        amounts_ms = [sum(between.get(phase) or ring.column(phase, first, after)) / 1e6 for phase in range(MEASURED)]
    else:
        marked_share = len(marked) / (after - first)
        amounts_ms = _as_in_marked(ring, marked, sum(lengths), {phase: sum(took) for phase, took in between.items()})
    for of_phase in between.values():
        if any(of_phase):
            lengths = list(map(sub, lengths, of_phase))
    took = sorted(lengths)
    on_device = [step for step in timed if first <= step.number < after]
    if on_device:
        amounts_ms = _as_on_device(amounts_ms, on_device)
    first_step = ring.view[columns.FIRST_STEP]
    found: dict[str, Any] = {
        "time_ms": ring.wall_ns(begins[0]) // 1_000_000,
        "to_ms": ring.wall_ns(ends[-1]) // 1_000_000,
        "first_step": first_step + first,
        "steps": after - first,
        "step_p50_us": took[len(took) // 2] // 1000,
        "step_max_us": took[-1] // 1000,
        "step_lengths": step_lengths(took),
    }
    for phase, name in enumerate(PHASES[:MEASURED]):
        if phase != OTHER:
            found[f"{name}_ms"] = round(amounts_ms[phase])
    for column, name in ((columns.SAMPLES, "samples"), (columns.TOKENS, "tokens")):
        seen = (ring.value(step, column) for step in marked) if marked_share < 1 else ring.column(column, first, after)
        total = sum(seen)
        if total:
            found[name] = round(total / marked_share)
    return found


def step_lengths(took_ns: Sequence[int]) -> list[int]:
    """The lengths of steps in microseconds, each followed by how many steps had this length.

    Lists of several windows or ranks are merged by adding the counts. With more than a few steps, lengths are rounded
    to values that are as far apart as `RELATIVE_ERROR` allows.
    """
    lengths = [min(max(took // 1000, 1), MAX_STEP_US) for took in took_ns]
    if len(lengths) > MAX_EXACT_STEPS:
        cells = Counter([math.floor(math.log(us) / _LOG_WIDTH) for us in lengths])
        counts = Counter[int]()
        for cell, steps in cells.items():  # the value with the same relative distance from both edges of its cell
            counts[max(round(math.exp(cell * _LOG_WIDTH) * (1 + RELATIVE_ERROR)), 1)] += steps
    else:
        counts = Counter(lengths)
    return [number for us in sorted(counts) for number in (us, counts[us])]


def median_step_ns(ring: Ring, first: int, after: int) -> int:
    """The median length of these steps."""
    begins, ends = ring.column(columns.BEGIN_NS, first, after), ring.column(columns.END_NS, first, after)
    took = sorted(end - begin for begin, end in zip(begins, ends, strict=True))
    return took[len(took) // 2]


def cost_of_marks_ns(ring: Ring, first: int, after: int) -> int | None:
    """How much longer marked steps take than unmarked ones; None if there are too few to tell."""
    first = max(first, ring.view[columns.COUNT] - ring.rows + 1)
    marked = _marked(ring, first, after)
    others = sorted(set(range(first, after, max(1, (after - first) // MAX_COMPARED_STEPS))).difference(marked))
    if min(len(marked), len(others)) < MIN_COMPARED_STEPS:
        return None
    of_marked, of_others = (
        sorted(ring.value(step, columns.END_NS) - ring.value(step, columns.BEGIN_NS) for step in steps)[len(steps) // 2]
        for steps in (marked[-MAX_COMPARED_STEPS:], others)
    )
    return max(of_marked - of_others, 0) if of_others < MAX_COMPARED_NS else None


def _marked(ring: Ring, first: int, after: int) -> list[int]:
    """The steps whose phases were recorded, not only their length."""
    flags = ring.column(columns.FLAGS, first, after)
    return [first + place for place, flag in enumerate(flags) if not flag & columns.LIGHT]


def _as_in_marked(ring: Ring, marked: list[int], whole_ns: int, between_ns: dict[int, int]) -> list[float]:
    """Divides the time of all steps into phases like that of the marked steps. Phases between steps keep their time."""
    seen = [sum(ring.value(step, phase) for step in marked) for phase in range(MEASURED)]
    of_steps = whole_ns - sum(between_ns.values())  # the phases of a step add up to its length
    of_marked = sum(amount for phase, amount in enumerate(seen) if phase not in _BETWEEN_STEPS) or 1
    scale = of_steps / of_marked
    return [(between_ns.get(phase, scale * seen[phase])) / 1e6 for phase in range(MEASURED)]


def _as_on_device(host_ms: list[float], timed: Sequence[TimedStep]) -> list[float]:
    """Divides the host's time into phases like the sampled steps on the GPU, because the host runs ahead of the GPU."""
    seen = [sum(step.amounts_ms[phase] for step in timed) for phase in range(MEASURED)]
    whole = sum(amount for phase, amount in enumerate(seen) if phase not in _BETWEEN_STEPS)
    left = sum(amount for phase, amount in enumerate(host_ms) if phase not in _BETWEEN_STEPS)
    if whole <= 0:
        return host_ms
    return [host_ms[phase] if phase in _BETWEEN_STEPS else left * seen[phase] / whole for phase in range(MEASURED)]


def unfolded_windows(ring: Ring) -> list[Message]:
    """The window of the steps that a dead rank had not published."""
    first, after = max(ring.view[columns.FOLDED], 1), ring.view[columns.COUNT]
    if first >= after:
        return []
    last = window(ring, first, after)
    ring.view[columns.FOLDED] = after
    return [] if last is None else [("window", last)]


# -- Spans -------------------------------------------------------------------------------------------------------------


def trace_id(launch: str, step: int) -> str:
    """The trace ID of a step, which is the same on all ranks."""
    return hashlib.sha256(f"{launch}:{step}".encode()).hexdigest()[:32]


def span_id(launch: str, step: int, rank: int, number: int) -> str:
    """The span ID of a part of a rank's step."""
    return hashlib.sha256(f"{launch}:{step}:{rank}:{number}".encode()).hexdigest()[:16]


def spans(ring: Ring, kept: KeptStep, used: Iterable[UsedBatch], launch: str, rank: int) -> list[Message]:
    """A kept step as spans: the step, and below it its phases and named spans."""
    step = ring.view[columns.FIRST_STEP] + kept.number
    trace, parent = trace_id(launch, step), span_id(launch, step, rank, 0)
    batches = [one for one in used if one.number == kept.number]
    found: list[Message] = []

    def add(number: int, name: str, from_ns: int, to_ns: int, attributes: dict[str, Any]) -> None:
        span: dict[str, Any] = {
            "start_ns": ring.wall_ns(from_ns),
            "duration_ns": to_ns - from_ns,
            "name": name,
            "trace_id": trace,
            "span_id": span_id(launch, step, rank, number),
            "step": step,
        }
        if number:
            span["parent_id"] = parent
        if attributes:
            span["attributes"] = attributes
        found.append(("span", span))

    add(0, "step", kept.begin_ns, kept.end_ns, {"pyrometer.slow": True} if kept.slow else {})
    number = micro_batch = 0
    for phase, from_ns, to_ns in _joined(kept.marks, kept.begin_ns, kept.end_ns):
        if phase == OTHER:
            continue
        number += 1
        attributes: dict[str, Any] = {}
        if phase == FORWARD:
            attributes["pyrometer.micro_batch"] = micro_batch
            for one in batches:
                if one.micro_batch == micro_batch:
                    drawn = one.drawn
                    attributes["pyrometer.batch"] = f"{drawn.loader.number}/{drawn.epoch}/{drawn.send_index}"
                    break
            micro_batch += 1
        add(number, _SPANS[phase], from_ns, to_ns, attributes)
    for name, from_ns, to_ns in kept.named:
        number += 1
        add(number, name, from_ns, to_ns, {"pyrometer.named": True})
    return found


def _joined(marks: list[tuple[int, int, int]], begin_ns: int, end_ns: int) -> list[tuple[int, int, int]]:
    """Merges neighboring marks of one phase, within the step. A garbage collection does not split a phase."""
    pieces: list[tuple[int, int, int]] = []
    for phase, from_ns, to_ns in marks:
        from_ns, to_ns = max(from_ns, begin_ns), min(to_ns, end_ns)
        if to_ns <= from_ns:
            continue
        if pieces and pieces[-1][0] == phase and phase not in (GARBAGE, COMM):
            pieces[-1] = (phase, pieces[-1][1], to_ns)
        else:
            pieces.append((phase, from_ns, to_ns))
    return pieces
