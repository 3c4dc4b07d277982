-- GPU activity of each holder: the sum of the activity readings while it held GPUs, by quarter of an hour. Holders that
-- share a device by time have all of its readings; a MIG instance has its own.
-- Needs: sampled, tenant, tenancy, every_slot.

CREATE OR REPLACE TEMP TABLE chunk_activity AS
WITH had AS MATERIALIZED (
    SELECT tenant.slot_id, tenancy.instance, tenancy.pod_uid, tenant.from_ms, tenant.to_ms
    FROM tenant JOIN tenancy USING (tenancy_id) WHERE pod_uid != ''
),
reading_of AS (
    SELECT slot_id, instance, time_ms, time_ms // 900000 * 900000 AS quarter_ms, activity FROM sampled
    WHERE activity IS NOT NULL AND time_ms >= getvariable('chunk_from_ms') AND time_ms < getvariable('chunk_to_ms')
),
-- The common case is one holder all the time, so quarters are summed before they are assigned.
summed AS (
    SELECT slot_id, instance, quarter_ms, sum(activity) AS activity, count(*) AS readings FROM reading_of GROUP BY ALL
),
reading_of_holder AS (
    SELECT slot_id, pod_uid, quarter_ms, activity, readings FROM summed JOIN had USING (slot_id, instance)
    WHERE from_ms <= quarter_ms AND to_ms >= least(quarter_ms + 900000, getvariable('chunk_to_ms'))
    UNION ALL
    SELECT slot_id, pod_uid, quarter_ms, activity, 1
    FROM reading_of JOIN (
        SELECT * FROM had WHERE from_ms > getvariable('chunk_from_ms') OR to_ms < getvariable('chunk_to_ms')
    ) USING (slot_id, instance)
    WHERE time_ms >= from_ms AND time_ms < to_ms
        AND NOT (from_ms <= quarter_ms AND to_ms >= least(quarter_ms + 900000, getvariable('chunk_to_ms')))
)
SELECT quarter_ms AS time_ms, node_uid, pod_uid, sum(readings)::BIGINT AS readings, sum(activity)::BIGINT AS activity_sum
FROM reading_of_holder JOIN every_slot USING (slot_id) GROUP BY ALL;
