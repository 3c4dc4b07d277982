-- The ledger rows of the chunk in storage order: a slot's minutes in one state are consecutive.

WITH settled AS (
    SELECT tenancy_id, minute_ms, attempt, state, evidence, ms FROM divided_minute WHERE alone
    UNION ALL
    SELECT any_value(tenancy_id), minute_ms, divided_minute.attempt, state, divided_minute.evidence, sum(ms)
    FROM divided_minute JOIN tenancy USING (tenancy_id) WHERE NOT alone
    GROUP BY holder_id, minute_ms, divided_minute.attempt, state, divided_minute.evidence
),
-- Rows are sorted before they get their names: numbers sort faster than texts.
ordered AS (
    SELECT tenancy_id, minute_ms, attempt::SMALLINT AS attempt, state, evidence::SMALLINT AS evidence, ms::INTEGER AS ms
    FROM settled WHERE ms > 0 ORDER BY tenancy_id, state, minute_ms
),
named AS MATERIALIZED (
    SELECT tenancy_id, node_uid, slot_index, nullif(pod_uid, '') AS pod_uid, usd_micro_per_hour,
        slot_price.from_ms AS price_from_ms, slot_price.to_ms AS price_to_ms
    FROM tenancy JOIN every_slot USING (slot_id) JOIN slot_price USING (slot_id)
)
-- The state is written as a text: DuckDB 2.0 loses some values of an ENUM when it writes Parquet.
SELECT minute_ms, node_uid, slot_index, pod_uid, attempt, state::VARCHAR AS state, evidence, usd_micro_per_hour, ms
FROM ordered JOIN named USING (tenancy_id)
WHERE price_from_ms <= minute_ms + 59999 AND price_to_ms > minute_ms + 59999
