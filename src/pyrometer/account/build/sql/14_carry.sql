-- The carry for the next chunk: the start and the end of activity of each continuing tenancy, and of any device of its
-- pod.

CREATE OR REPLACE TEMP TABLE chunk_carry AS
WITH latest AS (
    SELECT tenancy_id, max(active_until_ms) AS active_until_ms
    FROM (
        SELECT tenancy_id, least(to_ms, getvariable('chunk_to_ms')) AS active_until_ms
        FROM tenancy_island WHERE looks != 'idle' AND from_ms < getvariable('chunk_to_ms')
        UNION ALL SELECT tenancy_id, active_until_ms FROM used_before
    )
    GROUP BY tenancy_id
)
SELECT getvariable('chunk_to_ms') AS time_ms, node_uid, slot_index, pod_uid, instance,
    CASE WHEN own_ms < getvariable('chunk_to_ms') THEN own_ms END AS first_active_ms,
    CASE WHEN pod_ms < getvariable('chunk_to_ms') THEN pod_ms END AS pod_active_ms,
    active_until_ms
FROM first_use
JOIN tenancy USING (tenancy_id)
JOIN every_slot USING (slot_id)
LEFT JOIN latest USING (tenancy_id)
WHERE hold_to_ms > getvariable('chunk_to_ms') AND pod_ms < getvariable('chunk_to_ms');
