-- Time, energy and activity by hour and holder, without states. Energy and activity are in the first row of a holder's hour.

SELECT held.time_ms, held.node_uid, held.pod_uid, usd_micro_per_hour, held_ms AS ms,
    coalesce(energy_mj, 0) * is_first AS energy_mj, coalesce(energy_ms, 0) * is_first AS energy_ms,
    coalesce(estimated_ms, 0) * is_first AS estimated_ms, coalesce(readings, 0) * is_first AS readings,
    coalesce(activity_sum, 0) * is_first AS activity_sum
FROM (
    SELECT time_ms, node_uid, pod_uid, usd_micro_per_hour, sum(ms)::BIGINT AS held_ms,
        (row_number() OVER (PARTITION BY time_ms, node_uid, pod_uid ORDER BY usd_micro_per_hour) = 1)::BIGINT AS is_first
    FROM new_hour_sum GROUP BY time_ms, node_uid, pod_uid, usd_micro_per_hour
) held
LEFT JOIN (
    SELECT time_ms // 3600000 * 3600000 AS hour_ms, node_uid, pod_uid, sum(energy_mj)::BIGINT AS energy_mj,
        sum(ms)::BIGINT AS energy_ms, sum(estimated_ms)::BIGINT AS estimated_ms, sum(readings)::BIGINT AS readings,
        sum(activity_sum)::BIGINT AS activity_sum
    FROM new_quarter_use GROUP BY ALL
) used ON hour_ms = held.time_ms AND used.node_uid = held.node_uid AND used.pod_uid IS NOT DISTINCT FROM held.pod_uid
ORDER BY held.node_uid, held.pod_uid, usd_micro_per_hour, held.time_ms
