-- When the gang of an attempt was incomplete: fewer of its pods are there than it needs. A pod that succeeded has done its
-- part and is not missing. Made once for a build.

CREATE OR REPLACE TEMP TABLE gang_incomplete AS
WITH gang AS (
    SELECT workload_uid, gang_pods FROM workload WHERE time_ms <= getvariable('newest_ms')
    QUALIFY row_number() OVER (PARTITION BY workload_uid ORDER BY time_ms DESC) = 1
),
member AS (
    SELECT workload_uid, attempt, gang_pods, phase, min(hold.from_ms) AS came_ms, max(hold.to_ms) AS left_ms
    FROM the_pod JOIN gang USING (workload_uid) JOIN the_allocation hold USING (pod_uid)
    WHERE gang_pods > 1
    GROUP BY workload_uid, attempt, gang_pods, phase, pod_uid
),
change AS (
    SELECT workload_uid, attempt, gang_pods, came_ms AS at_ms, 1 AS pods FROM member
    UNION ALL
    SELECT workload_uid, attempt, gang_pods, left_ms, -1 FROM member WHERE phase != 'Succeeded'
),
counted AS (
    SELECT workload_uid, attempt, gang_pods, at_ms AS from_ms,
        sum(sum(pods)) OVER in_time AS there,
        lead(at_ms) OVER in_time AS to_ms
    FROM change
    GROUP BY workload_uid, attempt, gang_pods, at_ms
    WINDOW in_time AS (PARTITION BY workload_uid, attempt ORDER BY at_ms)
)
SELECT workload_uid, attempt, from_ms, coalesce(to_ms, getvariable('end_ms')) AS to_ms, gang_pods - there AS missing
FROM counted WHERE there > 0 AND there < gang_pods;
