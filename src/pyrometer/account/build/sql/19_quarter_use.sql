-- Energy, from the new rows, and activity, summed over slots.

SELECT time_ms, node_uid, pod_uid, sum(energy_mj)::BIGINT AS energy_mj, sum(ms)::BIGINT AS ms,
    sum(estimated_ms)::BIGINT AS estimated_ms, sum(readings)::BIGINT AS readings, sum(activity_sum)::BIGINT AS activity_sum
FROM (
    SELECT time_ms, node_uid, pod_uid, energy_mj, ms, estimated_ms, 0 AS readings, 0 AS activity_sum FROM new_energy
    UNION ALL
    SELECT time_ms, node_uid, pod_uid, 0, 0, 0, readings, activity_sum FROM chunk_activity
)
GROUP BY ALL ORDER BY node_uid, pod_uid, time_ms
