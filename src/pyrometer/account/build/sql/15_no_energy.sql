-- Instead of 15 if there is no GPU telemetry, so energy is unknown.

CREATE OR REPLACE TEMP VIEW chunk_energy AS
SELECT NULL::BIGINT AS time_ms, NULL::VARCHAR AS node_uid, NULL::SMALLINT AS slot_index, NULL::VARCHAR AS pod_uid,
    NULL::BIGINT AS energy_mj, NULL::INTEGER AS ms, NULL::INTEGER AS estimated_ms
WHERE false;
