-- Instead of 09 if there is no GPU telemetry here and no carry from the chunk before. 14 has nothing to hand over.

CREATE OR REPLACE TEMP TABLE sample_span (
    sample_id INTEGER, tenancy_id INTEGER, state state_name, from_ms BIGINT, to_ms BIGINT
);
CREATE OR REPLACE TEMP TABLE tenancy_island (tenancy_id INTEGER, looks look_name, from_ms BIGINT, to_ms BIGINT);
CREATE OR REPLACE TEMP TABLE used_before (tenancy_id INTEGER, active_until_ms BIGINT);
CREATE OR REPLACE TEMP TABLE first_use (tenancy_id INTEGER, own_ms BIGINT, pod_ms BIGINT);
CREATE OR REPLACE TEMP TABLE sampled (
    slot_id INTEGER, instance SMALLINT, time_ms BIGINT, energy_j BIGINT, power_w SMALLINT, looks look_name
);
