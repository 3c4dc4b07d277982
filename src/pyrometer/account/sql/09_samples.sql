-- GPU telemetry. A sample speaks until the next one, or for as long as it reaches; equal neighbours become one island.
-- Reads one idle gap beyond the chunk, so that a gap is judged by its whole length.

CREATE OR REPLACE TEMP TABLE island AS
WITH known AS (
    SELECT every_slot.slot_id, instance, time_ms,
        -- profiling counters; utilisation alone says only that a kernel was there
        greatest(sm_active_permille, tensor_active_permille, dram_active_permille) AS work,
        CASE
            WHEN work IS NULL AND gpu_util_permille IS NULL THEN NULL
            WHEN gpu_util_permille >= 900 AND work < 50 AND gpu_sample.power_w <= near_idle.power_w THEN 'spins'
            WHEN coalesce(gpu_util_permille, 0) < 50 AND coalesce(work, 0) < 20 THEN 'idle'
            ELSE 'busy'
        END AS looks
    FROM gpu_sample
    JOIN every_slot USING (node_uid, slot_index)
    JOIN near_idle USING (slot_id)
    WHERE time_ms >= getvariable('chunk_from_ms') - getvariable('sample_bridge_ms')
        AND time_ms < getvariable('chunk_to_ms') + getvariable('idle_gap_ms') + getvariable('sample_bridge_ms')
        AND time_ms < getvariable('end_ms')
        AND looks IS NOT NULL
),
ordered AS (
    SELECT slot_id, instance, time_ms, looks,
        lag(looks) OVER in_time AS looked, lag(time_ms) OVER in_time AS was_ms, lead(time_ms) OVER in_time AS next_ms
    FROM known WINDOW in_time AS (PARTITION BY slot_id, instance ORDER BY time_ms, looks)
),
edge AS (
    SELECT *,
        looked IS DISTINCT FROM looks OR time_ms - was_ms > getvariable('sample_bridge_ms') AS begins,
        CASE WHEN time_ms - was_ms <= getvariable('sample_bridge_ms') THEN time_ms
            ELSE was_ms + getvariable('sample_reach_ms') END AS before_to_ms
    FROM ordered WHERE begins OR next_ms IS NULL
),
closed AS (
    SELECT slot_id, instance, looks, time_ms AS from_ms, begins,
        -- a next edge that begins an island says where this one ended; one that does not is its last sample
        coalesce(
            lead(CASE WHEN begins THEN before_to_ms ELSE time_ms + getvariable('sample_reach_ms') END) OVER in_time,
            time_ms + getvariable('sample_reach_ms')
        ) AS to_ms
    FROM edge WINDOW in_time AS (PARTITION BY slot_id, instance ORDER BY time_ms, looks)
)
SELECT slot_id, instance, looks, from_ms, to_ms FROM closed WHERE begins AND from_ms < to_ms;

-- The islands of each tenancy; a device's samples speak for all who share it.
CREATE OR REPLACE TEMP TABLE tenancy_island AS
SELECT tenancy.tenancy_id, tenancy.pod_uid, tenancy.slot_id, island.looks,
    greatest(island.from_ms, hold_from_ms) AS from_ms, least(island.to_ms, hold_to_ms) AS to_ms
FROM island
JOIN tenancy ON tenancy.slot_id = island.slot_id AND (tenancy.instance = island.instance OR island.instance = -1)
WHERE island.from_ms < hold_to_ms AND island.to_ms > hold_from_ms;

CREATE OR REPLACE TEMP TABLE sample_span AS
WITH before AS (
    SELECT tenancy_id, min(carried.first_active_ms) AS first_active_ms, max(carried.active_until_ms) AS active_until_ms
    FROM carried JOIN every_slot USING (node_uid, slot_index) JOIN tenancy USING (slot_id, pod_uid)
    GROUP BY tenancy_id
),
first_use AS (  -- of each device, and of any device of its pod
    SELECT tenancy.tenancy_id,
        least(any_value(before.first_active_ms), min(CASE WHEN looks != 'idle' THEN island.from_ms END)) AS own_ms,
        min(own_ms) OVER (PARTITION BY tenancy.pod_uid) AS pod_ms
    FROM tenancy
    LEFT JOIN before USING (tenancy_id)
    LEFT JOIN tenancy_island island USING (tenancy_id)
    WHERE tenancy.pod_uid != ''
    GROUP BY tenancy.tenancy_id, tenancy.pod_uid
),
around AS (
    SELECT island.*, tenancy.serves, tenancy.started_ms + getvariable('startup_limit_ms') AS startup_to_ms,
        first_use.own_ms, first_use.pod_ms,
        coalesce(max(CASE WHEN looks != 'idle' THEN island.to_ms END) OVER earlier, before.active_until_ms) AS active_until_ms,
        -- a gap ends with the next activity, else where telemetry ends
        coalesce(min(CASE WHEN looks != 'idle' THEN island.from_ms END) OVER later, max(island.to_ms) OVER everything) AS gap_to_ms
    FROM tenancy_island island
    JOIN tenancy USING (tenancy_id)
    LEFT JOIN before USING (tenancy_id)
    LEFT JOIN first_use USING (tenancy_id)
    WINDOW
        everything AS (PARTITION BY island.tenancy_id),
        earlier AS (PARTITION BY island.tenancy_id ORDER BY island.from_ms ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
        later AS (PARTITION BY island.tenancy_id ORDER BY island.from_ms ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
),
never_active AS (
    SELECT *,
        CASE WHEN pod_ms IS NOT NULL AND least(coalesce(own_ms, gap_to_ms), gap_to_ms) - pod_ms >= getvariable('idle_gap_ms')
            THEN pod_ms END AS unused_from_ms
    FROM around WHERE looks = 'idle' AND pod_uid != '' AND active_until_ms IS NULL
),
judged AS (
    SELECT tenancy_id, from_ms, to_ms,
        CASE
            WHEN pod_uid = '' THEN NULL  -- nobody's: it only shows that telemetry was there
            WHEN looks = 'spins' THEN 'hang'
            WHEN looks = 'busy' AND serves THEN 'infer'
            WHEN looks = 'busy' THEN 'active'
            WHEN gap_to_ms - active_until_ms >= getvariable('idle_gap_ms') THEN 'idle_held'
            ELSE 'starved'
        END AS state
    FROM around WHERE looks != 'idle' OR pod_uid = '' OR active_until_ms IS NOT NULL
    UNION ALL  -- never active so far: starting up, for a while, unless another device of the pod is at work already
    SELECT tenancy_id, from_ms, least(to_ms, startup_to_ms, coalesce(unused_from_ms, to_ms)), 'startup'
    FROM never_active
    UNION ALL
    SELECT tenancy_id, greatest(from_ms, unused_from_ms), to_ms, 'unused_device'
    FROM never_active WHERE unused_from_ms IS NOT NULL
    UNION ALL
    SELECT tenancy_id, greatest(from_ms, startup_to_ms), to_ms,
        CASE WHEN gap_to_ms - startup_to_ms >= getvariable('idle_gap_ms') THEN 'idle_held' ELSE 'starved' END
    FROM never_active WHERE unused_from_ms IS NULL
)
SELECT row_number() OVER ()::INTEGER AS sample_id, tenancy_id, state,
    greatest(from_ms, getvariable('chunk_from_ms')) AS from_ms, least(to_ms, getvariable('chunk_to_ms')) AS to_ms
FROM judged
WHERE from_ms < to_ms AND from_ms < getvariable('chunk_to_ms') AND to_ms > getvariable('chunk_from_ms');
