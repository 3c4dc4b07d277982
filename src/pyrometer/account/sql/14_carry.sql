-- What the next chunk must know of this one: since when, and until when, each tenancy that goes on was active.

CREATE OR REPLACE TEMP TABLE chunk_carry AS
WITH active AS (
    SELECT tenancy_id, from_ms AS first_active_ms, least(to_ms, getvariable('chunk_to_ms')) AS active_until_ms
    FROM tenancy_island WHERE looks != 'idle' AND pod_uid != '' AND from_ms < getvariable('chunk_to_ms')
    UNION ALL
    SELECT tenancy_id, carried.first_active_ms, carried.active_until_ms
    FROM carried JOIN every_slot USING (node_uid, slot_index) JOIN tenancy USING (slot_id, pod_uid)
)
SELECT getvariable('chunk_to_ms') AS time_ms, node_uid, slot_index, pod_uid,
    min(first_active_ms) AS first_active_ms, max(active_until_ms) AS active_until_ms
FROM active JOIN tenancy USING (tenancy_id) JOIN every_slot USING (slot_id)
WHERE hold_to_ms > getvariable('chunk_to_ms')
GROUP BY node_uid, slot_index, pod_uid;
