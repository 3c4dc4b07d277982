-- States that are known by interval. Where intervals overlap, the earlier state in the filling order gets the time.

CREATE OR REPLACE TEMP TABLE mark AS
WITH on_slot AS (  -- each run, on the tenancies of its slot
    SELECT tenancy.tenancy_id, tenancy.hold_to_ms, tenancy.started_ms AS container_ms,
        the_run.attempt, the_run.started_ms, the_run.first_step_ms, the_run.ended_ms,
        lead(the_run.started_ms) OVER in_time AS next_started_ms,
        lag(the_run.started_ms) OVER in_time IS NULL AS is_first,
        -- of all runs so far; null while one of them is running
        nullif(max(coalesce(the_run.ended_ms, 9e18::BIGINT)) OVER in_time, 9e18::BIGINT) AS all_ended_ms
    FROM the_run
    JOIN every_slot USING (node_uid, slot_index)
    JOIN tenancy
        ON tenancy.slot_id = every_slot.slot_id AND tenancy.pod_uid != ''
        AND coalesce(the_run.pod_uid = tenancy.pod_uid, true)
        AND the_run.started_ms < tenancy.hold_to_ms AND coalesce(the_run.ended_ms > tenancy.hold_from_ms, true)
    WINDOW in_time AS (PARTITION BY tenancy.tenancy_id ORDER BY the_run.started_ms)
),
found AS (
    SELECT tenancy_id, attempt, 'gang_wait' AS state, gang.from_ms, gang.to_ms, 1 AS evidence
    FROM gang_incomplete gang JOIN tenancy USING (workload_uid, attempt)
    UNION ALL  -- until its containers run
    SELECT tenancy_id, attempt, 'startup', hold_from_ms, CASE WHEN never_started THEN hold_to_ms ELSE started_ms END, 1
    FROM tenancy WHERE pod_uid != ''
    UNION ALL  -- until they run again
    SELECT tenancy_id, attempt, 'startup', greatest(from_ms, hold_from_ms), least(to_ms, hold_to_ms), 1
    FROM restarting JOIN tenancy USING (pod_uid)
    UNION ALL  -- until the end of the first step; the first run of a container starts with the container
    SELECT tenancy_id, attempt, 'startup', CASE WHEN is_first THEN least(container_ms, started_ms) ELSE started_ms END,
        coalesce(first_step_ms, ended_ms, hold_to_ms), 4
    FROM on_slot
    UNION ALL  -- the run has ended, its pod has not
    SELECT tenancy_id, attempt, 'idle_held', all_ended_ms, coalesce(next_started_ms, hold_to_ms), 4
    FROM on_slot WHERE all_ended_ms IS NOT NULL
    UNION ALL
    SELECT tenancy_id, restated_before.attempt, state, from_ms, coalesce(to_ms, hold_to_ms), 4
    FROM restated_before
    JOIN every_slot USING (node_uid, slot_index)
    JOIN tenancy
        ON tenancy.slot_id = every_slot.slot_id AND tenancy.pod_uid != ''
        AND coalesce(restated_before.pod_uid = tenancy.pod_uid, true)
),
clipped AS (
    SELECT tenancy_id, attempt, found.state, evidence, rank.place,
        greatest(from_ms, getvariable('chunk_from_ms')) AS from_ms, least(to_ms, getvariable('chunk_to_ms')) AS to_ms
    FROM found JOIN interval_state rank ON rank.state = found.state
    WHERE from_ms < getvariable('chunk_to_ms') AND to_ms > getvariable('chunk_from_ms') AND from_ms < to_ms
),
piece AS (
    SELECT tenancy_id, at_ms AS from_ms, lead(at_ms) OVER (PARTITION BY tenancy_id ORDER BY at_ms) AS to_ms
    FROM (SELECT DISTINCT tenancy_id, unnest([from_ms, to_ms]) AS at_ms FROM clipped)
    QUALIFY to_ms IS NOT NULL
)
SELECT row_number() OVER (ORDER BY piece.tenancy_id, piece.from_ms)::INTEGER AS mark_id,
    piece.tenancy_id, piece.from_ms, piece.to_ms, clipped.attempt, clipped.state::state_name AS state, clipped.evidence
FROM piece
JOIN clipped
    ON clipped.tenancy_id = piece.tenancy_id AND clipped.from_ms <= piece.from_ms AND clipped.to_ms >= piece.to_ms
QUALIFY row_number() OVER (PARTITION BY piece.tenancy_id, piece.from_ms ORDER BY place, evidence DESC, clipped.attempt DESC) = 1;
