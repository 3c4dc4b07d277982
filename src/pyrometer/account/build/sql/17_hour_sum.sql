-- The rows of the chunk's new ledger, summed over minutes and slots.

SELECT minute_ms // 3600000 * 3600000 AS time_ms, node_uid, pod_uid, state, evidence, usd_micro_per_hour, sum(ms)::BIGINT AS ms
FROM new_ledger_row GROUP BY ALL ORDER BY node_uid, pod_uid, state, evidence, usd_micro_per_hour, time_ms
