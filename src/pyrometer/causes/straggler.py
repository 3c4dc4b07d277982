"""`straggler`: the other ranks wait for a slow rank in every step. The slow rank is the one that waits least."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from statistics import median, mode
from typing import Any, NamedTuple

from pyrometer.findings.episodes import EPISODE_GAP_MS
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Elapsed, Proposal, Scope
from pyrometer.identify.runs.rank_locations import CPU
from pyrometer.model.human import duration
from pyrometer.model.states import CLAIMS

MIN_SHARE = 0.05  # of the time of the waiting ranks
MOSTLY = 0.5  # of the windows of a stretch have the same slowest rank; of the time of a phase is garbage collection
MIN_STEPS = 6  # fewer are not a pattern
WARM_UP_MS = 10_000  # after the first step, or a tenth of a short run: caches fill
PHASES = ("data", "copy", "forward", "backward", "garbage", "optimizer")


class _Stretch(NamedTuple):
    """A stretch in which an attempt waited mostly for one of its ranks."""

    owner_uid: str
    run: str
    attempt: int
    from_ms: int
    to_ms: int
    rank: int
    waited_ms: int
    whole_ms: int  # of the waiting ranks
    detectable_ms: int  # the end of the first window


class _SlowRank(NamedTuple):
    """The slot of the slow rank, and the phase in which it loses time."""

    node_uid: str
    slot_index: int
    phase: str | None
    behind_ms: int  # per step


# For each window of a run that waits noticeably: the rank that waits least is the one that the others wait for.
_WAITING = """
SELECT coalesce(workload_uid, holder_name.pod_uid) AS owner_uid, run, attempt, min(time_ms), max(to_ms),
    arg_min(rank, comm_ms), sum(comm_ms) - count(*) * min(comm_ms) AS waited,
    sum(to_ms - time_ms) * (count(*) - 1) // count(*) AS whole, steps,
    -- a rank that saves or evaluates for all is not slow
    greatest(count(*) * arg_min(aside_ms, comm_ms) - sum(aside_ms), 0) AS for_all
FROM (
    SELECT *, coalesce(checkpoint_ms, 0) + coalesce(evaluate_ms, 0) + coalesce(compile_ms, 0) AS aside_ms
    FROM step_window
) step_window JOIN holder_name USING (pod_uid)
WHERE list_contains($1, coalesce(workload_uid, holder_name.pod_uid)) AND steps > 0 AND time_ms < $3 AND to_ms > $2
GROUP BY owner_uid, run, attempt, first_step, steps
HAVING count(*) > 1 AND waited - for_all >= $4 * whole
ORDER BY 1, 2, 3, 4
"""


# How long the steps of each stretch took, and would have without its slowest rank. What a rank does itself is its time
# less its exposed communication; a step takes the time of the slowest rank for that, plus the communication of all.
ELAPSED = """
WITH window_of AS (
    SELECT number, max(own_ms) + min(comm_ms) AS ms,
        coalesce(max(own_ms) FILTER (rank != slowest), max(own_ms)) + min(comm_ms) AS without_ms
    FROM (
        SELECT stretch.*, rank, first_step, steps, comm_ms, time_ms, step_window.to_ms AS end_ms,
            greatest(step_window.to_ms - time_ms - comm_ms, 0) AS own_ms
        FROM step_window JOIN stretch USING (run, attempt)
        WHERE steps > 0 AND time_ms < stretch.to_ms AND step_window.to_ms > stretch.from_ms
    )
    GROUP BY number, first_step, steps HAVING min(time_ms) >= any_value(from_ms) AND max(end_ms) <= any_value(to_ms)
)
SELECT number, sum(ms)::BIGINT, sum(without_ms)::BIGINT FROM window_of GROUP BY number
"""


class _Window(NamedTuple):
    """Steps in which a run waited for one of its ranks."""

    owner_uid: str
    run: str
    attempt: int
    from_ms: int
    to_ms: int
    slowest: int
    waited_ms: int
    whole_ms: int  # of the waiting ranks
    steps: int


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each stretch in which a workload waited for one of its ranks."""
    # the share is of a longer time than a minute
    suspects = sorted(evidence.worth("straggler_wait") & evidence.owners("straggler_wait", MIN_SHARE / 4))
    if not suspects:
        return
    windows = [_Window(*row[:-1]) for row in evidence.ask(_WAITING, suspects, *evidence.window, MIN_SHARE)]
    warm = evidence.ask(
        "SELECT run, attempt, first_ms + least((ended_ms - first_ms) // 10, $1) FROM (SELECT run, attempt, "
        "max(first_step_ms) AS first_ms, CASE WHEN bool_and(ended_ms IS NOT NULL) THEN max(ended_ms) END AS ended_ms "
        "FROM the_run GROUP BY run, attempt) WHERE first_ms IS NOT NULL",
        WARM_UP_MS,
    )
    warm_ms = {(run, attempt): until_ms for run, attempt, until_ms in warm}
    windows = [window for window in windows if window.to_ms > warm_ms.get((window.run, window.attempt), 0)]
    attempts = groupby(windows, key=lambda window: window[:3])
    stretches = [_stretch(evidence, around) for _, of_attempt in attempts for around in _stretches(list(of_attempt))]
    if not stretches:
        return
    _open(evidence, stretches)
    elapsed = {number: Elapsed(ms, without_ms) for number, ms, without_ms in evidence.ask(ELAPSED)}
    for number, (stretch, slowest) in enumerate(zip(stretches, _slowest(evidence, len(stretches)), strict=True)):
        if slowest is not None:
            yield _proposal(evidence, stretch, slowest, elapsed.get(number))


def _stretches(windows: list[_Window]) -> Iterator[list[_Window]]:
    """Windows of one attempt in which mostly the same rank was slowest.

    If it is a different rank each time there is no straggler: some rank is always last by chance.
    """
    for rank in sorted({window.slowest for window in windows}):
        own = [window for window in windows if window.slowest == rank]
        begins = [0] + [i for i in range(1, len(own)) if own[i].from_ms - own[i - 1].to_ms > EPISODE_GAP_MS]
        for first, after in pairwise([*begins, len(own)]):
            from_ms, to_ms = own[first].from_ms, own[after - 1].to_ms
            around = [window for window in windows if window.from_ms < to_ms and window.to_ms > from_ms]
            if after - first >= MOSTLY * len(around) and sum(window.steps for window in around) >= MIN_STEPS:
                yield around


def _stretch(evidence: Evidence, windows: list[_Window]) -> _Stretch:
    return _Stretch(
        *windows[0][:3],
        from_ms=max(windows[0].from_ms, evidence.window.from_ms),
        to_ms=min(windows[-1].to_ms, evidence.window.to_ms),
        rank=mode(window.slowest for window in windows),
        waited_ms=sum(window.waited_ms for window in windows),
        whole_ms=sum(window.whole_ms for window in windows),
        detectable_ms=windows[0].to_ms,
    )


def _open(evidence: Evidence, stretches: list[_Stretch]) -> None:
    """Create the table `stretch`, with numbers."""
    evidence.ask(
        "CREATE OR REPLACE TEMP TABLE stretch AS SELECT unnest($1) AS number, unnest($2) AS run, "
        "unnest($3) AS attempt, unnest($4) AS slowest, unnest($5) AS from_ms, unnest($6) AS to_ms",
        list(range(len(stretches))),
        [s.run for s in stretches],
        [s.attempt for s in stretches],
        [s.rank for s in stretches],
        [s.from_ms for s in stretches],
        [s.to_ms for s in stretches],
    )


def _proposal(evidence: Evidence, stretch: _Stretch, slowest: _SlowRank, elapsed: Elapsed | None) -> Proposal:
    from_ms, to_ms, rank = stretch.from_ms, stretch.to_ms, stretch.rank
    share = stretch.waited_ms / stretch.whole_ms
    node = evidence.node(slowest.node_uid)
    reasons = [
        f"the other ranks spent {round(100 * share)}% of their time waiting for it",
        f"its gradients were ready {slowest.behind_ms} ms per step later than theirs",
    ]
    if slowest.phase:
        reasons.append(f"it loses this time in {slowest.phase}")
    if elapsed is not None and duration(elapsed.without_ms) != duration(elapsed.ms):
        reasons.append(
            f"without rank {rank}, its {duration(elapsed.ms)} of steps would have taken {duration(elapsed.without_ms)}"
        )
    return Proposal(
        cause="straggler",
        owner_uid=stretch.owner_uid,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["straggler"],
        scope=tuple(Scope(pod, from_ms, to_ms) for pod in evidence.pods(stretch.owner_uid)),
        headline=(f"waited for rank {rank} on {node} for {duration(to_ms - from_ms)}, from {evidence.time(from_ms)}"),
        evidence=tuple(reasons),
        suggestion=_suggestion(rank, node, slowest),
        culprit={"rank": rank, "node": node, "gpu": slowest.slot_index, "phase": slowest.phase},
        confidence=0.9,
        detectable_ms=stretch.detectable_ms,
        elapsed=elapsed,
    )


def _slowest(evidence: Evidence, stretches: int) -> Iterator[_SlowRank | None]:
    """The slow rank of each stretch; None if there is no other rank."""
    sums = ", ".join(f"sum({phase}_ms)" for phase in PHASES)
    rows = evidence.ask(
        f"""
        SELECT number, rank != slowest, any_value(node_uid), any_value(slot_index), sum(steps), sum(comm_ms), {sums}
        FROM step_window JOIN stretch USING (run, attempt)
        WHERE steps > 0 AND time_ms < stretch.to_ms AND step_window.to_ms > stretch.from_ms
        GROUP BY number, rank, slowest ORDER BY 1, 2, rank
        """
    )
    ranks: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for number, _, *rank in rows:
        ranks[number].append(tuple(rank))
    for number in range(stretches):
        yield _compared(*ranks[number]) if len(ranks[number]) > 1 else None


def _compared(slowest: tuple[Any, ...], *others: tuple[Any, ...]) -> _SlowRank:
    """How far a rank is behind the median of the others, and in which phase most."""
    node_uid, slot_index, steps, *sums = slowest
    communicates, *more = (
        ms / steps - median([other[i] / other[2] for other in others]) for i, ms in enumerate(sums, start=3)
    )
    behind_ms, excess = round(-communicates), dict(zip(PHASES, more, strict=True))
    worst = max(excess, key=lambda phase: excess[phase])
    if excess["garbage"] >= MOSTLY * excess[worst]:  # it happens inside another phase, which then looks as slow
        worst = "garbage"
    return _SlowRank(node_uid, slot_index, worst if excess[worst] > behind_ms / 4 else None, behind_ms)


def _suggestion(rank: int, node: str | None, slowest: _SlowRank) -> str:
    if slowest.phase == "garbage":
        return "Call gc.freeze() before training, or collect garbage on every rank at the same step."
    if slowest.phase == "data":
        where = "the disk, CPU and network used by its data loader"
    elif slowest.node_uid.startswith(CPU):
        where = "what its program does differently from the others, and what else runs"
    elif slowest.phase == "copy":
        where = "the PCIe link and host memory"
    else:
        where = "the clocks, power and temperature of its GPU, and what else runs"
    return f"Check {where} on {node}, or run rank {rank} on another node."
