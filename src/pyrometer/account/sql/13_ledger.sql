-- The ledger rows of the chunk, in the order in which they are kept.

CREATE OR REPLACE TEMP VIEW chunk_ledger AS
WITH settled AS (
    SELECT tenancy_id, minute_ms, attempt, divided_minute.state, evidence, ms
    FROM divided_minute JOIN tenant USING (tenant_id) WHERE alone
    UNION ALL
    SELECT any_value(tenancy_id), minute_ms, divided_minute.attempt, divided_minute.state, divided_minute.evidence, sum(ms)
    FROM divided_minute JOIN tenant USING (tenant_id) JOIN tenancy USING (tenancy_id) WHERE NOT alone
    GROUP BY holder_id, minute_ms, divided_minute.attempt, divided_minute.state, divided_minute.evidence
)
SELECT minute_ms, node_uid, slot_index, nullif(pod_uid, '') AS pod_uid, settled.attempt::SMALLINT AS attempt,
    settled.state::VARCHAR AS state, settled.evidence::SMALLINT AS evidence, usd_micro_per_hour, ms::INTEGER AS ms
FROM settled
JOIN tenancy USING (tenancy_id)
JOIN every_slot USING (slot_id)
JOIN slot_price USING (slot_id)
WHERE ms > 0 AND slot_price.from_ms <= minute_ms + 59999 AND slot_price.to_ms > minute_ms + 59999
ORDER BY slot_id, minute_ms, holder_id, settled.state, settled.evidence, settled.attempt;
