"""`comm_stall`: all ranks wait for communication longer than the run did before, or than runs of the same size do.

Needs the SDK, which distinguishes communication from computation, and at least two ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import median
from typing import NamedTuple

from pyrometer.findings.episodes import EPISODE_GAP_MS
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_MINUTE

# Shares are of computation plus communication, so that other waits do not change them.
RISE = 0.05  # of that time, above the run's usual share...
RISE_OF_USUAL = 0.3  # ...and relative to that share: runs that communicate much vary more
MIN_DURATION_MS = 5 * MS_PER_MINUTE
MIN_RISE_ABOVE_SIMILAR = 0.10  # above runs of the same size, which differ more from each other than a run from itself
MIN_SIMILAR_RUNS = 3  # other runs of the same size

# A run's low level says what is usual; minutes clearly above it, by more than one usually differs from the next, are an
# episode. Medians of five leave single minutes out and keep edges where they are.
_EPISODES = """
WITH pod_minute AS (  -- few rows before names are joined to them
    SELECT pod_uid, minute_ms, sum(ms) FILTER (WHERE state = 'comm_stall') AS comm_ms,
        sum(ms) FILTER (WHERE state IN ('comm_stall', 'train')) AS both_ms, sum(ms) AS step_ms
    FROM ledger_row
    WHERE pod_uid IN (SELECT pod_uid FROM holder_name WHERE list_contains($1, coalesce(workload_uid, pod_uid)))
        AND state IN ('train', 'comm_stall', 'straggler_wait', 'data_stall') AND minute_ms >= $6 AND minute_ms < $7
    GROUP BY pod_uid, minute_ms
),
minute AS MATERIALIZED (
    SELECT coalesce(workload_uid, pod_uid) AS owner_uid, minute_ms, sum(pod_minute.comm_ms) AS comm_ms,
        sum(pod_minute.both_ms) AS both_ms, sum(pod_minute.step_ms) AS step_ms
    FROM pod_minute JOIN holder_name USING (pod_uid)
    GROUP BY owner_uid, minute_ms HAVING sum(pod_minute.comm_ms) > 0
        AND sum(pod_minute.both_ms) > 0.1 * sum(pod_minute.step_ms)
),
smooth AS MATERIALIZED (
    SELECT *, abs(comm_ms / both_ms - lag(comm_ms / both_ms) OVER in_time) AS differs,
        median(comm_ms / both_ms) OVER (in_time ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING) AS share
    FROM minute WINDOW in_time AS (PARTITION BY owner_uid ORDER BY minute_ms)
),
low AS (
    SELECT owner_uid, low, greatest($2, $3 * low, 6 * noise) AS rise FROM (
        SELECT owner_uid, median(differs) AS noise, list_last(min(share, ($4 // 60000)::BIGINT)) AS low
        FROM smooth GROUP BY owner_uid
    )
),
usual AS MATERIALIZED (
    SELECT owner_uid, median(share) AS usual, sum(comm_ms) / sum(step_ms) AS usual_of_step, count(*) AS minutes,
        any_value(rise) AS rise, min(minute_ms) AS usual_from_ms
    FROM smooth JOIN low USING (owner_uid) WHERE share <= low + rise GROUP BY owner_uid
),
raised AS (
    SELECT smooth.*, usual, usual_of_step, usual_from_ms FROM smooth JOIN usual USING (owner_uid)
    WHERE share >= usual + greatest(rise, $3 * usual) AND minutes * 60000 >= $4
),
numbered AS (
    SELECT *, sum(begins) OVER (PARTITION BY owner_uid ORDER BY minute_ms) AS episode
    FROM (
        SELECT *, coalesce(minute_ms - lag(minute_ms) OVER (PARTITION BY owner_uid ORDER BY minute_ms) > $5,
            true)::INTEGER AS begins
        FROM raised
    )
)
SELECT owner_uid, min(minute_ms), max(minute_ms) + 60000, sum(comm_ms) / sum(both_ms), any_value(usual),
    sum(comm_ms) / sum(step_ms), any_value(usual_of_step), any_value(usual_from_ms)
FROM numbered GROUP BY owner_uid, episode HAVING count(*) * 60000 >= $4 ORDER BY 1, 2
"""


class _Run(NamedTuple):
    """How much a workload communicated in the time range."""

    owner_uid: str
    ranks: int
    share: float
    of_step: float
    from_ms: int
    to_ms: int
    varies: bool  # parts of the window differ


class _Stall(NamedTuple):
    """A stretch in which a workload communicated too much."""

    owner_uid: str
    from_ms: int
    to_ms: int
    permille: int  # of the communication that exceeds the usual
    of_step: float
    compared: str
    confidence: float
    detectable_ms: int | None
    before: bool = False  # it is compared with the same run at other times


class _Pod(NamedTuple):
    pod_uid: str
    nodes: list[str]
    gpus: int


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each stretch in which a run communicated more than before, or always more than other runs."""
    worth = evidence.worth("comm_stall")
    if not worth:
        return
    runs = _runs(evidence)
    stalls = list(_raised(evidence, [run.owner_uid for run in runs if run.varies]))
    raised = {stall.owner_uid for stall in stalls}
    stalls += _always_high([run for run in runs if run.owner_uid not in raised])
    stalls = _slower(evidence, [stall for stall in stalls if stall.owner_uid in worth])
    pods = _pods(evidence, stalls)
    for stall in stalls:
        yield _proposal(evidence, stall, pods[stall.owner_uid, stall.from_ms])


def _raised(evidence: Evidence, owners: list[str]) -> Iterator[_Stall]:
    """Stretches in which a run communicated more than at other times."""
    if not owners:
        return
    rows = evidence.ask(_EPISODES, owners, RISE, RISE_OF_USUAL, MIN_DURATION_MS, EPISODE_GAP_MS, *evidence.window)
    for owner, from_ms, to_ms, share, usual, of_step, usual_of_step, usual_from_ms in rows:
        compared = f"{round(100 * usual_of_step)}% at other times"
        seen_before = from_ms - usual_from_ms >= MIN_DURATION_MS  # otherwise only later time shows what is usual
        detectable_ms = from_ms + MIN_DURATION_MS if seen_before else None
        yield _Stall(
            owner_uid=owner,
            from_ms=from_ms,
            to_ms=to_ms,
            permille=_excess(share, usual),
            of_step=of_step,
            compared=compared,
            confidence=0.9,
            detectable_ms=detectable_ms,
            before=True,
        )


def _slower(evidence: Evidence, stalls: list[_Stall]) -> list[_Stall]:
    """The stretches in which a step communicated longer than at other times.

    If a step only computes less, its share is larger but nothing is slow: another batch size, shorter sequences.
    """
    before = [stall for stall in stalls if stall.before]
    if not before:
        return stalls
    rows = evidence.ask(
        """
        WITH stall AS (
            SELECT unnest($1) AS number, unnest($2) AS owner_uid, unnest($3) AS from_ms, unnest($4) AS to_ms
        ),
        step AS MATERIALIZED (  -- what every rank has: of each minute, that of the rank with the least
            SELECT owner_uid, minute_ms, min(comm_ms) AS comm_ms FROM (
                SELECT coalesce(workload_uid, holder_name.pod_uid) AS owner_uid, run, attempt, rank,
                    time_ms // 60000 * 60000 AS minute_ms, sum(comm_ms) / sum(steps) AS comm_ms
                FROM step_window JOIN holder_name USING (pod_uid)
                WHERE list_contains($2, coalesce(workload_uid, holder_name.pod_uid)) AND steps > 0
                    AND time_ms >= $5 AND time_ms < $6
                GROUP BY ALL
            ) GROUP BY owner_uid, minute_ms
        )
        SELECT number, median(comm_ms) FILTER (WHERE minute_ms >= from_ms AND minute_ms < to_ms),
            median(comm_ms) FILTER (WHERE minute_ms < from_ms OR minute_ms >= to_ms)
        FROM stall JOIN step USING (owner_uid) GROUP BY number
        """,
        list(range(len(before))),
        [s.owner_uid for s in before],
        [s.from_ms for s in before],
        [s.to_ms for s in before],
        *evidence.window,
    )
    same = {
        before[number]
        for number, during, otherwise in rows
        if during is not None and otherwise is not None and during < (1 + RISE_OF_USUAL) * otherwise
    }
    return [stall for stall in stalls if stall not in same]


def _runs(evidence: Evidence) -> list[_Run]:
    """Every workload with several ranks that communicate."""
    rows = evidence.ask(
        """
        WITH bucket AS (
            SELECT coalesce(workload_uid, pod_uid) AS owner_uid, minute_ms,
                coalesce(sum(ms) FILTER (WHERE state = 'comm_stall'), 0) AS comm_ms,
                coalesce(sum(ms) FILTER (WHERE state IN ('comm_stall', 'train')), 0) AS both_ms, sum(ms) AS step_ms
            FROM burn JOIN holder_name USING (pod_uid)
            WHERE state IN ('train', 'comm_stall', 'straggler_wait', 'data_stall') AND evidence & 4 > 0
            GROUP BY owner_uid, burn.minute_ms
        ),
        size AS (
            SELECT coalesce(holder_name.workload_uid, pod_uid) AS owner_uid, max(ranks) AS ranks
            FROM the_run JOIN holder_name USING (pod_uid) GROUP BY owner_uid
        )
        SELECT owner_uid, any_value(ranks), sum(comm_ms) / sum(both_ms), sum(comm_ms) / sum(step_ms),
            greatest(min(minute_ms) FILTER (WHERE comm_ms > 0), $1),
            least(max(minute_ms) FILTER (WHERE comm_ms > 0) + $3, $2),
            -- half of that: an episode may fill a small part of a bucket
            max(comm_ms / both_ms) - min(comm_ms / both_ms) >= $4 / 2 AND count(*) > 1
        FROM bucket JOIN size USING (owner_uid)
        WHERE both_ms > 0 AND ranks > 1
        GROUP BY owner_uid HAVING sum(comm_ms) > 0 ORDER BY owner_uid
        """,
        *evidence.window,
        evidence.bucket_ms,
        RISE,
    )
    return [_Run(*row) for row in rows]


def _always_high(runs: list[_Run]) -> Iterator[_Stall]:
    """Runs that communicate much more than other runs with the same number of ranks.

    With too few of those, a slow network cannot be distinguished from a program that communicates much.
    """
    alike: dict[int, list[_Run]] = defaultdict(list)
    for run in runs:
        alike[run.ranks].append(run)
    for run in runs:
        others = [other for other in alike[run.ranks] if other is not run]
        if len(others) < MIN_SIMILAR_RUNS:
            continue
        usual = median(other.share for other in others)
        noise = median(abs(other.share - usual) for other in others)
        if run.share < usual + max(MIN_RISE_ABOVE_SIMILAR, usual, 5 * noise):
            continue
        of_step = median(other.of_step for other in others)
        compared = f"{round(100 * of_step)}% in {len(others)} other runs of {run.ranks} ranks"
        excess, detectable_ms = _excess(run.share, usual), run.from_ms + MIN_DURATION_MS
        yield _Stall(
            owner_uid=run.owner_uid,
            from_ms=run.from_ms,
            to_ms=run.to_ms,
            permille=excess,
            of_step=run.of_step,
            compared=compared,
            confidence=0.75,
            detectable_ms=detectable_ms,
        )


def _excess(share: float, usual: float) -> int:
    """The excess communication in thousandths, relative to the computation time."""
    return round(1000 * (1 - (usual / (1 - usual)) / (share / (1 - share)))) if share < 1 else 1000


def _pods(evidence: Evidence, stalls: list[_Stall]) -> dict[tuple[str, int], list[_Pod]]:
    """The node of each rank."""
    pods: dict[tuple[str, int], list[_Pod]] = defaultdict(list)
    if stalls:
        rows = evidence.ask(
            """
            WITH stall AS (SELECT unnest($1) AS owner_uid, unnest($2) AS from_ms, unnest($3) AS to_ms)
            SELECT owner_uid, from_ms, pod_uid, list(DISTINCT node), count(DISTINCT (node_uid, slot_index))
            FROM owner_ledger JOIN stall USING (owner_uid) JOIN node_name USING (node_uid)
            WHERE state = 'comm_stall' AND minute_ms + 60000 > from_ms AND minute_ms < to_ms
            GROUP BY owner_uid, from_ms, pod_uid ORDER BY pod_uid
            """,
            [s.owner_uid for s in stalls],
            [s.from_ms for s in stalls],
            [s.to_ms for s in stalls],
        )
        for owner, from_ms, *pod in rows:
            pods[owner, from_ms].append(_Pod(*pod))
    return pods


def _proposal(evidence: Evidence, stall: _Stall, pods: list[_Pod]) -> Proposal:
    from_ms, to_ms = stall.from_ms, stall.to_ms
    nodes = sorted({node for pod in pods for node in pod.nodes})
    one_node = len(nodes) == 1
    gpus = sum(pod.gpus for pod in pods)
    if one_node:
        suggestion = (
            f"Check the links between the GPUs of {nodes[0]}: NVLink and PCIe errors, and the path that NCCL uses."
        )
    else:
        suggestion = (
            f"Check the network between {listed(nodes)}: link errors, other traffic, racks. "
            "NCCL_DEBUG=INFO shows the path that NCCL uses."
        )
    return Proposal(
        cause="comm_stall",
        owner_uid=stall.owner_uid,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["comm_stall"],
        scope=tuple(Scope(pod.pod_uid, from_ms, to_ms, permille=stall.permille) for pod in pods),
        headline=f"communicated slowly for {duration(to_ms - from_ms)}, from {evidence.time(from_ms)}",
        evidence=(
            f"all ranks spent {round(100 * stall.of_step)}% of their step time in communication, {stall.compared}",
            f"{counted(gpus, 'GPU')} on {counted(len(nodes), 'node')} waited equally long, so no single rank is late",
        ),
        suggestion=suggestion,
        culprit={"node": nodes[0]} if one_node else None,
        confidence=stall.confidence,
        detectable_ms=stall.detectable_ms,
    )
