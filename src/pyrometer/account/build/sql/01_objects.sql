-- The newest record of every object, up to the accounted end. Created once per build; every chunk of hours reads it.

CREATE OR REPLACE TEMP TABLE the_pod AS
SELECT pod.*, coalesce(workload.serves, false) AS serves
FROM (
    SELECT * FROM pod WHERE time_ms <= getvariable('newest_ms')
    QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
) pod
LEFT JOIN (
    SELECT workload_uid, serves FROM workload WHERE time_ms <= getvariable('newest_ms')
    QUALIFY row_number() OVER (PARTITION BY workload_uid ORDER BY time_ms DESC) = 1
) workload USING (workload_uid);

CREATE OR REPLACE TEMP TABLE the_allocation AS
WITH held AS (  -- a hold ends at its own end, else when its pod ended, else it is still open
    SELECT
        newest.pod_uid, newest.node_uid, newest.slot_index, newest.instance, newest.share, newest.source,
        newest.from_ms,
        least(coalesce(newest.to_ms, the_pod.ended_ms, getvariable('end_ms')), getvariable('end_ms')) AS to_ms
    FROM (
        SELECT * FROM allocation WHERE time_ms <= getvariable('newest_ms')
        QUALIFY row_number() OVER (
            PARTITION BY pod_uid, node_uid, slot_index, instance, from_ms ORDER BY time_ms DESC) = 1
    ) newest
    LEFT JOIN the_pod USING (pod_uid)
    WHERE newest.share > 0
)
-- A pod that holds a slot more than once has one tenancy, from its first hold to its last.
SELECT *, min(from_ms) OVER tenancy AS first_ms, max(to_ms) OVER tenancy AS last_ms, count(*) OVER tenancy > 1 AS again
FROM held WHERE from_ms < to_ms WINDOW tenancy AS (PARTITION BY pod_uid, node_uid, slot_index, instance);

-- The state of each node between observations. Capacity is counted in whole minutes: a node exists from the minute in
-- which it was first seen to the end of the minute in which it was last seen.
CREATE OR REPLACE TEMP TABLE node_span AS
WITH seen AS (
    SELECT *,
        lag(present) OVER in_time AS was_present,
        max(gpu_count) OVER (PARTITION BY node_uid ORDER BY time_ms ROWS UNBOUNDED PRECEDING) AS capacity,
        hash(gpu_model, pool, instance_type, purchase, cluster, ready, schedulable, present, gpu_count) AS looks
    FROM node WHERE time_ms <= getvariable('newest_ms')
    WINDOW in_time AS (PARTITION BY node_uid ORDER BY time_ms)
),
changed AS (
    SELECT *,
        CASE
            WHEN NOT present THEN (time_ms + 59999) // 60000 * 60000
            WHEN was_present THEN time_ms
            ELSE greatest(time_ms // 60000 * 60000, coalesce(
                max(CASE WHEN was_present AND NOT present THEN (time_ms + 59999) // 60000 * 60000 END) OVER in_time, 0))
        END AS from_ms
    FROM seen
    WINDOW in_time AS (PARTITION BY node_uid ORDER BY time_ms)
    QUALIFY looks IS DISTINCT FROM lag(looks) OVER in_time
)
SELECT
    node_uid, capacity, gpu_count, gpu_model, pool, purchase, cluster, instance_type, ready AND schedulable AS available,
    present, from_ms,
    lead(from_ms, 1, getvariable('end_ms')) OVER (PARTITION BY node_uid ORDER BY time_ms) AS to_ms
FROM changed QUALIFY present AND from_ms < to_ms;

-- The time between the end of a pod's containers and their next start. A start that was not seen does not limit it.
CREATE OR REPLACE TEMP TABLE restarting AS
SELECT pod_uid, from_ms, coalesce(again_ms, getvariable('end_ms')) AS to_ms
FROM (
    SELECT ended.pod_uid, ended.time_ms AS from_ms, started.time_ms AS again_ms,
        lead(ended.time_ms) OVER (PARTITION BY ended.pod_uid ORDER BY ended.time_ms) AS next_end_ms
    FROM (SELECT DISTINCT pod_uid, time_ms FROM event
        WHERE kind = 'container_restarted' AND time_ms <= getvariable('newest_ms')) ended
    ASOF LEFT JOIN (SELECT pod_uid, time_ms FROM event
        WHERE kind = 'container_started' AND time_ms <= getvariable('newest_ms')) started
        ON started.pod_uid = ended.pod_uid AND ended.time_ms <= started.time_ms
)
WHERE coalesce(again_ms <= next_end_ms, next_end_ms IS NULL);

-- The time in which a cluster was not watched: pods may have come and gone, so nothing was certainly free.
CREATE OR REPLACE TEMP TABLE blind AS
SELECT cluster, time_ms AS from_ms, least(time_ms + duration_ms, getvariable('end_ms')) AS to_ms
FROM event WHERE kind = 'watch_gap' AND time_ms <= getvariable('newest_ms') AND duration_ms > 0;

CREATE OR REPLACE TEMP TABLE slot_seen AS
SELECT *, lead(time_ms, 1, getvariable('end_ms')) OVER (PARTITION BY node_uid, slot_index ORDER BY time_ms) AS until_ms
FROM slot WHERE time_ms <= getvariable('newest_ms');

-- Every slot that ever existed, with a small number in storage order:
-- of a described node; else one that reported its lifetime; else one that exists while it is allocated.
CREATE OR REPLACE TEMP TABLE every_slot AS
WITH of_node AS (
    SELECT node_uid, unnest(range(max(capacity)::BIGINT))::SMALLINT AS slot_index, 'node' AS known_by
    FROM node_span GROUP BY node_uid
),
of_life AS (
    SELECT DISTINCT node_uid, slot_index, 'life' AS known_by
    FROM slot_seen ANTI JOIN node_span USING (node_uid) WHERE from_ms IS NOT NULL
),
of_hold AS (
    SELECT DISTINCT node_uid, slot_index, 'hold' AS known_by
    FROM the_allocation ANTI JOIN of_node USING (node_uid, slot_index) ANTI JOIN of_life USING (node_uid, slot_index)
)
SELECT row_number() OVER (ORDER BY node_uid, slot_index)::INTEGER AS slot_id, *
FROM (FROM of_node UNION ALL FROM of_life UNION ALL FROM of_hold);

-- When each slot existed, with everything that its price depends on, including the number of slots of its node at the time.
CREATE OR REPLACE TEMP TABLE every_slot_span (
    slot_id, known_by, from_ms, to_ms, available, gpu_model, pool, cluster, purchase, instance_type, node_gpus
) AS
SELECT slot_id, known_by,
    -- a device that its node reports later than others exists from the beginning of that minute
    CASE WHEN lag(span.from_ms) OVER in_time IS NULL THEN span.from_ms // 60000 * 60000 ELSE span.from_ms END, span.to_ms,
    span.available AND slot_index < span.gpu_count AS available,
    span.gpu_model, span.pool, span.cluster, span.purchase, span.instance_type, span.capacity
FROM every_slot JOIN node_span span USING (node_uid)
WHERE known_by = 'node' AND slot_index < span.capacity
WINDOW in_time AS (PARTITION BY slot_id ORDER BY span.from_ms)
UNION ALL
SELECT slot_id, known_by, life.from_ms, least(coalesce(life.to_ms, getvariable('end_ms')), getvariable('end_ms')),
    true, life.gpu_model, NULL, NULL, NULL, NULL, NULL
FROM every_slot
JOIN (
    SELECT node_uid, slot_index, gpu_model, from_ms, to_ms FROM slot_seen WHERE from_ms IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY node_uid, slot_index ORDER BY time_ms DESC) = 1
) life USING (node_uid, slot_index)
WHERE known_by = 'life'
UNION ALL
SELECT slot_id, known_by, min(hold.from_ms), max(hold.to_ms), true, any_value(slot_seen.gpu_model), NULL, NULL, NULL, NULL,
    NULL
FROM every_slot
JOIN the_allocation hold USING (node_uid, slot_index)
LEFT JOIN slot_seen ON slot_seen.node_uid = every_slot.node_uid AND slot_seen.slot_index = every_slot.slot_index
WHERE known_by = 'hold'
GROUP BY slot_id, known_by;
