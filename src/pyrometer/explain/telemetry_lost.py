"""`telemetry_lost`: held GPUs of which nothing is known, because the telemetry that had been there stopped.

Needs GPU telemetry or the SDK: what was never there cannot be lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pyrometer.explain.findings import Proposal, Scope
from pyrometer.explain.night import Night
from pyrometer.explain.words import counted, duration, listed
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE

SHORT_MS = 5 * MS_PER_MINUTE  # a scrape or two that failed, an exporter that was restarted
USUAL_INTERVALS = 5  # sources that send rarely leave gaps every time
LEAST_SAMPLES = 3  # fewer were never a source
SAME_TIME_MS = 2 * MS_PER_MINUTE  # nodes that fall silent together do so within a scrape or two
GPU, SDK = "GPU telemetry", "steps from the SDK"


class _Gap(NamedTuple):
    """A time in which nothing came from a node."""

    node_uid: str
    source: str
    from_ms: int
    to_ms: int
    last_ms: int
    came_back: bool
    slots: frozenset[int]
    pods: frozenset[str]
    known_ms: int  # from then on it is longer than gaps usually are


# Where held slots are unobserved for a while: a small table, so that of the many samples only those of its slots are
# read. Then, who spoke of them last before and first after. Windows may be of another pod than the one that is in the
# dark: then nothing was lost.
_DARK = """
CREATE OR REPLACE TEMP TABLE dark AS
WITH minute AS (
    SELECT node_uid, slot_index, minute_ms, list(DISTINCT pod_uid) AS pods
    FROM ledger_row
    WHERE state = 'unobserved' AND pod_uid IS NOT NULL AND minute_ms >= $1 AND minute_ms < $2
    GROUP BY node_uid, slot_index, minute_ms
),
numbered AS (
    SELECT *, sum(begins) OVER (PARTITION BY node_uid, slot_index ORDER BY minute_ms) AS island
    FROM (
        SELECT *, coalesce(minute_ms - lag(minute_ms) OVER (PARTITION BY node_uid, slot_index ORDER BY minute_ms)
            > 60000, true)::INTEGER AS begins
        FROM minute
    )
)
SELECT node_uid, slot_index, min(minute_ms) AS from_ms, max(minute_ms) + 60000 AS to_ms,
    list_distinct(flatten(list(pods))) AS pods
FROM numbered GROUP BY node_uid, slot_index, island HAVING max(minute_ms) + 60000 - min(minute_ms) >= $3
"""

_SPOKE = """
WITH sampled AS MATERIALIZED (
    SELECT node_uid, slot_index, from_ms, min(time_ms) FILTER (time_ms < from_ms + 60000) AS first_ms,
        max(time_ms) FILTER (time_ms < from_ms + 60000) AS last_ms, count_if(time_ms < from_ms + 60000) AS samples,
        min(time_ms) FILTER (time_ms >= dark.to_ms - 60000) AS next_ms
    FROM dark JOIN gpu_sample USING (node_uid, slot_index)
    WHERE coalesce(gpu_util_permille, sm_active_permille, tensor_active_permille, dram_active_permille) IS NOT NULL
    GROUP BY node_uid, slot_index, from_ms
),
stepped AS MATERIALIZED (
    SELECT node_uid, slot_index, from_ms, max(step_window.to_ms) FILTER (time_ms < from_ms + 60000) AS last_ms,
        min(time_ms) FILTER (time_ms >= dark.to_ms - 60000) AS next_ms
    FROM dark JOIN step_window USING (node_uid, slot_index)
    WHERE coalesce(list_contains(dark.pods, step_window.pod_uid), true)
    GROUP BY node_uid, slot_index, from_ms
)
SELECT dark.node_uid, dark.slot_index, dark.from_ms, list_sort(dark.pods), sampled.first_ms, sampled.last_ms,
    coalesce(sampled.samples, 0), sampled.next_ms, stepped.last_ms, stepped.next_ms
FROM dark
LEFT JOIN sampled USING (node_uid, slot_index, from_ms)
LEFT JOIN stepped USING (node_uid, slot_index, from_ms)
ORDER BY ALL
"""


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each time in which nodes fell silent together."""
    if not night.ask("SELECT 1 FROM burn WHERE state = 'unobserved' AND pod_uid IS NOT NULL LIMIT 1"):
        return
    gaps = _of_nodes(_without_hangs(night, _without_broken_nodes(night, _of_slots(night))))
    for together in _together(gaps):
        yield _proposal(night, together)


def _of_slots(night: Night) -> list[_Gap]:
    """The gaps of every slot that was held in the dark."""
    night.ask(_DARK, *night.window, SHORT_MS)
    rows = night.ask(_SPOKE)
    earlier = _day_before(night, {row[0] for row in rows if row[5] is None})
    gaps = []
    for node, slot, dark_ms, pods, first_ms, last_ms, samples, next_ms, stepped_ms, steps_again_ms in rows:
        if last_ms is None:
            first_ms, last_ms, samples = earlier.get((node, slot), (None, None, 0))
        usual_ms = (last_ms - first_ms) // (samples - 1) if samples >= LEAST_SAMPLES else None
        spoke = stepped_ms is not None and dark_ms - stepped_ms < SHORT_MS  # the SDK, until it became dark
        if usual_ms is not None:
            from_ms = max(last_ms + night.settings.sample_reach_ms, stepped_ms or 0)
        elif spoke:
            from_ms = stepped_ms
        else:
            continue  # nothing that could have been lost
        again_ms = min((ms for ms in (next_ms, steps_again_ms if spoke else None) if ms), default=None)
        to_ms = min(again_ms or night.window.to_ms, night.window.to_ms)
        known_ms = from_ms + max(SHORT_MS, USUAL_INTERVALS * (usual_ms or 0))
        if to_ms >= known_ms:
            source = SDK if usual_ms is None else GPU
            last_ms = stepped_ms if usual_ms is None else last_ms
            from_ms = max(from_ms, night.window.from_ms)
            gaps.append(
                _Gap(
                    node, source, from_ms, to_ms, last_ms, to_ms == again_ms, frozenset([slot]), frozenset(pods),
                    known_ms,
                )
            )  # fmt: skip
    return gaps


def _day_before(night: Night, nodes: set[str]) -> dict[tuple[str, int], tuple[int, int, int]]:
    """First, last and number of the samples of these nodes in the day before what detectors look at."""
    if not nodes:
        return {}
    to_ms = night.window.from_ms - MS_PER_HOUR
    night.store.expose(["gpu_sample"], to_ms - MS_PER_DAY, to_ms, suffix="_before")
    rows = night.ask(
        "SELECT node_uid, slot_index, min(time_ms), max(time_ms), count(*) FROM gpu_sample_before "
        "WHERE list_contains($1, node_uid) AND time_ms < $2 GROUP BY node_uid, slot_index",
        sorted(nodes),
        night.window.from_ms,
    )
    return {(node, slot): (first_ms, last_ms, samples) for node, slot, first_ms, last_ms, samples in rows}


def _without_broken_nodes(night: Night, gaps: list[_Gap]) -> list[_Gap]:
    """A node that was not ready, or gone, lost more than its telemetry."""
    if not gaps:
        return []
    away = night.ask("SELECT node_uid, time_ms FROM node WHERE NOT ready OR NOT present")
    return [
        gap
        for gap in gaps
        if not any(node == gap.node_uid and gap.from_ms - SHORT_MS <= ms < gap.to_ms for node, ms in away)
    ]


def _without_hangs(night: Night, gaps: list[_Gap]) -> list[_Gap]:
    """A rank that says nothing more while its peers hang is what they hang on."""
    if not any(gap.source == SDK for gap in gaps):
        return gaps
    hung = night.ask(
        """
        SELECT peer.pod_uid, min(minute_ms), max(minute_ms) + $1
        FROM burn JOIN holder_name USING (pod_uid)
        JOIN holder_name peer
            ON coalesce(peer.workload_uid, peer.pod_uid) = coalesce(holder_name.workload_uid, holder_name.pod_uid)
        WHERE state = 'hang' GROUP BY peer.pod_uid
        """,
        night.bucket_ms,
    )
    times = {pod: (from_ms, to_ms) for pod, from_ms, to_ms in hung}
    return [
        gap
        for gap in gaps
        if gap.source != SDK
        or not any(pod in times and times[pod][0] < gap.to_ms and times[pod][1] > gap.from_ms for pod in gap.pods)
    ]


def _of_nodes(gaps: Iterable[_Gap]) -> list[_Gap]:
    """The gaps of the slots of a node that overlap are one."""
    nodes: list[_Gap] = []
    for gap in sorted(gaps, key=lambda gap: (gap.node_uid, gap.source, gap.from_ms)):
        before = nodes[-1] if nodes else None
        if before and before[:2] == gap[:2] and gap.from_ms < before.to_ms:
            nodes[-1] = before._replace(
                to_ms=max(before.to_ms, gap.to_ms), last_ms=max(before.last_ms, gap.last_ms),
                came_back=before.came_back and gap.came_back,
                slots=before.slots | gap.slots, pods=before.pods | gap.pods,
            )  # fmt: skip
        else:
            nodes.append(gap)
    return nodes


def _together(gaps: Iterable[_Gap]) -> list[list[_Gap]]:
    """Nodes that were silent over the same time."""
    groups: list[list[_Gap]] = []
    for gap in sorted(gaps, key=lambda gap: (gap.from_ms, gap.to_ms, gap.node_uid)):
        for group in groups:
            first = group[0]
            same = gap.from_ms - first.from_ms <= SAME_TIME_MS and abs(gap.to_ms - first.to_ms) <= SAME_TIME_MS
            if same and gap.source == first.source and gap.node_uid not in {other.node_uid for other in group}:
                group.append(gap)
                break
        else:
            groups.append([gap])
    return groups


def _proposal(night: Night, gaps: list[_Gap]) -> Proposal:
    from_ms, to_ms = min(gap.from_ms for gap in gaps), max(gap.to_ms for gap in gaps)
    source = gaps[0].source
    names = sorted(night.node(gap.node_uid) or gap.node_uid for gap in gaps)
    slots = sum(len(gap.slots) for gap in gaps)
    pods = sorted({pod for gap in gaps for pod in gap.pods})
    until = f"until {night.time(max(gap.last_ms for gap in gaps))}"
    if all(gap.came_back for gap in gaps):
        until += f" and came again at {night.time(to_ms)}"
    return Proposal(
        cause="telemetry_lost",
        owner_uid=None,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["telemetry_lost"],
        scope=tuple(
            Scope(pod, gap.from_ms, gap.to_ms, gap.node_uid) for gap in gaps for pod in sorted(gap.pods)
        ),
        headline=f"{listed(names)} sent no {source} for {duration(to_ms - from_ms)}, since {night.time(from_ms)}",
        evidence=(
            f"{source} {'was there' if source == GPU else 'were there'} {until}",
            f"{counted(slots, 'GPU')} of {listed(night.pod_names(pods))} were held meanwhile",
        ),
        suggestion=(
            f"Look at the GPU exporter on {listed(names)} and at its scrape." if source == GPU
            else f"Look whether the SDK on {listed(names)} reaches the server, and whether its process lives."
        ),
        culprit=_culprit(night, gaps, names),
        confidence=0.95 if source == GPU else 0.7,
        known_ms=min(gap.known_ms for gap in gaps),
    )  # fmt: skip


def _culprit(night: Night, gaps: list[_Gap], names: list[str]) -> dict[str, Any]:
    if len(names) > 1:
        return {"nodes": names}
    gap = gaps[0]
    others = night.ask(
        "SELECT 1 FROM gpu_sample WHERE node_uid = $1 AND time_ms > $2 AND time_ms < $3 LIMIT 1",
        gap.node_uid, gap.from_ms, gap.to_ms - MS_PER_MINUTE,
    )  # fmt: skip
    alone = gap.source == GPU and len(gap.slots) == 1 and others  # the rest of the node went on
    return {"node": names[0]} | ({"gpu": min(gap.slots)} if alone else {})
