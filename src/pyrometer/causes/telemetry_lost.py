"""`telemetry_lost`: held GPUs are not observed because a source that had reported them went silent.

Needs GPU telemetry or the SDK: a source that never reported cannot be lost. `silence` determines which pauses are gaps.
Time that is unobserved because samples are too far apart is not in a finding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pyrometer.causes import _telemetry_gaps
from pyrometer.causes._telemetry_gaps import MIN_GAP_MS, NEIGHBORS, Observations, Pause
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE

MAX_TOGETHER_MS = 2 * MS_PER_MINUTE  # nodes that go silent together do so within one or two scrapes
GPU, SDK = "GPU telemetry", "steps from the SDK"


class _SilentGpus(NamedTuple):
    """A gap in the evidence of some GPUs of one node."""

    node_uid: str
    source: str
    from_ms: int
    to_ms: int
    gap: Pause
    pods: dict[int, frozenset[str]]  # by slot: the unobserved pods that held it

    @property
    def came_back(self) -> bool:
        return self.gap.next_ms == self.to_ms


# Slots that were unobserved for at least as many minutes as the shortest gap leaves, once its last sample reaches no
# further. Most are not, and of their nodes no sample has to be read.
_DARK = """
CREATE OR REPLACE TEMP TABLE dark AS
SELECT node_uid, slot_index, min(minute_ms) AS from_ms, max(minute_ms) + 60000 AS to_ms, list(DISTINCT pod_uid) AS pods
FROM ledger_row
WHERE state = 'unobserved' AND pod_uid IS NOT NULL AND minute_ms >= $1 AND minute_ms < $2
GROUP BY node_uid, slot_index HAVING count(DISTINCT minute_ms) >= $3
"""

# When any of the fields that show a state was sampled, on all GPUs of these nodes: the others show whether the exporter
# was there. Two exporters of one GPU are one source.
_SAMPLE_TIMES = """
SELECT DISTINCT node_uid, slot_index, time_ms FROM {samples}
WHERE node_uid IN (SELECT node_uid FROM {nodes}) AND time_ms < $1
    AND coalesce(gpu_util_permille, sm_active_permille, tensor_active_permille, dram_active_permille) IS NOT NULL
"""

# Nodes with a held slot that was silent for long enough.
_SILENT_NODES = """
CREATE OR REPLACE TEMP TABLE silent_node AS
SELECT DISTINCT node_uid FROM (
    SELECT node_uid, lead(time_ms, 1, $1) OVER (PARTITION BY node_uid, slot_index ORDER BY time_ms) - time_ms AS ms
    FROM last_seen SEMI JOIN dark USING (node_uid, slot_index)
) WHERE ms >= $2
"""

# Who was not observed in each gap, and from when to when. Where it began later than the last sample explains, or ended
# earlier, its holder came later, left earlier, or was observed by something else until then.
_HELD = """
WITH gap AS (
    SELECT unnest($1) AS number, unnest($2) AS node_uid, unnest($3) AS slot_index, unnest($4) AS from_ms,
        unnest($5) AS to_ms
),
minute AS (
    SELECT number, gap.slot_index, gap.from_ms, gap.to_ms, minute_ms, list(DISTINCT pod_uid) AS pods, sum(ms) AS ms
    FROM gap JOIN ledger_row ledger USING (node_uid, slot_index)
    WHERE state = 'unobserved' AND pod_uid IS NOT NULL AND minute_ms >= $6 AND minute_ms < $7
        AND minute_ms + 60000 > gap.from_ms AND minute_ms < gap.to_ms
    GROUP BY ALL
)
SELECT number, slot_index,
    CASE WHEN min(minute_ms) > from_ms + $8 THEN min(minute_ms) + 60000 - arg_min(ms, minute_ms) ELSE from_ms END,
    CASE WHEN max(minute_ms) + 60000 < to_ms THEN max(minute_ms) + arg_max(ms, minute_ms) ELSE to_ms END,
    list_sort(list_distinct(flatten(list(pods))))
FROM minute GROUP BY number, slot_index, from_ms, to_ms ORDER BY number, slot_index
"""


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each time in which GPUs of one or several nodes went silent together."""
    if not evidence.ask("SELECT 1 FROM burn WHERE state = 'unobserved' AND pod_uid IS NOT NULL LIMIT 1"):
        return
    evidence.ask(_DARK, *evidence.window, max(1, (MIN_GAP_MS - evidence.settings.sample_reach_ms) // MS_PER_MINUTE))
    if not evidence.ask("SELECT 1 FROM dark LIMIT 1"):
        return
    until_ms = min(evidence.window.to_ms, evidence.ask("SELECT max(minute_ms) + 60000 FROM ledger_row")[0][0])
    silent = _held(evidence, _of_samples(evidence, until_ms), GPU, until_ms)
    explained = {(one.node_uid, slot) for one in silent for slot in one.pods}
    silent += _without_hangs(evidence, _held(evidence, _of_steps(evidence, until_ms, explained), SDK, until_ms))
    for together in _together(_without_broken_nodes(evidence, silent)):
        yield _proposal(evidence, together)


def _of_samples(evidence: Evidence, until_ms: int) -> list[tuple[str, Pause, list[int]]]:
    """The gaps of GPU telemetry: node, gap, and the slots that share it."""
    evidence.ask(
        f"CREATE OR REPLACE TEMP TABLE last_seen AS {_SAMPLE_TIMES.format(samples='gpu_sample', nodes='dark')}",
        until_ms,
    )
    _add_day_before(evidence)
    evidence.ask(_SILENT_NODES, until_ms, MIN_GAP_MS)
    ((chances,),) = evidence.ask("SELECT count(*) FROM last_seen SEMI JOIN dark USING (node_uid, slot_index)")
    held: dict[str, set[int]] = defaultdict(set)
    for node, slot in evidence.ask("SELECT node_uid, slot_index FROM dark SEMI JOIN silent_node USING (node_uid)"):
        held[node].add(slot)
    found = []
    for node in sorted(held):
        rows = evidence.store.connection.execute(
            "SELECT slot_index, time_ms FROM last_seen WHERE node_uid = ? ORDER BY slot_index, time_ms", [node]
        ).fetchnumpy()
        slots, first = np.unique(rows["slot_index"], return_index=True)
        seen = {
            int(slot): Observations(times)
            for slot, times in zip(slots, np.split(rows["time_ms"], first[1:]), strict=True)
        }
        found += [(node, *gap) for gap in _of_node(seen, held[node], until_ms, chances)]
    return found


def _add_day_before(evidence: Evidence) -> None:
    """For nodes that are silent from the start: read their last samples from further back."""
    evidence.ask(
        "CREATE OR REPLACE TEMP TABLE dark_at_first AS "
        "SELECT DISTINCT node_uid FROM dark WHERE from_ms < $1 AND NOT EXISTS ("
        "FROM last_seen WHERE last_seen.node_uid = dark.node_uid AND last_seen.slot_index = dark.slot_index "
        "AND time_ms < $1)",
        evidence.window.from_ms + MS_PER_MINUTE,
    )
    if not evidence.ask("SELECT 1 FROM dark_at_first LIMIT 1"):
        return
    to_ms = evidence.window.from_ms - MS_PER_HOUR
    evidence.store.expose(["gpu_sample"], to_ms - MS_PER_DAY, to_ms, suffix="_before")
    earlier = _SAMPLE_TIMES.format(samples="gpu_sample_before", nodes="dark_at_first")
    evidence.ask(
        f"INSERT INTO last_seen SELECT * FROM ({earlier}) ANTI JOIN last_seen USING (node_uid, slot_index, time_ms) "
        f"QUALIFY row_number() OVER (PARTITION BY node_uid, slot_index ORDER BY time_ms DESC) <= {NEIGHBORS}",
        evidence.window.from_ms,
    )


def _of_node(
    seen: dict[int, Observations], held: set[int], until_ms: int, chances: int
) -> list[tuple[Pause, list[int]]]:
    """The gaps of a node's slots, each with the slots that share it.

    All GPUs of a node that are silent at once are stronger evidence than one of them: each may lose samples by chance,
    but hardly all at the same time.
    """

    def usual_ms(at_ms: int) -> float | None:
        of_slots = [usual for one in seen.values() if (usual := one.usual_ms(at_ms)) is not None]
        return float(np.median(of_slots)) if of_slots else None

    together = Observations(np.unique(np.concatenate([one.to_ms for one in seen.values()])))
    of_node = _telemetry_gaps.pauses(together, until_ms, chances, most=NEIGHBORS * len(seen), usual_ms=usual_ms)
    groups: list[tuple[Pause, list[int]]] = [(pause, []) for pause in of_node if pause.is_gap]
    shared = len(groups)
    for slot in sorted(held & seen.keys()):
        peers = [one for other, one in seen.items() if other != slot]
        for pause in _telemetry_gaps.pauses(seen[slot], until_ms, chances, peers=peers):
            among = groups if pause.is_gap else groups[:shared]
            same = next((slots for other, slots in among if _same(other, pause, until_ms)), None)
            if same is not None:
                same.append(slot)
            elif pause.is_gap:
                groups.append((pause, [slot]))
    return [(pause, slots) for pause, slots in groups if slots]


def _same(one: Pause, other: Pause, until_ms: int) -> bool:
    """Whether two pauses start and end together, except for samples lost by chance."""
    ends_apart_ms = abs((one.next_ms or until_ms) - (other.next_ms or until_ms))
    return max(abs(one.last_ms - other.last_ms), ends_apart_ms) <= max(one.max_gap_ms, other.max_gap_ms)


def _of_steps(evidence: Evidence, until_ms: int, explained: set[tuple[str, int]]) -> list[tuple[str, Pause, list[int]]]:
    """The gaps of the SDK, for slots without gaps in GPU telemetry."""
    rows = evidence.ask(
        "SELECT node_uid, slot_index, list(time_ms ORDER BY time_ms), list(step_window.to_ms ORDER BY time_ms) "
        "FROM step_window JOIN dark USING (node_uid, slot_index) "
        "WHERE time_ms < $1 AND coalesce(list_contains(dark.pods, step_window.pod_uid), true) "
        "GROUP BY node_uid, slot_index ORDER BY node_uid, slot_index",
        until_ms,
    )
    chances = sum(len(begins) for _, _, begins, _ in rows)
    found: list[tuple[str, Pause, list[int]]] = []
    for node, slot, begins, ends in rows:
        if (node, slot) in explained:
            continue
        seen = Observations(np.array(begins, np.int64), np.array(ends, np.int64))
        for pause in _telemetry_gaps.pauses(seen, until_ms, chances):
            if not pause.is_gap:
                continue
            same = next((slots for at, gap, slots in found if at == node and _same(gap, pause, until_ms)), None)
            if same is None:
                found.append((node, pause, [slot]))
            else:
                same.append(slot)
    return found


def _held(
    evidence: Evidence, found: Sequence[tuple[str, Pause, list[int]]], source: str, until_ms: int
) -> list[_SilentGpus]:
    """The gaps in which a pod held a GPU that was not observed."""
    rows = [
        (number, node, slot, gap.last_ms, gap.next_ms or until_ms)
        for number, (node, gap, slots) in enumerate(found)
        for slot in slots
    ]
    if not rows:
        return []
    # What is unobserved after the last sample begins when that no longer speaks, in that minute or in the next.
    reaches_ms = evidence.settings.sample_reach_ms + MS_PER_MINUTE
    held = evidence.ask(_HELD, *map(list, zip(*rows, strict=True)), *evidence.window, reaches_ms)
    silent = []
    for number, (node, gap, _) in enumerate(found):
        own = [row[1:] for row in held if row[0] == number]
        from_ms = max(min((row[1] for row in own), default=0), evidence.window.from_ms)
        to_ms = min(max((row[2] for row in own), default=0), evidence.window.to_ms)
        if from_ms < to_ms:
            silent.append(
                _SilentGpus(
                    node_uid=node,
                    source=source,
                    from_ms=from_ms,
                    to_ms=to_ms,
                    gap=gap,
                    pods={row[0]: frozenset(row[3]) for row in own},
                )
            )
    return silent


def _without_broken_nodes(evidence: Evidence, silent: list[_SilentGpus]) -> list[_SilentGpus]:
    """Whether the node was not ready or missing: it lost more than its telemetry."""
    if not silent:
        return []
    away = evidence.ask("SELECT node_uid, time_ms FROM node WHERE NOT ready OR NOT present")
    return [
        one
        for one in silent
        if not any(node == one.node_uid and one.from_ms - MIN_GAP_MS <= ms < one.to_ms for node, ms in away)
    ]


def _without_hangs(evidence: Evidence, silent: list[_SilentGpus]) -> list[_SilentGpus]:
    """Whether a rank went silent while its peers hang: they hang because of it."""
    if not silent:
        return []
    hung = evidence.ask(
        """
        SELECT peer.pod_uid, min(minute_ms), max(minute_ms) + $1
        FROM burn JOIN holder_name USING (pod_uid)
        JOIN holder_name peer
            ON coalesce(peer.workload_uid, peer.pod_uid) = coalesce(holder_name.workload_uid, holder_name.pod_uid)
        WHERE state = 'hang' GROUP BY peer.pod_uid
        """,
        evidence.bucket_ms,
    )
    times = {pod: (from_ms, to_ms) for pod, from_ms, to_ms in hung}
    return [
        one
        for one in silent
        if not any(
            times[pod][0] < one.to_ms and times[pod][1] > one.from_ms
            for pods in one.pods.values()
            for pod in pods & times.keys()
        )
    ]


def _together(silent: Iterable[_SilentGpus]) -> list[list[_SilentGpus]]:
    """Nodes that were silent over the same time."""
    groups: list[list[_SilentGpus]] = []
    for one in sorted(silent, key=lambda one: (one.from_ms, one.to_ms, one.node_uid, min(one.pods))):
        for group in groups:
            first = group[0]
            near_ms = max(MAX_TOGETHER_MS, first.gap.usual_ms)
            same = one.from_ms - first.from_ms <= near_ms and abs(one.to_ms - first.to_ms) <= near_ms
            if same and one.source == first.source and one.node_uid not in {other.node_uid for other in group}:
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _proposal(evidence: Evidence, silent: list[_SilentGpus]) -> Proposal:
    from_ms, to_ms = min(one.from_ms for one in silent), max(one.to_ms for one in silent)
    source = silent[0].source
    names = sorted(evidence.node(one.node_uid) or one.node_uid for one in silent)
    slots = sum(len(one.pods) for one in silent)
    pods = sorted({pod for one in silent for pods in one.pods.values() for pod in pods})
    last = max(silent, key=lambda one: one.gap.last_ms).gap
    until = f"until {evidence.time(last.last_ms)}"
    if all(one.came_back for one in silent):
        until += f" and resumed at {evidence.time(to_ms)}"
    return Proposal(
        cause="telemetry_lost",
        owner_uid=None,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["telemetry_lost"],
        scope=tuple(
            Scope(pod, one.from_ms, one.to_ms, one.node_uid, slot)
            for one in silent
            for slot in sorted(one.pods)
            for pod in sorted(one.pods[slot])
        ),
        headline=f"{listed(names)} sent no {source} for {duration(to_ms - from_ms)}, since {evidence.time(from_ms)}",
        evidence=(
            f"{source} arrived every {duration(last.usual_ms)} {until}",
            f"{counted(slots, 'GPU')} of {listed(evidence.pod_names(pods))} were held at the time",
        ),
        suggestion=(
            f"Check the GPU exporter on {listed(names)} and its scrape target."
            if source == GPU
            else f"Check that the SDK on {listed(names)} can reach the server and that its process is alive."
        ),
        culprit=_culprit(evidence, silent, names),
        confidence=0.95 if source == GPU else 0.7,
        detectable_ms=min(max(one.gap.detectable_ms, one.from_ms) for one in silent),
    )


def _culprit(evidence: Evidence, silent: list[_SilentGpus], names: list[str]) -> dict[str, Any]:
    if len(names) > 1:
        return {"nodes": names}
    one = silent[0]
    others = evidence.ask(
        "SELECT 1 FROM gpu_sample WHERE node_uid = $1 AND time_ms > $2 AND time_ms < $3 LIMIT 1",
        one.node_uid,
        one.from_ms,
        one.to_ms - MS_PER_MINUTE,
    )
    alone = one.source == GPU and len(one.pods) == 1 and others  # the rest of the node kept reporting
    return {"node": names[0]} | ({"gpu": min(one.pods)} if alone else {})
