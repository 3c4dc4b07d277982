-- The ledger rows of the chunk, in the order in which they are kept: a slot's minutes in one state lie together.

CREATE OR REPLACE TEMP VIEW chunk_ledger AS
WITH settled AS (
    SELECT tenancy_id, minute_ms, attempt, state, evidence, ms FROM divided_minute WHERE alone
    UNION ALL
    SELECT any_value(tenancy_id), minute_ms, divided_minute.attempt, state, divided_minute.evidence, sum(ms)
    FROM divided_minute JOIN tenancy USING (tenancy_id) WHERE NOT alone
    GROUP BY holder_id, minute_ms, divided_minute.attempt, state, divided_minute.evidence
),
named AS (
    SELECT tenancy_id, slot_id, node_uid::node_key AS node_uid, slot_index, nullif(pod_uid, '')::pod_key AS pod_uid,
        usd_micro_per_hour,
        slot_price.from_ms AS price_from_ms, slot_price.to_ms AS price_to_ms
    FROM tenancy JOIN every_slot USING (slot_id) JOIN slot_price USING (slot_id)
)
-- Names are numbers while the rows are put in order, and words before they are written: DuckDB 2.0 loses some numbers on
-- their way into Parquet.
SELECT * REPLACE (node_uid::VARCHAR AS node_uid, pod_uid::VARCHAR AS pod_uid, state::VARCHAR AS state)
FROM (
    SELECT minute_ms, node_uid, slot_index, pod_uid, attempt::SMALLINT AS attempt, settled.state,
        evidence::SMALLINT AS evidence, usd_micro_per_hour, ms::INTEGER AS ms
    FROM settled JOIN named USING (tenancy_id)
    WHERE ms > 0 AND price_from_ms <= minute_ms + 59999 AND price_to_ms > minute_ms + 59999
    ORDER BY slot_id, settled.state, minute_ms
);
