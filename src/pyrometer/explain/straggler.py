"""`straggler`: ranks that wait in every step for one slow rank. The slow one is the rank that waits least."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from statistics import median, mode
from typing import Any, NamedTuple

from pyrometer.explain.episodes import EPISODE_GAP_MS
from pyrometer.explain.findings import Elapsed, Proposal, Scope
from pyrometer.explain.night import Night
from pyrometer.model.human import duration
from pyrometer.identify.rank_locations import CPU
from pyrometer.model.states import CLAIMS

WORTH_NAMING = 0.05  # of the time of those that wait
MOSTLY = 0.5  # of the windows of a stretch have the same rank last; of the time of a phase is garbage collection
LEAST_STEPS = 6  # fewer are a hiccup
WARM_UP_MS = 10_000  # after the first step, or a tenth of a short run: caches fill, buffers are found
PHASES = ("data", "copy", "forward", "backward", "garbage", "optimizer")


class _Stretch(NamedTuple):
    """A time in which an attempt waited mostly for one of its ranks."""

    owner_uid: str
    run: str
    attempt: int
    from_ms: int
    to_ms: int
    rank: int
    waited_ms: int
    whole_ms: int  # of those that wait
    known_ms: int  # the end of the first window


class _Slowest(NamedTuple):
    """Where the rank is that the others wait for, and in which phase it loses its time."""

    node_uid: str
    slot_index: int
    phase: str | None
    behind_ms: int  # a step


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
# less its exposed communication; a step takes as long as the slowest of them does that, and then what all communicate.
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
    whole_ms: int  # of those that wait
    steps: int


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each stretch in which a workload waited for one of its ranks."""
    # the share is of a longer time than a minute
    suspects = sorted(night.worth("straggler_wait") & night.owners("straggler_wait", WORTH_NAMING / 4))
    if not suspects:
        return
    windows = [_Window(*row[:-1]) for row in night.ask(_WAITING, suspects, *night.window, WORTH_NAMING)]
    warm = night.ask(
        "SELECT run, attempt, first_ms + least((ended_ms - first_ms) // 10, $1) FROM (SELECT run, attempt, "
        "max(first_step_ms) AS first_ms, CASE WHEN bool_and(ended_ms IS NOT NULL) THEN max(ended_ms) END AS ended_ms "
        "FROM the_run GROUP BY run, attempt) WHERE first_ms IS NOT NULL",
        WARM_UP_MS,
    )
    warm_ms = {(run, attempt): until_ms for run, attempt, until_ms in warm}
    windows = [window for window in windows if window.to_ms > warm_ms.get((window.run, window.attempt), 0)]
    attempts = groupby(windows, key=lambda window: window[:3])
    stretches = [_stretch(night, around) for _, of_attempt in attempts for around in _stretches(list(of_attempt))]
    if not stretches:
        return
    _open(night, stretches)
    elapsed = {number: Elapsed(ms, without_ms) for number, ms, without_ms in night.ask(ELAPSED)}
    for number, (stretch, slowest) in enumerate(zip(stretches, _slowest(night, len(stretches)), strict=True)):
        if slowest is not None:
            yield _proposal(night, stretch, slowest, elapsed.get(number))


def _stretches(windows: list[_Window]) -> Iterator[list[_Window]]:
    """Windows of one attempt in which mostly the same rank was waited for. Where it is another one each time, there is
    no straggler: chance makes somebody the last in every step."""
    for rank in sorted({window.slowest for window in windows}):
        own = [window for window in windows if window.slowest == rank]
        begins = [0] + [i for i in range(1, len(own)) if own[i].from_ms - own[i - 1].to_ms > EPISODE_GAP_MS]
        for first, after in pairwise([*begins, len(own)]):
            from_ms, to_ms = own[first].from_ms, own[after - 1].to_ms
            around = [window for window in windows if window.from_ms < to_ms and window.to_ms > from_ms]
            if after - first >= MOSTLY * len(around) and sum(window.steps for window in around) >= LEAST_STEPS:
                yield around


def _stretch(night: Night, windows: list[_Window]) -> _Stretch:
    return _Stretch(
        *windows[0][:3],
        from_ms=max(windows[0].from_ms, night.window.from_ms),
        to_ms=min(windows[-1].to_ms, night.window.to_ms),
        rank=mode(window.slowest for window in windows),
        waited_ms=sum(window.waited_ms for window in windows),
        whole_ms=sum(window.whole_ms for window in windows),
        known_ms=windows[0].to_ms,
    )


def _open(night: Night, stretches: list[_Stretch]) -> None:
    """The stretches as a table, numbered."""
    night.ask(
        "CREATE OR REPLACE TEMP TABLE stretch AS SELECT unnest($1) AS number, unnest($2) AS run, "
        "unnest($3) AS attempt, unnest($4) AS slowest, unnest($5) AS from_ms, unnest($6) AS to_ms",
        list(range(len(stretches))), [s.run for s in stretches], [s.attempt for s in stretches],
        [s.rank for s in stretches], [s.from_ms for s in stretches], [s.to_ms for s in stretches],
    )  # fmt: skip


def _proposal(night: Night, stretch: _Stretch, slowest: _Slowest, elapsed: Elapsed | None) -> Proposal:
    from_ms, to_ms, rank = stretch.from_ms, stretch.to_ms, stretch.rank
    share = stretch.waited_ms / stretch.whole_ms
    node = night.node(slowest.node_uid)
    evidence = [
        f"the other ranks spent {round(100 * share)}% of their time waiting for it",
        f"its gradients were ready {slowest.behind_ms} ms a step after theirs",
    ]
    if slowest.phase:
        evidence.append(f"it loses that time in {slowest.phase}")
    if elapsed is not None and duration(elapsed.without_ms) != duration(elapsed.ms):
        evidence.append(
            f"without rank {rank} its {duration(elapsed.ms)} of steps would have taken {duration(elapsed.without_ms)}"
        )
    return Proposal(
        cause="straggler",
        owner_uid=stretch.owner_uid,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["straggler"],
        scope=tuple(Scope(pod, from_ms, to_ms) for pod in night.pods(stretch.owner_uid)),
        headline=(f"waited for rank {rank} on {node} for {duration(to_ms - from_ms)}, from {night.time(from_ms)} on"),
        evidence=tuple(evidence),
        suggestion=_suggestion(rank, node, slowest),
        culprit={"rank": rank, "node": node, "gpu": slowest.slot_index, "phase": slowest.phase},
        confidence=0.9,
        known_ms=stretch.known_ms,
        elapsed=elapsed,
    )


def _slowest(night: Night, stretches: int) -> Iterator[_Slowest | None]:
    """The rank that is waited for in each stretch; None where there is no other."""
    sums = ", ".join(f"sum({phase}_ms)" for phase in PHASES)
    rows = night.ask(
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


def _compared(slowest: tuple[Any, ...], *others: tuple[Any, ...]) -> _Slowest:
    """How far a rank is behind the median of the others, and in which phase it is furthest behind."""
    node_uid, slot_index, steps, *sums = slowest
    communicates, *more = (
        ms / steps - median([other[i] / other[2] for other in others]) for i, ms in enumerate(sums, start=3)
    )
    behind_ms, excess = round(-communicates), dict(zip(PHASES, more, strict=True))
    worst = max(excess, key=lambda phase: excess[phase])
    if excess["garbage"] >= MOSTLY * excess[worst]:  # it happens inside of another phase, which then looks as slow
        worst = "garbage"
    return _Slowest(node_uid, slot_index, worst if excess[worst] > behind_ms / 4 else None, behind_ms)


def _suggestion(rank: int, node: str | None, slowest: _Slowest) -> str:
    if slowest.phase == "garbage":
        return "Call gc.freeze() before training, or collect garbage at the same step on every rank."
    if slowest.phase == "data":
        where = "the disk, CPU and network that its loader uses"
    elif slowest.node_uid.startswith(CPU):
        where = "what its program does there that the others' do not, and what else runs"
    elif slowest.phase == "copy":
        where = "the PCIe link and host memory"
    else:
        where = "clocks, power and temperature of its GPU, and what else runs"
    return f"Look at {where} on {node}; or run rank {rank} elsewhere."
