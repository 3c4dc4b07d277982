-- Instead of 16 if there is no GPU telemetry, so activity is unknown.

CREATE OR REPLACE TEMP TABLE chunk_activity AS
SELECT NULL::BIGINT AS time_ms, NULL::VARCHAR AS node_uid, NULL::VARCHAR AS pod_uid, NULL::BIGINT AS readings,
    NULL::BIGINT AS activity_sum
WHERE false;
