-- Instead of 16: there is no GPU telemetry here, so nobody knows how busy anything was.

CREATE OR REPLACE TEMP TABLE chunk_activity AS
SELECT NULL::BIGINT AS time_ms, NULL::VARCHAR AS node_uid, NULL::VARCHAR AS pod_uid, NULL::BIGINT AS readings,
    NULL::BIGINT AS activity_sum
WHERE false;
