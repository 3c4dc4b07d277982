-- Later evidence about the past. Where it differs from existing records, new ones are appended.
-- Needs: the_run, restated_before, event, step_window (of runs that resumed), restating (the pairs of events and their state).

CREATE OR REPLACE TEMP TABLE restated_now AS
-- From an opening event to its closing event, or to the end of the attempt.
WITH opened AS (
    SELECT DISTINCT event.run, event.attempt, event.rank, event.time_ms, restating.opens, restating.closes,
        restating.state, restating.whole_run
    FROM event JOIN restating ON event.kind = restating.opens
    WHERE event.time_ms <= getvariable('newest_ms')
),
closed AS (
    SELECT opened.*, min(closing.time_ms) AS closed_ms
    FROM opened
    LEFT JOIN event closing
        ON closing.kind = opened.closes AND closing.run = opened.run AND closing.attempt = opened.attempt
        AND (closing.rank = opened.rank OR opened.whole_run)
        AND closing.time_ms >= opened.time_ms AND closing.time_ms <= getvariable('newest_ms')
    GROUP BY ALL
),
-- If most ranks are stuck, so is a rank that reports nothing: from the first of them to the last.
stuck_together AS (
    SELECT stuck.run, stuck.attempt, stuck.time_ms, stuck.closed_ms, stuck.opens, stuck.closes, stuck.state
    FROM (
        SELECT run, attempt, opens, closes, state, min(time_ms) AS time_ms,
            CASE WHEN bool_and(closed_ms IS NOT NULL) THEN max(closed_ms) END AS closed_ms, count(DISTINCT rank) AS stuck
        FROM closed WHERE state = 'hang' GROUP BY run, attempt, opens, closes, state
        HAVING count(*) = count(DISTINCT rank)  -- ranks that are stuck repeatedly are handled by their own events
    ) stuck
    JOIN (SELECT run, attempt, count(*) AS ranks FROM the_run GROUP BY run, attempt) of_attempt USING (run, attempt)
    WHERE 2 * stuck.stuck > of_attempt.ranks
),
silent AS (
    SELECT the_run.run, the_run.attempt, the_run.rank, together.time_ms, together.opens, together.closes,
        together.state, false AS whole_run, together.closed_ms
    FROM stuck_together together
    JOIN the_run USING (run, attempt)
    ANTI JOIN closed ON closed.run = the_run.run AND closed.attempt = the_run.attempt AND closed.rank = the_run.rank
        AND closed.state = 'hang'
),
reported AS (
    SELECT run, attempt, rank, time_ms, opens, closes, state, whole_run, closed_ms FROM closed
    UNION ALL FROM silent
),
by_event AS (
    SELECT the_run.run, the_run.attempt, the_run.node_uid, the_run.slot_index, the_run.pod_uid,
        reported.time_ms AS from_ms,
        least(reported.closed_ms, the_run.ended_ms) AS to_ms,
        reported.state, reported.opens AS reason
    FROM reported
    JOIN the_run
        ON the_run.run = reported.run AND the_run.attempt = reported.attempt AND (the_run.rank = reported.rank OR reported.whole_run)
    WHERE the_run.slot_index IS NOT NULL
        AND (reported.state != 'hang'
            OR least(coalesce(reported.closed_ms, getvariable('end_ms')), coalesce(the_run.ended_ms, getvariable('end_ms')))
                - reported.time_ms >= getvariable('hang_limit_ms'))
),
-- Steps at or after the one from which a later attempt resumed were lost. Only steps: a window without steps
-- (an evaluation, a checkpoint) keeps its state. The first lost step of a window is placed in proportion.
resumed AS (
    SELECT run, attempt, min(resumed_step) AS resumed_step
    FROM the_run WHERE resumed_step IS NOT NULL GROUP BY run, attempt
),
lost_window AS (
    SELECT step_window.run, step_window.attempt, node_uid, slot_index, pod_uid, to_ms,
        to_ms - (to_ms - time_ms) * least(first_step + steps - min(resumed_step), steps) // steps AS from_ms
    FROM step_window
    JOIN resumed ON resumed.run = step_window.run AND resumed.attempt > step_window.attempt
    WHERE steps > 0 AND first_step + steps > resumed_step
    GROUP BY step_window.run, step_window.attempt, node_uid, slot_index, pod_uid, time_ms, to_ms, first_step, steps
),
-- Adjacent windows become one interval.
lost_piece AS (
    SELECT *, sum(begins::INTEGER) OVER (PARTITION BY run, attempt, node_uid, slot_index ORDER BY from_ms) AS piece
    FROM (
        SELECT *, coalesce(from_ms - lag(to_ms) OVER (
            PARTITION BY run, attempt, node_uid, slot_index ORDER BY from_ms) > 0, true) AS begins
        FROM lost_window
    )
),
by_resume AS (
    SELECT run, attempt, node_uid, slot_index, min(pod_uid) AS pod_uid,
        min(from_ms) AS from_ms, max(to_ms) AS to_ms, 'lost_work' AS state, 'resumed' AS reason
    FROM lost_piece GROUP BY run, attempt, node_uid, slot_index, piece
)
FROM by_event UNION ALL FROM by_resume;

-- New intervals, intervals with another end, and withdrawals of those that no longer follow from the evidence. Each is newer
-- than the record that it replaces.
CREATE OR REPLACE TEMP TABLE restatement_to_append AS
SELECT greatest(getvariable('end_ms'), coalesce(old.time_ms + 1, 0))::BIGINT AS time_ms,
    fresh.run, fresh.attempt, fresh.node_uid, fresh.slot_index, fresh.from_ms, fresh.to_ms, fresh.state, fresh.pod_uid,
    fresh.reason
FROM restated_now fresh
LEFT JOIN restated_before old USING (run, attempt, node_uid, slot_index, from_ms, state)
WHERE old.time_ms IS NULL OR (old.to_ms, old.pod_uid) IS DISTINCT FROM (fresh.to_ms, fresh.pod_uid)
UNION ALL
SELECT greatest(getvariable('end_ms'), time_ms + 1), run, attempt, node_uid, slot_index, from_ms, from_ms, state, pod_uid,
    'withdrawn'
FROM restated_before
ANTI JOIN restated_now USING (run, attempt, node_uid, slot_index, from_ms, state)
WHERE to_ms IS DISTINCT FROM from_ms AND reason IN ('resumed', 'stuck', 'nonfinite_loss', 'loop_ended');
