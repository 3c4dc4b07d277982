-- The steps of the SDK. The amounts of a window divide its time; time in none of the amounts is `train`.
-- Windows of one slot do not overlap: a later one ends the previous one. A window covers at most an hour.

-- Where to start reading: at the first window that reaches into the chunk, and earlier for ranks whose clocks
-- differ.
SET VARIABLE windows_from_ms = (
    SELECT coalesce(min(time_ms), getvariable('chunk_from_ms')) - 600000 FROM step_window
    WHERE time_ms >= getvariable('chunk_from_ms') - 3600000 AND time_ms < getvariable('chunk_from_ms')
        AND to_ms > getvariable('chunk_from_ms')
);

CREATE OR REPLACE TEMP TABLE step_fold AS
WITH reported AS MATERIALIZED (  -- it is read twice; inlined, DuckDB 2.0 fails on its own statistics
    SELECT time_ms, to_ms, run, attempt, rank, node_uid, slot_index, pod_uid, first_step, steps,
        checkpoint_ms::BIGINT AS checkpoint_ms, data_ms::BIGINT AS data_ms, comm_ms::BIGINT AS comm_ms,
        evaluate_ms::BIGINT AS evaluate_ms
    FROM step_window
    WHERE time_ms >= getvariable('windows_from_ms') AND time_ms < getvariable('chunk_to_ms') + 600000
        AND time_ms <= getvariable('newest_ms') AND to_ms > time_ms
),
-- Exposed communication that every rank has. A rank with more waits for the slowest.
least_of_ranks AS (
    SELECT run, attempt, first_step, steps, min(comm_ms) AS comm_ms
    FROM reported WHERE steps > 0
    GROUP BY run, attempt, first_step, steps HAVING min(rank) < max(rank)
),
-- Each amount takes at most what is left, in the filling order.
cut AS (
    SELECT reported.*, to_ms - time_ms AS length_ms,
        least(greatest(checkpoint_ms, 0), length_ms) AS a,
        least(greatest(data_ms, 0), length_ms - a) AS b,
        least(greatest(coalesce(reported.comm_ms - peers.comm_ms, 0), 0), length_ms - a - b) AS c,
        least(greatest(coalesce(peers.comm_ms, reported.comm_ms), 0), length_ms - a - b - c) AS d,
        least(greatest(evaluate_ms, 0), length_ms - a - b - c - d) AS e
    FROM reported LEFT JOIN least_of_ranks peers USING (run, attempt, first_step, steps)
),
placed AS MATERIALIZED (  -- materialized, because otherwise DuckDB may compare every window with every hold
    SELECT tenancy.*, node_uid, slot_index FROM tenancy JOIN every_slot USING (slot_id) WHERE pod_uid != ''
),
on_slot AS (
    SELECT tenancy.tenancy_id, cut.attempt, cut.time_ms AS from_ms, cut.length_ms,
        -- cumulative, so that rounding for any piece of the window keeps its sum
        a AS checkpoint_to, a + b AS data_stall_to, a + b + c AS straggler_wait_to, a + b + c + d AS comm_stall_to,
        a + b + c + d + e AS evaluate_to,
        lead(cut.time_ms) OVER (
            PARTITION BY tenancy.tenancy_id ORDER BY cut.time_ms, hash(cut.run), cut.attempt, cut.rank) AS next_ms,
        least(cut.to_ms, cut.time_ms + 3600000, next_ms) AS to_ms,
        coalesce(next_ms > least(cut.to_ms, cut.time_ms + 3600000), true) AS pauses
    FROM cut
    JOIN placed tenancy
        ON tenancy.node_uid = cut.node_uid AND tenancy.slot_index = cut.slot_index
        AND coalesce(cut.pod_uid = tenancy.pod_uid, true)
        AND cut.time_ms < tenancy.hold_to_ms AND cut.to_ms > tenancy.hold_from_ms
)
-- Numbered by position: a chunk has fewer than 2^30 milliseconds, so no counting is needed.
SELECT (tenancy_id::BIGINT << 30) + greatest(from_ms - getvariable('chunk_from_ms'), 0) AS fold_id,
    * EXCLUDE (next_ms) REPLACE (
        greatest(from_ms, getvariable('chunk_from_ms')) AS from_ms, least(to_ms, getvariable('chunk_to_ms')) AS to_ms
    )
FROM on_slot
WHERE from_ms < getvariable('chunk_to_ms') AND to_ms > getvariable('chunk_from_ms') AND from_ms < to_ms;
