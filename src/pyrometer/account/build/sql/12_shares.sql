-- A tenant with a share of a slot has that share of its time: each segment's minute is divided among its tenants by largest
-- remainder, and each tenant's part among its states in proportion.

CREATE OR REPLACE TEMP TABLE shared_minute AS
WITH piece AS (  -- shared segments, cut into minutes
    SELECT tenant_id, segment_id, known_by, share, whole, minute_ms,
        least(to_ms, minute_ms + 60000) - greatest(from_ms, minute_ms) AS wall_ms
    FROM (
        SELECT tenant.*, segment.known_by, unnest(range(tenant.from_ms // 60000 * 60000, tenant.to_ms, 60000)) AS minute_ms
        FROM tenant JOIN segment USING (segment_id) WHERE share < whole
    )
),
quota AS (
    SELECT *, (wall_ms * share) // whole AS part_ms, (wall_ms * share) % whole AS remainder,
        -- the rest of a slot that exists only while it is held has no holder
        CASE WHEN known_by = 'hold' THEN (sum(wall_ms * share) OVER everyone) // whole ELSE wall_ms END
            - sum((wall_ms * share) // whole) OVER everyone AS left_ms
    FROM piece WINDOW everyone AS (PARTITION BY segment_id, minute_ms)
)
SELECT tenant_id, minute_ms, wall_ms,
    part_ms + (row_number() OVER (PARTITION BY segment_id, minute_ms ORDER BY remainder DESC, tenant_id) <= left_ms)::INTEGER AS part_ms
FROM quota;

CREATE OR REPLACE TEMP VIEW divided_minute AS
WITH grouped AS (
    SELECT tenant_id, tenancy_id, minute_ms, attempt, state, evidence, sum(ms) AS ms
    FROM tenant_minute WHERE shared
    GROUP BY tenant_id, tenancy_id, minute_ms, attempt, state, evidence
),
summed AS (
    SELECT *, sum(ms) OVER (
        PARTITION BY tenant_id, minute_ms ORDER BY state, attempt, evidence ROWS UNBOUNDED PRECEDING) AS to_ms
    FROM grouped JOIN shared_minute USING (tenant_id, minute_ms)
)
SELECT tenancy_id, minute_ms, attempt, state, evidence,
    ((2 * to_ms * part_ms + wall_ms) // (2 * wall_ms)
        - (2 * (to_ms - ms) * part_ms + wall_ms) // (2 * wall_ms))::INTEGER AS ms,
    false AS alone
FROM summed
UNION ALL
SELECT tenancy_id, minute_ms, attempt, state, evidence, ms, alone FROM tenant_minute WHERE NOT shared;
