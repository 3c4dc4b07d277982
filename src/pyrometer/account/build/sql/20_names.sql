-- The owners of holders and slots, by their newest names. Needs: pod, workload, node, slot, pipeline_run, sweep, trial.

CREATE OR REPLACE TEMP TABLE the_workload AS
SELECT *,
    -- by a label or an annotation, not by the workload's own name
    coalesce(experiment_rule LIKE '%label%' OR experiment_rule LIKE '%annotation%', false) AS named,
    coalesce(team_rule LIKE 'label%' OR team_rule LIKE 'annotation%', false) AS claimed
FROM workload QUALIFY row_number() OVER (PARTITION BY workload_uid ORDER BY time_ms DESC) = 1;

-- Pipeline runs and sweeps with the same name are distinguished by their id.
CREATE OR REPLACE TEMP TABLE the_pipeline_run AS
SELECT *, name || CASE WHEN count(*) OVER (PARTITION BY name) > 1 THEN ' (' || run_id[:8] || ')' ELSE '' END AS shown
FROM (FROM pipeline_run QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY time_ms DESC) = 1);

CREATE OR REPLACE TEMP TABLE the_sweep AS
SELECT *, name || CASE WHEN count(*) OVER (PARTITION BY name) > 1 THEN ' (' || sweep_uid[:8] || ')' ELSE '' END AS shown
FROM (FROM sweep QUALIFY row_number() OVER (PARTITION BY sweep_uid ORDER BY time_ms DESC) = 1);

CREATE OR REPLACE TEMP TABLE the_trial AS
SELECT * FROM trial QUALIFY row_number() OVER (PARTITION BY trial_uid ORDER BY time_ms DESC) = 1;

CREATE OR REPLACE TEMP TABLE holder_name AS
SELECT pod.pod_uid, pod.name AS pod, pod.namespace, pod.phase AS outcome, pod.node_uid AS pod_node_uid,
    workload.workload_uid, workload.kind AS workload_kind, workload.name AS workload_name,
    workload.namespace AS workload_namespace,
    coalesce(
        -- a labeled experiment belongs to one team: the one that started it
        CASE WHEN getvariable('bill_to') = 'experiment' AND workload.named AND NOT workload.claimed THEN began.team END,
        workload.team, workload.queue, pod.queue, pod.namespace
    ) AS team,
    coalesce(workload.experiment, workload.name, pod.name) AS experiment,
    coalesce(pod.user, workload.user) AS "user", coalesce(pod.queue, workload.queue) AS queue,
    pod.pipeline_run AS pipeline_run_id, the_pipeline_run.pipeline,
    coalesce(the_pipeline_run.shown, pod.pipeline_run) AS pipeline_run, pod.pipeline_step,
    coalesce(pod.pipeline_attempt, pod.attempt) AS pipeline_attempt,
    pod.trial_uid, the_sweep.sweep_uid, the_sweep.shown AS sweep, the_trial.name AS trial
FROM (
    SELECT * FROM pod QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
) pod
LEFT JOIN the_workload workload USING (workload_uid)
LEFT JOIN the_pipeline_run ON the_pipeline_run.run_id = pod.pipeline_run
LEFT JOIN the_trial ON the_trial.trial_uid = pod.trial_uid
LEFT JOIN the_sweep ON the_sweep.sweep_uid = the_trial.sweep_uid
LEFT JOIN (
    SELECT experiment, arg_min(team, (coalesce(created_ms, time_ms), workload_uid)) AS team
    FROM the_workload WHERE named GROUP BY experiment
) began ON began.experiment = workload.experiment;

CREATE OR REPLACE TEMP TABLE node_name AS
SELECT node_uid, name AS node, pool, cluster, gpu_model
FROM node QUALIFY row_number() OVER (PARTITION BY node_uid ORDER BY time_ms DESC) = 1
UNION ALL  -- nodes without a description; a rank without a GPU is on its host
SELECT node_uid, regexp_replace(node_uid, '^cpu:(.*):[^:]*:[0-9]+$', '\1'), NULL, NULL, any_value(gpu_model)
FROM slot ANTI JOIN node USING (node_uid) GROUP BY node_uid;
