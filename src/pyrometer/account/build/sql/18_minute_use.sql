-- The same by holder, summed over slots and states. Consecutive equal minutes of an hour are one row.

SELECT min(minute_ms) AS time_ms, node_uid, pod_uid, usd_micro_per_hour, count(*)::SMALLINT AS minutes, ms
FROM (
    SELECT *, minute_ms // 60000 - row_number() OVER (
        PARTITION BY minute_ms // 3600000, node_uid, pod_uid, usd_micro_per_hour, ms ORDER BY minute_ms
    ) AS stretch
    FROM (
        SELECT minute_ms, node_uid, pod_uid, usd_micro_per_hour, sum(ms)::BIGINT AS ms
        FROM new_ledger_row GROUP BY ALL
    )
)
GROUP BY minute_ms // 3600000, node_uid, pod_uid, usd_micro_per_hour, ms, stretch
ORDER BY node_uid, pod_uid, usd_micro_per_hour, time_ms
