-- The holders of each slot: segments in which the holders do not change, and each holder's share of them. Time without a
-- holder belongs to the platform (pod_uid ''), and so does a broken device, whoever holds it.

CREATE OR REPLACE TEMP TABLE hold AS
SELECT every_slot.slot_id, hold.pod_uid, hold.instance, hold.share, hold.source,
    greatest(hold.from_ms, getvariable('chunk_from_ms')) AS from_ms,
    least(hold.to_ms, getvariable('chunk_to_ms')) AS to_ms,
    hold.first_ms AS hold_from_ms, hold.last_ms AS hold_to_ms, hold.from_ms AS this_from_ms
FROM the_allocation hold JOIN every_slot USING (node_uid, slot_index)
WHERE hold.from_ms < getvariable('chunk_to_ms') AND hold.to_ms > getvariable('chunk_from_ms');

CREATE OR REPLACE TEMP TABLE broken AS
SELECT every_slot.slot_id,
    greatest(time_ms, getvariable('chunk_from_ms')) AS from_ms, least(until_ms, getvariable('chunk_to_ms')) AS to_ms
FROM slot_seen JOIN every_slot USING (node_uid, slot_index)
WHERE NOT healthy AND time_ms < getvariable('chunk_to_ms') AND until_ms > getvariable('chunk_from_ms')
    AND time_ms < until_ms;

CREATE OR REPLACE TEMP TABLE unwatched AS
SELECT DISTINCT slot_span.slot_id,
    greatest(blind.from_ms, slot_span.from_ms) AS from_ms, least(blind.to_ms, slot_span.to_ms) AS to_ms
FROM slot_span JOIN blind USING (cluster)
WHERE blind.from_ms < slot_span.to_ms AND blind.to_ms > slot_span.from_ms;

CREATE OR REPLACE TEMP TABLE segment AS
WITH cut AS (
    SELECT DISTINCT slot_id, unnest([from_ms, to_ms]) AS at_ms
    FROM (
        SELECT slot_id, from_ms, to_ms FROM slot_span
        UNION ALL SELECT slot_id, from_ms, to_ms FROM hold
        UNION ALL FROM broken
        UNION ALL FROM unwatched
    )
),
piece AS (
    SELECT slot_id, at_ms AS from_ms, lead(at_ms) OVER (PARTITION BY slot_id ORDER BY at_ms) AS to_ms FROM cut
    QUALIFY to_ms IS NOT NULL
)
SELECT row_number() OVER (ORDER BY piece.slot_id, piece.from_ms)::INTEGER AS segment_id,
    piece.slot_id, piece.from_ms, piece.to_ms, span.known_by, span.available, broken.slot_id IS NOT NULL AS broken,
    EXISTS (
        FROM unwatched
        WHERE unwatched.slot_id = piece.slot_id AND unwatched.from_ms <= piece.from_ms AND unwatched.to_ms >= piece.to_ms
    ) AS unwatched
FROM piece
JOIN slot_span span
    ON span.slot_id = piece.slot_id AND span.from_ms <= piece.from_ms AND span.to_ms >= piece.to_ms
LEFT JOIN broken
    ON broken.slot_id = piece.slot_id AND broken.from_ms <= piece.from_ms AND broken.to_ms >= piece.to_ms
WHERE span.known_by != 'hold' OR EXISTS (  -- such a slot exists only while it is held
    FROM hold WHERE hold.slot_id = piece.slot_id AND hold.from_ms <= piece.from_ms AND hold.to_ms >= piece.to_ms
);

CREATE OR REPLACE TEMP TABLE tenancy AS
WITH holder AS (
    SELECT slot_id, pod_uid, instance, min(hold_from_ms) AS hold_from_ms, max(hold_to_ms) AS hold_to_ms,
        CASE any_value(source) WHEN 'recording' THEN 0 WHEN 'sdk' THEN 4 ELSE 1 END AS evidence
    FROM hold GROUP BY slot_id, pod_uid, instance
    UNION ALL
    SELECT slot_id, '', -1, min(from_ms), max(to_ms), (any_value(known_by) = 'node')::INTEGER
    FROM slot_span GROUP BY slot_id
)
SELECT row_number() OVER (ORDER BY slot_id, pod_uid, instance)::INTEGER AS tenancy_id, holder.*,
    -- instances of one pod on one slot are one holder
    dense_rank() OVER (ORDER BY slot_id, pod_uid)::INTEGER AS holder_id,
    count(*) OVER (PARTITION BY slot_id, pod_uid) = 1 AS only_instance,
    coalesce(the_pod.attempt, 1)::SMALLINT AS attempt,
    the_pod.workload_uid, coalesce(the_pod.serves, false) AS serves,
    coalesce(the_pod.started_ms, hold_from_ms) AS started_ms,
    -- it can only start when its gang is complete
    greatest(coalesce(the_pod.started_ms, hold_from_ms), complete.at_ms) AS can_begin_ms,
    the_pod.phase IN ('Pending', 'Failed') AND the_pod.started_ms IS NULL AS never_started
FROM holder
LEFT JOIN the_pod USING (pod_uid)
LEFT JOIN (
    SELECT workload_uid, attempt, max(to_ms) AS at_ms FROM gang_incomplete GROUP BY workload_uid, attempt
) complete ON complete.workload_uid = the_pod.workload_uid AND complete.attempt = the_pod.attempt;

-- One tenant is one holder in one segment, with share/whole of the segment's time.
CREATE OR REPLACE TEMP TABLE tenant AS
WITH held_share AS (
    SELECT segment_id, segment.slot_id, segment.from_ms, segment.to_ms, hold.pod_uid, hold.instance, sum(hold.share) AS share
    FROM segment
    JOIN hold
        ON hold.slot_id = segment.slot_id AND hold.from_ms <= segment.from_ms AND hold.to_ms >= segment.to_ms
    GROUP BY ALL
),
total AS (
    SELECT segment_id, sum(share) AS share FROM held_share GROUP BY segment_id
),
-- The platform's time: the rest of a slot, or all of a broken one. A slot that exists only while it is held has no rest.
platform AS (
    SELECT segment.*,
        CASE WHEN known_by = 'hold' THEN least(total.share, getvariable('share_whole')) ELSE getvariable('share_whole') END
            - CASE WHEN broken THEN 0 ELSE coalesce(total.share, 0) END AS share
    FROM segment LEFT JOIN total USING (segment_id)
),
shared AS (
    SELECT held_share.*, NULL AS state, greatest(total.share, getvariable('share_whole')) AS whole
    FROM held_share JOIN total USING (segment_id) JOIN segment USING (segment_id)
    WHERE NOT segment.broken
    UNION ALL
    SELECT segment_id, slot_id, from_ms, to_ms, '', -1, share,
        CASE WHEN broken OR NOT available THEN 'unhealthy' WHEN unwatched THEN 'unobserved' ELSE 'free' END,
        getvariable('share_whole')
    FROM platform WHERE share > 0
)
SELECT row_number() OVER (ORDER BY segment_id, tenancy_id)::INTEGER AS tenant_id, tenancy_id, segment_id, shared.slot_id,
    shared.from_ms, shared.to_ms, share::BIGINT AS share, whole::BIGINT AS whole, state::state_name AS state
FROM shared
JOIN tenancy
    ON tenancy.slot_id = shared.slot_id AND tenancy.pod_uid = shared.pod_uid AND tenancy.instance = shared.instance;
