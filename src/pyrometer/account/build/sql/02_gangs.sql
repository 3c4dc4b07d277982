-- When the gang of an attempt was incomplete: it had fewer pods than it needs. A pod that succeeded has done its part and is
-- not missing. Created once per build.

CREATE OR REPLACE TEMP TABLE gang_incomplete AS
WITH gang AS (  -- a job may be scaled up: it needed at most the pods of its specification at the time
    SELECT workload_uid,
        least(coalesce(gang_pods, 1), coalesce(last_value(gang_pods) OVER whole, 1)) AS gang_pods,
        CASE WHEN row_number() OVER in_time = 1 THEN 0 ELSE time_ms END AS from_ms,
        lead(time_ms, 1, getvariable('end_ms')) OVER in_time AS to_ms
    FROM (
        SELECT workload_uid, time_ms, min(gang_pods) AS gang_pods FROM workload
        WHERE time_ms <= getvariable('newest_ms') GROUP BY workload_uid, time_ms
    )
    WINDOW in_time AS (PARTITION BY workload_uid ORDER BY time_ms),
        whole AS (in_time ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
),
member AS (
    SELECT workload_uid, attempt, cluster, phase, min(hold.from_ms) AS came_ms, max(hold.to_ms) AS left_ms
    FROM the_pod JOIN the_allocation hold USING (pod_uid)
    WHERE workload_uid IN (SELECT workload_uid FROM gang WHERE gang_pods > 1)
    GROUP BY workload_uid, attempt, cluster, phase, pod_uid
),
change AS (
    SELECT workload_uid, attempt, cluster, came_ms AS at_ms, 1 AS pods FROM member
    UNION ALL
    SELECT workload_uid, attempt, cluster, left_ms, -1 FROM member WHERE phase != 'Succeeded'
),
counted AS (
    SELECT workload_uid, attempt, cluster, at_ms AS from_ms,
        sum(sum(pods)) OVER in_time AS there,
        lead(at_ms, 1, getvariable('end_ms')) OVER in_time AS to_ms
    FROM change
    GROUP BY workload_uid, attempt, cluster, at_ms
    WINDOW in_time AS (PARTITION BY workload_uid, attempt, cluster ORDER BY at_ms)
),
-- Pods that came and went while the cluster was not watched were not seen. If one pod is known to have come or gone in that
-- time, others may have, too: until the cluster was watched again, it is unknown which pods were missing.
sure AS (
    SELECT counted.workload_uid, counted.attempt, counted.from_ms, counted.to_ms, there,
        greatest(counted.from_ms, max(blind.to_ms) FILTER (blind.from_ms <= counted.from_ms)) AS sure_from_ms,
        least(counted.to_ms, min(blind.from_ms) FILTER (blind.to_ms >= counted.to_ms)) AS sure_to_ms
    FROM counted
    LEFT JOIN blind
        ON blind.cluster = counted.cluster AND blind.from_ms < counted.to_ms AND blind.to_ms > counted.from_ms
    GROUP BY counted.workload_uid, counted.attempt, counted.from_ms, counted.to_ms, there
)
SELECT workload_uid, attempt, greatest(sure_from_ms, gang.from_ms) AS from_ms, least(sure_to_ms, gang.to_ms) AS to_ms,
    gang_pods - there AS missing
FROM sure JOIN gang USING (workload_uid)
WHERE there > 0 AND there < gang_pods AND greatest(sure_from_ms, gang.from_ms) < least(sure_to_ms, gang.to_ms);
