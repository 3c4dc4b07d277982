"""Episodes: when the GPUs of a workload were in a state, to the millisecond.

Where later evidence restated a state, the restatement has the times. Otherwise the minutes of the ledger have them and,
for the minutes at the edge of an episode, the intervals that those minutes were summed from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyrometer.account.query.timeline import open_intervals
from pyrometer.model.states import IMMEDIATE_CAUSES
from pyrometer.model.units import MS_PER_MINUTE

if TYPE_CHECKING:
    from pyrometer.findings.evidence import Evidence

STATES = ("hang", "diverged", "gang_wait", "idle_held", "unused_device")  # states whose episodes detectors read
EPISODE_GAP_MS = 5 * MS_PER_MINUTE  # a shorter break does not end an episode


class Episode(NamedTuple):
    """A stretch of time in which an owner's GPUs were in a state, without a longer break."""

    owner_uid: str
    from_ms: int
    to_ms: int
    pods: tuple[str, ...]


# The minutes of each pod in each state. A minute is `inside` when it is entirely in the state on one of the pod's
# slots, or when the minutes before and after it are in the state, too: a break of less than a minute ends no episode.
_MINUTES = """
CREATE OR REPLACE TEMP TABLE state_minute AS
WITH in_state AS (
    SELECT state, owner_uid, pod_uid, minute_ms, max(ms) AS most_ms
    FROM owner_ledger
    WHERE list_contains($1, state) AND pod_uid IS NOT NULL
        AND (list_contains($2, state) OR (state, owner_uid) IN (
            SELECT (state, owner_uid) FROM owner_burn GROUP BY state, owner_uid HAVING {reportable}
        ))
        AND NOT EXISTS (
            FROM restated_before
            WHERE restated_before.state = owner_ledger.state
                AND restated_before.pod_uid = owner_ledger.pod_uid
                AND restated_before.from_ms < minute_ms + 60000
                AND coalesce(restated_before.to_ms > minute_ms, true)
        )
    GROUP BY state, owner_uid, pod_uid, minute_ms
)
SELECT *,
    most_ms = 60000 OR coalesce(
        lag(minute_ms) OVER in_time = minute_ms - 60000 AND lead(minute_ms) OVER in_time = minute_ms + 60000, false
    ) AS inside
FROM in_state
WINDOW in_time AS (PARTITION BY state, pod_uid ORDER BY minute_ms)
"""

_STRETCHES = """
CREATE OR REPLACE TEMP TABLE stretch AS
SELECT restated_before.state, coalesce(workload_uid, pod_uid) AS owner_uid, pod_uid, greatest(from_ms, $2) AS from_ms,
    least(coalesce(restated_before.to_ms, $3), $3,
        CASE WHEN last_ms < 60000 THEN greatest(last_minute_ms, from_ms) + last_ms
            ELSE last_minute_ms + 60000 END) AS to_ms,
    true AS restated
FROM restated_before
JOIN holder_name USING (pod_uid)
-- an open one ends with what its pod is recorded to have held, or where another state was on top of it
JOIN (
    -- a part of a device has a part of each minute
    SELECT last.state, last.pod_uid, node_uid, slot_index, last_minute_ms,
        sum(ms) FILTER (row_.pod_uid = last.pod_uid AND row_.state = last.state) * sum(ms)
            // sum(ms) FILTER (row_.pod_uid = last.pod_uid) AS last_ms
    FROM (
        SELECT state, pod_uid, node_uid, slot_index, max(minute_ms) AS last_minute_ms
        FROM owner_ledger WHERE list_contains($1, state) GROUP BY state, pod_uid, node_uid, slot_index
    ) last
    JOIN ledger_row row_ USING (node_uid, slot_index)
    WHERE row_.minute_ms = last_minute_ms
    GROUP BY last.state, last.pod_uid, node_uid, slot_index, last_minute_ms
) held USING (state, pod_uid, node_uid, slot_index)
UNION ALL
SELECT state, owner_uid, pod_uid, minute_ms, minute_ms + 60000, false FROM state_minute WHERE inside
UNION ALL  -- without facts, it is somewhere in its minute
SELECT edge.state, owner_uid, edge.pod_uid, greatest(coalesce(exact.from_ms, minute_ms), minute_ms),
    least(coalesce(exact.to_ms, minute_ms + 60000), minute_ms + 60000), false
FROM (FROM state_minute WHERE NOT inside) edge
LEFT JOIN state_interval exact
    ON exact.pod_uid = edge.pod_uid AND exact.state = edge.state
    AND exact.from_ms < minute_ms + 60000 AND exact.to_ms > minute_ms
"""

# Adjacent stretches of one owner are merged.
_EPISODES = """
WITH numbered AS (
    SELECT *, sum(begins) OVER (PARTITION BY state, owner_uid, restated ORDER BY from_ms, to_ms, pod_uid) AS episode
    FROM (
        SELECT *, coalesce(from_ms - max(to_ms) OVER (
            PARTITION BY state, owner_uid, restated ORDER BY from_ms, to_ms, pod_uid
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) > CASE WHEN restated THEN $1 ELSE $2 END, true)::INTEGER AS begins
        FROM stretch WHERE from_ms < to_ms
    )
)
SELECT state, owner_uid, min(from_ms), max(to_ms), list_sort(list(DISTINCT pod_uid)) FROM numbered
GROUP BY state, owner_uid, restated, episode
"""


def find_episodes(evidence: Evidence) -> dict[str, list[Episode]]:
    """The episodes of each state, for workloads whose time in that state is reportable.

    Replaces the views of measurements. Creates the table `state_interval` with exact intervals.
    """
    states = [state for state in STATES if state in evidence.states]
    evidence.ask(_MINUTES.format(reportable=evidence.reportable), states, list(IMMEDIATE_CAUSES))
    edges = evidence.ask("SELECT pod_uid, minute_ms FROM state_minute WHERE NOT inside")
    pods = sorted({pod for pod, _ in edges})
    open_intervals(evidence.store, evidence.settings, pods, {minute_ms for _, minute_ms in edges})
    evidence.ask(_STRETCHES, states, *evidence.window)
    found: dict[str, list[Episode]] = {}
    for state, owner, from_ms, to_ms, in_pods in evidence.ask(
        _EPISODES, evidence.settings.hang_limit_ms, EPISODE_GAP_MS
    ):
        found.setdefault(state, []).append(Episode(owner, from_ms, to_ms, tuple(in_pods)))
    return {state: sorted(episodes) for state, episodes in found.items()}
