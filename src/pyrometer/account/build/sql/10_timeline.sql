-- All layers combined: for every tenancy, between boundaries, the tenant, mark, window and sample that are in force.
-- A row of a layer writes its number where it starts and 0 where it ends; each value holds until the next.

CREATE OR REPLACE TEMP TABLE timeline AS
WITH boundary AS (
    SELECT tenancy_id, from_ms AS at_ms, tenant_id AS tenant, NULL AS mark, NULL AS fold, NULL AS sample FROM tenant
    UNION ALL SELECT tenancy_id, to_ms, 0, NULL, NULL, NULL FROM tenant
    UNION ALL SELECT tenancy_id, from_ms, NULL, mark_id, NULL, NULL FROM mark
    UNION ALL SELECT tenancy_id, to_ms, NULL, 0, NULL, NULL FROM mark
    UNION ALL SELECT tenancy_id, from_ms, NULL, NULL, fold_id, NULL FROM step_fold
    UNION ALL SELECT tenancy_id, to_ms, NULL, NULL, 0, NULL FROM step_fold WHERE pauses OR to_ms = getvariable('chunk_to_ms')
    UNION ALL SELECT tenancy_id, from_ms, NULL, NULL, NULL, sample_id FROM sample_span
    UNION ALL SELECT tenancy_id, to_ms, NULL, NULL, NULL, 0 FROM sample_span
),
at_once AS (  -- where one row ends and the next starts, the start counts
    SELECT tenancy_id, at_ms, max(tenant) AS tenant, max(mark) AS mark, max(fold) AS fold, max(sample) AS sample
    FROM boundary GROUP BY tenancy_id, at_ms
),
held AS (
    SELECT tenancy_id, at_ms AS from_ms, lead(at_ms) OVER so_far AS to_ms,
        last_value(tenant IGNORE NULLS) OVER so_far AS tenant_id, last_value(mark IGNORE NULLS) OVER so_far AS mark_id,
        last_value(fold IGNORE NULLS) OVER so_far AS fold_id, last_value(sample IGNORE NULLS) OVER so_far AS sample_id
    FROM at_once
    WINDOW so_far AS (PARTITION BY tenancy_id ORDER BY at_ms ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT tenancy_id, from_ms, to_ms, tenant_id,
    coalesce(mark_id, 0) AS mark_id, coalesce(fold_id, 0) AS fold_id, coalesce(sample_id, 0) AS sample_id
FROM held WHERE tenant_id > 0 AND to_ms IS NOT NULL;
