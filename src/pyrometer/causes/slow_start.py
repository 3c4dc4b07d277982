"""`slow_start`: starts that take much longer than others. Only the excess is claimed.

Needs Kubernetes: from scheduling until containers run, with the image pull. With GPU telemetry a start lasts until a
GPU is used, with the SDK until the first step, and rendezvous, restore and compilation are known. Starts are compared
with others of the same evidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_MINUTE

ENOUGH_STARTS = 5  # other starts needed to know what is usual
USUAL_MS = 5 * MS_PER_MINUTE  # if there are too few
MIN_USUAL_MS = MS_PER_MINUTE  # a fleet that starts in seconds does not make two minutes slow
MIN_PHASE_EXCESS_MS = 5 * MS_PER_MINUTE  # beyond the usual: a large gang takes some minutes more than a single pod
FAR_SLOWER = 2  # times its peers
MAX_RANKS = 100_000  # that are looked for
MIN_SHARE_OF_EXCESS = 0.4  # a phase that explains this much of the excess is reported

# The phases of a start in order, and what to do about each.
PHASES = {
    "image_pulled": ("pulling the image", "Pre-pull or mirror its image, or make it smaller."),
    "container": ("starting its containers", "Check what its containers wait for: volumes, image, init containers."),
    "late": ("starting the program", "Check what happens before the program begins: volumes, downloads, imports."),
    "restored": (
        "loading the checkpoint",
        "Check the storage it restores from, or let each rank load only its own shard.",
    ),
    "compiled": ("compiling the model", "Keep a persistent compile cache that all ranks can read."),
    "rendezvous": ("rendezvous", "Check DNS and the network between its pods, and the rendezvous timeouts."),
}

# Every stretch of `startup` of every pod. Records say exactly when it began and ended; where they do not, a minute that
# is not full is at the edge.
_STARTS = """
WITH minute AS (
    SELECT pod_uid, minute_ms, min(ms) AS ms, max(ms) AS most_ms, count(*) AS slots, bit_or(evidence) AS evidence
    FROM (
        SELECT pod_uid, minute_ms, sum(ms) AS ms, bit_or(evidence) AS evidence FROM ledger_row
        WHERE state = 'startup' AND pod_uid IS NOT NULL AND minute_ms >= $1 AND minute_ms < $2
        GROUP BY pod_uid, minute_ms, node_uid, slot_index
    ) GROUP BY pod_uid, minute_ms
),
stretch AS MATERIALIZED (
    SELECT pod_uid, min(minute_ms) AS first_ms, max(minute_ms) AS last_ms, bit_or(evidence) AS evidence,
        min(minute_ms) + 60000 - arg_min(most_ms, minute_ms) AS begins_ms,
        max(minute_ms) + CASE WHEN count(*) > 1 THEN arg_max(ms, minute_ms) ELSE 60000 END AS ends_ms
    FROM (
        SELECT *, minute_ms - 60000 * row_number() OVER (PARTITION BY pod_uid ORDER BY minute_ms) AS piece
        -- a pod has started as soon as one of its devices has
        FROM (FROM minute QUALIFY slots = max(slots) OVER (PARTITION BY pod_uid))
    )
    GROUP BY pod_uid, piece
),
newest AS (
    SELECT pod_uid, scheduled_ms, started_ms, ended_ms,
        -- a gang begins with the last of its pods
        CASE WHEN gang_pods > 1 THEN max(scheduled_ms) OVER (PARTITION BY pod.workload_uid, attempt)
            ELSE scheduled_ms END AS complete_ms,
        -- whoever sits before it decides when a GPU is first used
        kind IS NULL OR kind = 'Notebook' OR serves AS waits_for_people
    FROM (SELECT * FROM pod QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1) pod
    LEFT JOIN (
        SELECT * FROM workload QUALIFY row_number() OVER (PARTITION BY workload_uid ORDER BY time_ms DESC) = 1
    ) workload USING (workload_uid)
),
ran AS (
    SELECT pod_uid, started_ms, first_step_ms,
        lag(started_ms) OVER (PARTITION BY pod_uid, slot_index ORDER BY started_ms) IS NOT NULL AS again
    FROM the_run WHERE pod_uid IS NOT NULL
),
by_run AS (
    SELECT stretch.pod_uid, first_ms,
        max(started_ms) FILTER (WHERE again AND started_ms < first_ms + 60000) AS again_ms,
        max(first_step_ms) FILTER (WHERE first_step_ms > last_ms AND first_step_ms <= last_ms + 60000) AS stepped_ms
    FROM stretch JOIN ran USING (pod_uid) GROUP BY stretch.pod_uid, first_ms
),
used AS (SELECT DISTINCT pod_uid FROM burn WHERE state IN ('active', 'infer', 'starved', 'unobserved'))
SELECT coalesce(workload_uid, pod_uid), pod_uid, pod_node_uid,
    CASE
        WHEN detectable_ms >= first_ms AND detectable_ms < first_ms + 60000 THEN detectable_ms
        WHEN detectable_ms < first_ms AND first_ms = $1 THEN detectable_ms  -- it began before this window
        ELSE begins_ms
    END AS from_ms,
    CASE WHEN by_steps THEN coalesce(stepped_ms, ends_ms) WHEN waits_for_people THEN least(ends_ms, started_ms)
        ELSE ends_ms END AS to_ms,
    CASE WHEN by_steps THEN stepped_ms IS NOT NULL ELSE started_ms IS NOT NULL AND used.pod_uid IS NOT NULL AND NOT cut
        END AS started,
    stepped_ms IS NULL AND cut AND coalesce(ended_ms >= $2, true) AND NOT waits_for_people AS is_ongoing,
    CASE WHEN by_steps THEN 'first step' WHEN evidence & 2 > 0 AND NOT waits_for_people THEN 'first GPU activity'
        ELSE 'containers running' END AS until,
    again_ms IS NOT NULL AND detectable_ms = again_ms AS again, scheduled_ms, started_ms
FROM (
    SELECT *, evidence & 4 > 0 AS by_steps, last_ms + 60000 >= $2 AS cut,
        greatest(CASE WHEN complete_ms < first_ms + 60000 THEN complete_ms ELSE scheduled_ms END, again_ms)
            AS detectable_ms
    FROM stretch LEFT JOIN by_run USING (pod_uid, first_ms) LEFT JOIN newest USING (pod_uid)
) JOIN holder_name USING (pod_uid) LEFT JOIN used USING (pod_uid)
WHERE to_ms > from_ms ORDER BY 1, from_ms, pod_uid
"""


class _Start(NamedTuple):
    """One start of one pod."""

    owner_uid: str
    pod_uid: str
    node_uid: str | None
    from_ms: int
    to_ms: int
    started: bool
    is_ongoing: bool  # the time range ends before it has started
    until: str  # the evidence of its end
    again: bool  # in a pod that ran before: no image to pull
    scheduled_ms: int | None
    container_ms: int | None

    @property
    def took_ms(self) -> int:
        return self.to_ms - self.from_ms


class _Baseline(NamedTuple):
    ms: int
    others: int  # starts that it is based on
    slow_ms: int  # a start that takes this long is slow


class _Phase(NamedTuple):
    """The phase in which a start lost its time."""

    kind: str
    took_ms: int
    usual_ms: int | None
    node_uid: str | None = None  # the one node on which it was slow


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each start of a workload that took much longer than usual."""
    worth = evidence.worth("startup")
    if not worth or not evidence.ask(
        "SELECT 1 FROM burn WHERE state = 'startup' GROUP BY pod_uid HAVING sum(ms) >= $1", MIN_PHASE_EXCESS_MS
    ):
        return
    alike: dict[tuple[str, bool], list[list[_Start]]] = defaultdict(list)
    for group in _together([_Start(*row) for row in evidence.ask(_STARTS, *evidence.window)]):
        alike[group[0].until, group[0].again].append(group)
    for groups in alike.values():
        lengths = [_length(group) for group in groups]
        for number, group in enumerate(groups):
            longest_ms = max(start.took_ms for start in group)
            if group[0].owner_uid not in worth or longest_ms < MIN_USUAL_MS + MIN_PHASE_EXCESS_MS:
                continue
            usual = _usual([length for other, length in enumerate(lengths) if other != number and length is not None])
            slow = [s for s in group if s.took_ms >= usual.slow_ms and (s.started or s.is_ongoing)]
            if slow:
                yield _proposal(evidence, slow, group, usual)


def _together(starts: list[_Start]) -> Iterator[list[_Start]]:
    """The starts of one workload that overlap, of one kind."""
    kinds: dict[tuple[str, str, bool], list[_Start]] = defaultdict(list)
    for start in starts:
        kinds[start.owner_uid, start.until, start.again].append(start)
    for same in kinds.values():
        group: list[_Start] = []
        until_ms = 0
        for start in same:
            if group and start.from_ms >= until_ms:
                yield group
                group = []
            group.append(start)
            until_ms = max(until_ms, start.to_ms)
        yield group


def _length(group: list[_Start]) -> float | None:
    """How long the start of a workload took; None if it has not ended."""
    lengths = [start.took_ms for start in group if start.started]
    return median(lengths) if lengths else None


def _usual(others: list[float]) -> _Baseline:
    """The median of other starts; their usual deviation determines what is slow."""
    middle = median(others) if others else 0.0
    spread = median(abs(length - middle) for length in others) if others else 0.0
    enough = len(others) >= ENOUGH_STARTS
    usual_ms = round(max(middle, MIN_USUAL_MS if enough else USUAL_MS))
    return _Baseline(usual_ms, len(others), usual_ms + round(max(usual_ms, MIN_PHASE_EXCESS_MS, 3 * spread)))


def _proposal(evidence: Evidence, slow: list[_Start], group: list[_Start], usual: _Baseline) -> Proposal:
    from_ms, to_ms = min(s.from_ms for s in slow), max(s.to_ms for s in slow)
    longest = max(s.took_ms for s in slow)
    is_ongoing = any(s.is_ongoing for s in slow)
    phase = _slow_phase(evidence, group, from_ms, to_ms, longest - usual.ms)
    node = None if phase is None or phase.node_uid is None else evidence.node(phase.node_uid)
    enough = usual.others >= ENOUGH_STARTS
    compared = (
        f"{usual.others} other starts usually took {duration(usual.ms)}"
        if enough
        else f"more than {duration(usual.ms)} is unusual"
    )
    reasons = [
        f"{duration(longest)} without a {slow[0].until}; {compared}"
        if is_ongoing
        else f"{duration(longest)} from scheduling to {slow[0].until}; {compared}"
    ]
    absent, ranks = _absent(evidence, group) if is_ongoing else ([], 0)
    if absent:
        named = listed([str(rank) for rank in absent])
        reasons.append(
            f"rank{'s' if len(absent) > 1 else ''} {named} of {ranks} never joined, and the others are waiting"
        )
    elif phase:
        on_node = (" longer" if phase.kind == "late" else "") + (f" on {node}" if node else "")
        instead = "" if phase.usual_ms is None else f", elsewhere {duration(phase.usual_ms)}"
        reasons.append(f"{PHASES[phase.kind][0]} took {duration(phase.took_ms)}{on_node}{instead}")
    if len(slow) < len(group):
        reasons.append(f"{len(slow)} of its {counted(len(group), 'pod')} were slow")
    return Proposal(
        cause="slow_start",
        owner_uid=slow[0].owner_uid,
        from_ms=max(from_ms, evidence.window.from_ms),
        to_ms=to_ms,
        states=CLAIMS["slow_start"],
        scope=tuple(Scope(s.pod_uid, s.from_ms + usual.ms, s.to_ms) for s in slow),
        headline=(
            f"has been starting for {duration(longest)}, since {evidence.time(from_ms)}"
            if is_ongoing
            else f"took {duration(longest)} to start, from {evidence.time(from_ms)}"
        ),
        evidence=tuple(reasons),
        suggestion=(
            f"Check the process of rank {absent[0]}: did it start, and can it reach the others?"
            if absent
            else _suggestion(phase, node)
        ),
        culprit={"rank": absent[0]} if len(absent) == 1 else {"node": node} if node and not absent else None,
        confidence=0.9 if absent else 0.6 if is_ongoing or not enough else 0.9 if phase else 0.75,
        detectable_ms=from_ms + usual.slow_ms,
    )


def _absent(evidence: Evidence, group: list[_Start]) -> tuple[list[int], int]:
    """The ranks that never reported while others are stuck before their first step, and the number of ranks."""
    rows = evidence.ask(
        """
        SELECT list(DISTINCT rank), max(ranks) FROM the_run
        WHERE list_contains($1, pod_uid) AND first_step_ms IS NULL AND ended_ms IS NULL
        GROUP BY run, attempt
        HAVING bool_or((run, attempt) IN (
            SELECT (run, attempt) FROM event WHERE kind = 'stuck' AND reason = 'startup' AND time_ms < $2))
        ORDER BY attempt DESC, run LIMIT 1
        """,
        [start.pod_uid for start in group],
        evidence.window.to_ms,
    )
    if not rows:
        return [], 0
    ((there, ranks),) = rows
    return sorted(set(range(min(ranks, MAX_RANKS))) - set(there)), ranks


def _suggestion(phase: _Phase | None, node: str | None) -> str:
    if phase is None:
        return "Check what it does before its first step: imports, downloads, reading the dataset."
    if node:
        return f"Check the disk, network and registry access of {node}, and start it on another node until then."
    return PHASES[phase.kind][1]


def _slow_phase(evidence: Evidence, group: list[_Start], from_ms: int, to_ms: int, excess_ms: int) -> _Phase | None:
    """The earliest phase that explains the excess. Later phases had to wait for it."""
    pods = [start.pod_uid for start in group]
    reported = evidence.ask(
        """
        SELECT kind, coalesce(event.node_uid, the_run.node_uid, pod_node_uid), event.duration_ms
        FROM event
        LEFT JOIN the_run ON the_run.run = event.run AND the_run.attempt = event.attempt AND the_run.rank = event.rank
        LEFT JOIN holder_name ON holder_name.pod_uid = coalesce(event.pod_uid, the_run.pod_uid)
        WHERE kind IN ('image_pulled', 'rendezvous', 'compiled', 'restored') AND event.duration_ms > 0
            AND event.time_ms BETWEEN $1 AND $2 + 60000 AND list_contains($3, coalesce(event.pod_uid, the_run.pod_uid))
        UNION ALL
        SELECT 'compiled', node_uid, max(compiled) FROM (
            SELECT node_uid, sum(compile_ms) AS compiled FROM step_window
            WHERE list_contains($3, pod_uid) AND time_ms < $2 + 60000 AND to_ms > $1
            GROUP BY node_uid, run, attempt, rank
        ) WHERE compiled > 0 GROUP BY node_uid
        UNION ALL
        SELECT 'late', node_uid, max(started_ms) - $1 FROM the_run
        WHERE list_contains($3, pod_uid) AND started_ms BETWEEN $1 AND $2 GROUP BY node_uid
        """,
        from_ms,
        to_ms,
        pods,
    )
    lengths: dict[str, dict[str | None, int]] = defaultdict(dict)
    for kind, node_uid, ms in reported:
        lengths[kind][node_uid] = max(int(ms), lengths[kind].get(node_uid, 0))
    for start in group:
        if start.container_ms and start.scheduled_ms and start.container_ms > start.scheduled_ms and not start.again:
            took_ms = start.container_ms - start.scheduled_ms
            lengths["container"][start.node_uid] = max(took_ms, lengths["container"].get(start.node_uid, 0))
    elsewhere = {
        kind: (int(usual), count)
        for kind, usual, count in evidence.ask(
            "SELECT kind, median(duration_ms), count(*) FROM event LEFT JOIN the_run USING (run, attempt, rank) "
            "WHERE kind IN ('image_pulled', 'rendezvous', 'compiled', 'restored') AND duration_ms > 0 "
            "AND event.time_ms BETWEEN $1 AND $2 "
            "AND NOT list_contains($3, coalesce(event.pod_uid, the_run.pod_uid, '')) GROUP BY kind",
            *evidence.window,
            pods,
        )
    }
    for kind in PHASES:
        phase = _judged(kind, lengths[kind], *elsewhere.get(kind, (None, 0)))
        if phase and phase.took_ms - (phase.usual_ms or 0) >= MIN_SHARE_OF_EXCESS * excess_ms:
            return phase
    return None


def _judged(kind: str, by_node: dict[str | None, int], elsewhere_ms: int | None, count: int) -> _Phase | None:
    if not by_node:
        return None
    if kind == "rendezvous":  # the last rank to arrive does not wait, so the shortest time is the real duration
        return _Phase(kind, min(by_node.values()), elsewhere_ms)
    (node_uid, took_ms), *rest = sorted(by_node.items(), key=lambda item: -item[1])
    peers = [ms for _, ms in rest]
    if kind == "late":  # counted from the beginning: what it lost there is the difference to the others
        return _Phase(kind, took_ms - round(median(peers)), None, node_uid) if _alone(took_ms, peers) else None
    if _alone(took_ms, peers):
        return _Phase(kind, took_ms, round(median(peers)), node_uid)
    if not peers and kind == "image_pulled" and elsewhere_ms and count >= 3 and took_ms >= FAR_SLOWER * elsewhere_ms:
        return _Phase(kind, took_ms, elsewhere_ms, node_uid)
    return _Phase(kind, took_ms, elsewhere_ms)


def _alone(took_ms: int, peers: Sequence[int]) -> bool:
    """Whether one node is far slower than every other."""
    if not peers:
        return False
    return took_ms >= FAR_SLOWER * median(peers) and took_ms - max(peers) >= max(MS_PER_MINUTE, took_ms // 3)
