"""From the ring to messages: steps folded into windows, kept steps as spans. Off the hot path; also after a death."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pyrometer.train import ring as columns
from pyrometer.train.ring import CHECKPOINT, COMM, COMPILE, EVALUATE, FORWARD, GARBAGE, MEASURED, OTHER, PHASES

if TYPE_CHECKING:
    from pyrometer.train.device import Timed
    from pyrometer.train.lineage import Used
    from pyrometer.train.recorder import Kept
    from pyrometer.train.ring import Ring

Message = tuple[str, dict[str, Any]]
LEAST_COMPARED = 100  # steps of a kind, of which the middle one is taken
LONGEST_COMPARED_NS = 5_000_000  # longer steps differ by more than marks cost, whatever the reason
_SPANS = tuple("sync" if name == "comm" else name for name in PHASES)


def window(ring: Ring, first: int, after: int, timed: Sequence[Timed] = ()) -> dict[str, Any] | None:
    """The steps from `first` to before `after` as one window; None when the ring has no longer all of them."""
    first = max(first, ring.view[columns.COUNT] - ring.rows + 1)
    if first >= after or not ring.column(columns.BEGIN_NS, first, first + 1)[0]:
        return None
    begins, ends = ring.column(columns.BEGIN_NS, first, after), ring.column(columns.END_NS, first, after)
    by_phase = [ring.column(phase, first, after) for phase in range(MEASURED)]
    flags = ring.column(columns.FLAGS, first, after)
    marked = [place for place, flag in enumerate(flags) if not flag & columns.LIGHT]
    if len(marked) == len(flags) or not marked:
        marked_share = 1.0
        amounts_ms: list[float] = [sum(of_phase) / 1e6 for of_phase in by_phase]
    else:
        marked_share = len(marked) / len(flags)
        amounts_ms = _as_in_marked(by_phase, marked)
    others = zip(*(by_phase[phase] for phase in (CHECKPOINT, EVALUATE, COMPILE)), strict=True)
    took = sorted(end - begin - sum(other) for begin, end, other in zip(begins, ends, others, strict=True))
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
    }
    for phase, name in enumerate(PHASES[:MEASURED]):
        if phase != OTHER:
            found[f"{name}_ms"] = round(amounts_ms[phase])
    for column, name in ((columns.SAMPLES, "samples"), (columns.TOKENS, "tokens")):
        total = sum(ring.column(column, first, after))
        if total:
            found[name] = round(total / marked_share)
    return found


def usual_ns(ring: Ring, first: int, after: int) -> int:
    """How long these steps take, as a rule."""
    begins, ends = ring.column(columns.BEGIN_NS, first, after), ring.column(columns.END_NS, first, after)
    took = sorted(end - begin for begin, end in zip(begins, ends, strict=True))
    return took[len(took) // 2]


def cost_of_marks_ns(ring: Ring, first: int, after: int) -> int | None:
    """What marks cost, by how much longer marked steps take than others; None where that would be a guess."""
    first = max(first, ring.view[columns.COUNT] - ring.rows + 1)
    flags = ring.column(columns.FLAGS, first, after)
    ends = zip(ring.column(columns.BEGIN_NS, first, after), ring.column(columns.END_NS, first, after), strict=True)
    lengths: tuple[list[int], list[int]] = ([], [])
    for flag, (begin, end) in zip(flags, ends, strict=True):
        lengths[flag & columns.LIGHT > 0].append(end - begin)
    if min(map(len, lengths)) < LEAST_COMPARED:
        return None
    marked, others = (sorted(of_kind)[len(of_kind) // 2] for of_kind in lengths)
    return max(marked - others, 0) if others < LONGEST_COMPARED_NS else None


_NO_STEP = (CHECKPOINT, EVALUATE, COMPILE)  # between steps, or before them


def _as_in_marked(by_phase: list[array[int]], marked: list[int]) -> list[float]:
    """The time of all steps, divided as that of the marked ones is; what is no part of steps is as it was."""
    whole = [sum(of_phase) for of_phase in by_phase]
    seen = [sum(of_phase[place] for place in marked) for of_phase in by_phase]
    of_steps = sum(amount for phase, amount in enumerate(whole) if phase not in _NO_STEP)
    of_marked = sum(amount for phase, amount in enumerate(seen) if phase not in _NO_STEP) or 1
    scale = of_steps / of_marked
    return [(whole[phase] if phase in _NO_STEP else scale * seen[phase]) / 1e6 for phase in range(MEASURED)]


def _as_on_device(host_ms: list[float], timed: Sequence[Timed]) -> list[float]:
    """The host's time in phases of a step, divided as the sampled steps were on the GPU: the host runs ahead of it."""
    seen = [sum(step.amounts_ms[phase] for step in timed) for phase in range(MEASURED)]
    whole = sum(amount for phase, amount in enumerate(seen) if phase not in _NO_STEP)
    left = sum(amount for phase, amount in enumerate(host_ms) if phase not in _NO_STEP)
    if whole <= 0:
        return host_ms
    return [host_ms[phase] if phase in _NO_STEP else left * seen[phase] / whole for phase in range(MEASURED)]


def rest(ring: Ring) -> list[Message]:
    """What a rank that is gone had not handed on."""
    first, after = max(ring.view[columns.FOLDED], 1), ring.view[columns.COUNT]
    if first >= after:
        return []
    last = window(ring, first, after)
    ring.view[columns.FOLDED] = after
    return [] if last is None else [("window", last)]


# -- spans -------------------------------------------------------------------------------------------------------------


def trace_id(launch: str, step: int) -> str:
    """The id that all ranks give to a step."""
    return hashlib.sha256(f"{launch}:{step}".encode()).hexdigest()[:32]


def span_id(launch: str, step: int, rank: int, number: int) -> str:
    """The id of a piece of a rank's step."""
    return hashlib.sha256(f"{launch}:{step}:{rank}:{number}".encode()).hexdigest()[:16]


def spans(ring: Ring, kept: Kept, used: Iterable[Used], launch: str, rank: int) -> list[Message]:
    """A step that was kept whole, as spans: the step, and under it what it was made of."""
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
    """Neighbouring marks of one phase as one piece, inside of the step; collections do not cut a phase in two."""
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
