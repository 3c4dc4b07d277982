"""`crash_loop`: attempt after attempt that fails and leaves nothing behind.

Needs Kubernetes: pods or containers that failed, one after the other. There, an attempt that was over before a start
may last is one without progress, and all of its time is claimed that nobody saw anything of. With the SDK it is known
whether a step was kept, and what exception ended it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyrometer.explain.attempts import Attempt, Part, attempts, made_progress
from pyrometer.explain.failures import ENDS, error_line
from pyrometer.explain.findings import Proposal
from pyrometer.explain.night import Night
from pyrometer.explain.out_of_memory import Kill, kill_of, kills
from pyrometer.explain.preempted import Eviction, evicted_of, evictions
from pyrometer.model.human import duration, listed
from pyrometer.model.states import CLAIMS

IN_A_ROW = 3  # two failures happen; the third of the same kind will not be the last
LONGEST_MESSAGE = 80  # of an exception: `why` keeps to one screen


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each row of attempts that failed without progress."""
    worth = night.worth(*CLAIMS["crash_loop"])
    suspects = [owner for owner in _suspects(night) if owner in worth] if worth else []
    if not suspects:
        return
    found = kills(night), evictions(night)
    gangs = {owner for (owner,) in night.ask("SELECT DISTINCT workload_uid FROM workload WHERE gang_pods > 1")}
    for owner, tries in attempts(night, suspects).items():
        begun = [attempt for attempt in tries if attempt.from_ms < night.window.to_ms]
        for of_same in [begun] if owner in gangs else _by_part(begun):
            for row in _rows(night, of_same, *found):
                if len(row) >= IN_A_ROW and (row[-1].to_ms or night.window.to_ms) > night.window.from_ms:
                    yield _proposal(night, owner, row)


def _suspects(night: Night) -> list[str]:
    """Who has time in the window that can be claimed, and has failed often enough."""
    rows = night.ask(
        """
        WITH failure AS (
            SELECT DISTINCT pod_uid, 0 AS attempt FROM pod WHERE phase = 'Failed'
            UNION ALL SELECT DISTINCT pod_uid, attempt FROM the_run WHERE outcome = 'failed'
            UNION ALL SELECT DISTINCT pod_uid, time_ms FROM event
                WHERE kind = 'container_restarted' AND coalesce(reason != 'Completed', true)
        )
        SELECT coalesce(workload_uid, pod_uid) AS owner_uid
        FROM failure JOIN holder_name USING (pod_uid)
        WHERE coalesce(workload_uid, pod_uid) IN (
            SELECT coalesce(workload_uid, pod_uid) FROM burn JOIN holder_name USING (pod_uid)
            WHERE list_contains($2, state)
        )
        GROUP BY owner_uid HAVING count(*) >= $1 ORDER BY 1
        """,
        IN_A_ROW,
        list(CLAIMS["crash_loop"]),
    )
    return [owner for (owner,) in rows]


def _by_part(tries: Sequence[Attempt]) -> list[list[Attempt]]:
    """Groups the attempts that work on the same part of a job: its steps and indexes fail each for itself."""
    if not all(attempt.parts for attempt in tries):
        return [list(tries)]
    groups: list[tuple[set[Part], list[Attempt]]] = []
    for attempt in tries:
        same = next((group for group in groups if group[0] & attempt.parts), None)
        if same is None:
            groups.append((set(attempt.parts), [attempt]))
        else:
            same[0].update(attempt.parts)
            same[1].append(attempt)
    return [group for _, group in groups]


def _rows(
    night: Night, tries: Sequence[Attempt], killed: Sequence[Kill], evicted: Sequence[Eviction]
) -> list[list[Attempt]]:
    """Attempts in a row that failed by themselves without progress. What memory or others ended is told elsewhere."""
    rows: list[list[Attempt]] = [[]]
    for place, attempt in enumerate(tries):
        crashed = attempt.failed and kill_of(attempt, killed) is None and not evicted_of(attempt, evicted)
        if crashed and not made_progress(night, attempt, tries[place + 1 :]):
            rows[-1].append(attempt)
        elif rows[-1]:
            rows.append([])
    return rows


def _proposal(night: Night, owner: str, row: Sequence[Attempt]) -> Proposal:
    ends = [attempt.to_ms or night.window.to_ms for attempt in row]
    from_ms, to_ms = max(row[0].from_ms, night.window.from_ms), min(ends[-1], night.window.to_ms)
    return Proposal(
        cause="crash_loop",
        owner_uid=owner,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["crash_loop"],
        scope=tuple(
            s for attempt, end_ms in zip(row, ends, strict=True) for s in attempt.scope(attempt.from_ms, end_ms)
        ),
        headline=f"crashed {len(row)} times in a row, from {night.time(from_ms)} to {night.time(to_ms)}",
        evidence=tuple(_evidence(night, row, ends)),
        suggestion="Stop it and look at the log of its last attempt; a limit on retries would have saved the rest.",
        confidence=0.95 if all(attempt.run for attempt in row) else 0.8,
        known_ms=ends[IN_A_ROW - 1],
    )


def _evidence(night: Night, row: Sequence[Attempt], ends: Sequence[int]) -> Iterable[str]:
    lives = sorted(end_ms - attempt.from_ms for attempt, end_ms in zip(row, ends, strict=True))
    stepped = [attempt for attempt in row if attempt.first_step_ms is not None]
    if stepped:
        yield f"no attempt got beyond where it had begun; each lived {duration(lives[len(lives) // 2])} or so"
    elif any(attempt.run for attempt in row):
        yield f"each attempt lived {duration(lives[len(lives) // 2])} or so, and none completed a step"
    else:
        yield f"each attempt lived {duration(lives[len(lives) // 2])} or so, the longest {duration(lives[-1])}"
    said = night.ask(
        "SELECT reason, any_value(message), count(DISTINCT attempt) FROM event WHERE list_contains($3, kind) "
        "AND list_contains($1, run) AND list_contains($2, attempt) AND reason IS NOT NULL "
        "GROUP BY reason ORDER BY 3 DESC, 1 LIMIT 1",
        [attempt.run or "" for attempt in row],
        [attempt.number for attempt in row],
        list(ENDS),
    )
    if said:
        reason, message, times = said[0]
        text = error_line(reason, message) or reason
        short = text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 1]}…"
        yield f"{'all' if times == len(lives) else f'{times} of them'} ended with {short}"
    else:
        reasons = sorted({reason for attempt in row for reason in attempt.reasons})
        if reasons:
            yield f"its pods ended with {listed(reasons)}"
