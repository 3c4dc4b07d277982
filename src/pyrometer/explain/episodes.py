"""Episodes: when a workload's GPUs were in a state, to the millisecond.

Where later evidence restated a state, the restatement says from when to when. Elsewhere the ledger's minutes say it,
and in the minutes in which an episode may begin or end, the intervals from which those minutes were added up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyrometer.account.timeline import open_intervals
from pyrometer.model.states import IMMEDIATE_CAUSES
from pyrometer.model.units import MS_PER_MINUTE

if TYPE_CHECKING:
    from pyrometer.explain.night import Night

STATES = ("hang", "diverged", "gang_wait", "idle_held", "unused_device")  # detectors read the episodes of these
EPISODE_GAP_MS = 5 * MS_PER_MINUTE  # a shorter break does not end an episode


class Episode(NamedTuple):
    """A stretch of time in which an owner's GPUs were in a state, without a longer break."""

    owner_uid: str
    from_ms: int
    to_ms: int
    pods: tuple[str, ...]


# The minutes of each pod in each state. A minute is `inside` when all of it is in the state on one of the pod's slots,
# or when the minutes before and after it are in the state, too: a break of less than a minute ends no episode.
_MINUTES = """
CREATE OR REPLACE TEMP TABLE state_minute AS
WITH in_state AS (
    SELECT state, owner_uid, pod_uid, minute_ms, max(ms) AS most_ms
    FROM night_ledger
    WHERE list_contains($1, state) AND pod_uid IS NOT NULL
        AND (list_contains($2, state) OR (state, owner_uid) IN (
            SELECT (state, owner_uid) FROM owner_burn GROUP BY state, owner_uid HAVING {worth_a_look}
        ))
        AND NOT EXISTS (
            FROM restated_before
            WHERE restated_before.state = night_ledger.state
                AND restated_before.pod_uid = night_ledger.pod_uid
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
-- an open one ends with what its pod is known to have held, or where another state was on top of it
JOIN (
    -- a part of a device has a part of each minute
    SELECT last.state, last.pod_uid, node_uid, slot_index, last_minute_ms,
        sum(ms) FILTER (row_.pod_uid = last.pod_uid AND row_.state = last.state) * sum(ms)
            // sum(ms) FILTER (row_.pod_uid = last.pod_uid) AS last_ms
    FROM (
        SELECT state, pod_uid, node_uid, slot_index, max(minute_ms) AS last_minute_ms
        FROM night_ledger WHERE list_contains($1, state) GROUP BY state, pod_uid, node_uid, slot_index
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

# Stretches of one owner that touch, or nearly do, become one.
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


def find_episodes(night: Night) -> dict[str, list[Episode]]:
    """The episodes of each state, of each workload of which they are worth a look.

    Replaces the views of measurements. Afterwards the table `state_interval` has the exact intervals.
    """
    states = [state for state in STATES if state in night.states]
    night.ask(_MINUTES.format(worth_a_look=night.worth_a_look), states, list(IMMEDIATE_CAUSES))
    edges = night.ask("SELECT pod_uid, minute_ms FROM state_minute WHERE NOT inside")
    pods = sorted({pod for pod, _ in edges})
    open_intervals(night.store, night.settings, pods, {minute_ms for _, minute_ms in edges})
    night.ask(_STRETCHES, states, *night.window)
    found: dict[str, list[Episode]] = {}
    for state, owner, from_ms, to_ms, in_pods in night.ask(_EPISODES, night.settings.hang_limit_ms, EPISODE_GAP_MS):
        found.setdefault(state, []).append(Episode(owner, from_ms, to_ms, tuple(in_pods)))
    return {state: sorted(episodes) for state, episodes in found.items()}
