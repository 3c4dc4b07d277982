-- GPU telemetry. A sample is valid until the next one, or for its reach. Consecutive equal samples become one island.
-- Reads one idle gap beyond the chunk, so that a gap is judged by its whole length; and a quarter of an hour around it, for energy.

CREATE OR REPLACE TEMP TABLE sampled AS
SELECT * EXCLUDE (work) FROM (
    SELECT every_slot.slot_id, instance, time_ms, energy_j,
        CASE WHEN gpu_sample.power_w >= 0 THEN gpu_sample.power_w END AS power_w,
        -- GPU activity, from the best available counter
        coalesce(sm_active_permille, graphics_active_permille, gpu_util_permille) AS activity,
        -- profiling counters; utilization only tells that a kernel was running
        greatest(sm_active_permille, tensor_active_permille, dram_active_permille) AS work,
        (CASE
            WHEN work IS NULL AND gpu_util_permille IS NULL THEN NULL
            WHEN gpu_util_permille >= 900 AND work < 50 AND gpu_sample.power_w <= near_idle.power_w THEN 'spins'
            WHEN coalesce(gpu_util_permille, 0) < 50 AND coalesce(work, 0) < 20 THEN 'idle'
            -- a process that keeps its device busy without progress; power distinguishes it from failed counters
            WHEN gpu_util_permille < 500 AND work = 0 AND gpu_sample.power_w <= near_idle.power_w THEN 'idle'
            ELSE 'busy'
        END)::look_name AS looks
    FROM gpu_sample
    JOIN every_slot USING (node_uid, slot_index)
    JOIN near_idle USING (slot_id)
    WHERE time_ms >= getvariable('chunk_from_ms') - greatest(getvariable('sample_bridge_ms'), 900000)
        AND time_ms < getvariable('chunk_to_ms') + greatest(getvariable('idle_gap_ms') + getvariable('sample_bridge_ms'), 900000)
        AND time_ms <= getvariable('newest_ms')
);

CREATE OR REPLACE TEMP TABLE island AS
WITH ordered AS (
    SELECT slot_id, instance, time_ms, looks,
        lag(looks) OVER in_time AS looked, lag(time_ms) OVER in_time AS was_ms, lead(time_ms) OVER in_time AS next_ms
    FROM sampled
    WHERE looks IS NOT NULL AND time_ms >= getvariable('chunk_from_ms') - getvariable('sample_bridge_ms')
        AND time_ms < getvariable('chunk_to_ms') + getvariable('idle_gap_ms') + getvariable('sample_bridge_ms')
    WINDOW in_time AS (PARTITION BY slot_id, instance ORDER BY time_ms, looks)
),
held_from AS (  -- the starts of holds, on slots that have any
    SELECT slot_id, list(this_from_ms) AS starts_ms FROM hold
    WHERE this_from_ms > getvariable('chunk_from_ms') - getvariable('sample_bridge_ms') GROUP BY slot_id
),
edge AS (
    SELECT *,
        looked IS DISTINCT FROM looks OR time_ms - was_ms > getvariable('sample_bridge_ms')
            -- earlier samples say nothing about the next holder
            OR coalesce(len(list_filter(starts_ms, lambda start_ms: start_ms > was_ms AND start_ms <= time_ms)) > 0, false)
            AS begins,
        CASE WHEN time_ms - was_ms <= getvariable('sample_bridge_ms') THEN time_ms
            ELSE was_ms + getvariable('sample_reach_ms') END AS before_to_ms
    FROM ordered LEFT JOIN held_from USING (slot_id)
    WHERE begins OR next_ms IS NULL
),
closed AS (
    SELECT slot_id, instance, looks, time_ms AS from_ms, begins,
        -- if the next edge starts an island, this one ended there; otherwise the edge is its last sample
        coalesce(
            lead(CASE WHEN begins THEN before_to_ms ELSE time_ms + getvariable('sample_reach_ms') END) OVER in_time,
            time_ms + getvariable('sample_reach_ms')
        ) AS to_ms
    FROM edge WINDOW in_time AS (PARTITION BY slot_id, instance ORDER BY time_ms, looks)
)
SELECT slot_id, instance, looks, from_ms, to_ms FROM closed WHERE begins AND from_ms < to_ms;

-- The islands of each tenancy. Samples of a device apply to all who share it by time; a MIG instance has its own.
CREATE OR REPLACE TEMP TABLE tenancy_island AS
SELECT tenancy.tenancy_id, tenancy.pod_uid, tenancy.slot_id, island.looks,
    greatest(island.from_ms, hold_from_ms) AS from_ms, least(island.to_ms, hold_to_ms) AS to_ms
FROM island
JOIN tenancy ON tenancy.slot_id = island.slot_id AND tenancy.instance = island.instance
WHERE island.from_ms < hold_to_ms AND island.to_ms > hold_from_ms
    AND (tenancy.pod_uid = '' OR island.from_ms >= hold_from_ms);

-- When each tenancy was first and last active according to earlier chunks, and the devices that its pod held at the same
-- time.
CREATE OR REPLACE TEMP TABLE used_before AS
SELECT tenancy_id, min(first_active_ms) AS own_ms, min(pod_active_ms) AS pod_ms, max(active_until_ms) AS active_until_ms
FROM carried JOIN every_slot USING (node_uid, slot_index) JOIN tenancy USING (slot_id, pod_uid, instance)
GROUP BY tenancy_id;

CREATE OR REPLACE TEMP TABLE first_use AS
WITH own AS (
    SELECT tenancy.tenancy_id, tenancy.pod_uid, hold_from_ms, hold_to_ms,
        least(any_value(used_before.own_ms), min(CASE WHEN looks != 'idle' THEN island.from_ms END)) AS own_ms,
        any_value(used_before.pod_ms) AS pod_ms
    FROM tenancy
    LEFT JOIN used_before USING (tenancy_id)
    LEFT JOIN tenancy_island island USING (tenancy_id)
    WHERE tenancy.pod_uid != ''
    GROUP BY tenancy.tenancy_id, tenancy.pod_uid, hold_from_ms, hold_to_ms
)
SELECT own.tenancy_id, own.own_ms, least(own.pod_ms, min(other.own_ms)) AS pod_ms
FROM own
JOIN own other
    ON other.pod_uid = own.pod_uid AND other.hold_from_ms < own.hold_to_ms AND other.hold_to_ms > own.hold_from_ms
GROUP BY own.tenancy_id, own.own_ms, own.pod_ms;

CREATE OR REPLACE TEMP TABLE sample_span AS
WITH around AS (
    SELECT island.*, tenancy.serves, tenancy.can_begin_ms + getvariable('startup_limit_ms') AS startup_to_ms,
        first_use.pod_ms,
        coalesce(max(CASE WHEN looks != 'idle' THEN island.to_ms END) OVER earlier, used_before.active_until_ms) AS active_until_ms
    FROM tenancy_island island
    JOIN tenancy USING (tenancy_id)
    LEFT JOIN used_before USING (tenancy_id)
    LEFT JOIN first_use USING (tenancy_id)
    WINDOW earlier AS (
        PARTITION BY island.tenancy_id ORDER BY island.from_ms ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
-- How far each gap is known to reach: up to the next activity, if telemetry shows it. Only one idle gap after its start is
-- examined, so the answer does not depend on how far this chunk reads.
gap AS (
    SELECT *,
        greatest(to_ms, max(to_ms) FILTER (from_ms <= active_until_ms + getvariable('idle_gap_ms')) OVER same_gap)
            - active_until_ms >= getvariable('idle_gap_ms') AS long,
        greatest(to_ms, max(to_ms) FILTER (from_ms <= startup_to_ms + getvariable('idle_gap_ms')) OVER same_gap)
            - startup_to_ms >= getvariable('idle_gap_ms') AS long_after_startup,
        greatest(to_ms, max(to_ms) FILTER (from_ms <= pod_ms + getvariable('idle_gap_ms')) OVER same_gap)
            - pod_ms >= getvariable('idle_gap_ms') AS long_unused
    FROM around WHERE looks = 'idle' AND pod_uid != ''
    WINDOW same_gap AS (PARTITION BY tenancy_id, active_until_ms)
),
-- Never active so far: starting up for a while, then idle; unused once another device of the pod has been active.
never_active AS (
    SELECT *, least(to_ms, CASE WHEN long_unused THEN pod_ms ELSE to_ms END) AS used_to_ms
    FROM gap WHERE active_until_ms IS NULL
),
judged AS (
    SELECT tenancy_id, from_ms, to_ms,
        CASE
            WHEN pod_uid = '' THEN NULL  -- without a holder: it only shows that there was telemetry
            WHEN looks = 'spins' THEN 'hang'
            WHEN serves THEN 'infer'
            ELSE 'active'
        END AS state
    FROM around WHERE looks != 'idle' OR pod_uid = ''
    UNION ALL
    SELECT tenancy_id, from_ms, to_ms, CASE WHEN long THEN 'idle_held' ELSE 'starved' END
    FROM gap WHERE active_until_ms IS NOT NULL
    UNION ALL
    SELECT tenancy_id, from_ms, least(used_to_ms, startup_to_ms), 'startup' FROM never_active
    UNION ALL
    SELECT tenancy_id, greatest(from_ms, startup_to_ms), used_to_ms,
        CASE WHEN long_after_startup THEN 'idle_held' ELSE 'starved' END
    FROM never_active
    UNION ALL
    SELECT tenancy_id, greatest(from_ms, pod_ms), to_ms, 'unused_device' FROM never_active WHERE long_unused
)
SELECT row_number() OVER ()::INTEGER AS sample_id, tenancy_id, state::state_name AS state,
    greatest(from_ms, getvariable('chunk_from_ms')) AS from_ms, least(to_ms, getvariable('chunk_to_ms')) AS to_ms
FROM judged
WHERE from_ms < to_ms AND from_ms < getvariable('chunk_to_ms') AND to_ms > getvariable('chunk_from_ms');
