-- The same, summed over slots and holders.

SELECT minute_ms AS time_ms, state, pod_uid IS NOT NULL AS held, usd_micro_per_hour, sum(ms)::BIGINT AS ms
FROM new_ledger_row GROUP BY ALL ORDER BY state, held, usd_micro_per_hour, time_ms
