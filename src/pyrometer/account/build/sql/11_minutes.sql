-- The timeline cut into minutes: the milliseconds of each tenant's minute in each state. `alone` means that no other row can
-- be about the same state of the same minute, so nothing has to be added up later.

CREATE OR REPLACE TEMP TABLE judged AS
SELECT timeline.tenant_id, timeline.tenancy_id, timeline.from_ms, timeline.to_ms,
    step_fold.* EXCLUDE (tenancy_id, attempt, from_ms, to_ms, pauses),
    (tenancy.evidence | coalesce(mark.evidence, 0)
        | CASE WHEN timeline.sample_id > 0 THEN 2 ELSE 0 END
        | CASE WHEN timeline.fold_id > 0 THEN 4 ELSE 0 END)::UTINYINT AS evidence,
    coalesce(
        mark.state,
        CASE WHEN timeline.fold_id > 0 THEN 'train'::state_name END,
        tenant.state,
        sample_span.state,
        'unobserved'::state_name
    ) AS state,
    mark.state IS NULL AND timeline.fold_id > 0 AS by_amount,
    coalesce(mark.attempt, step_fold.attempt, tenancy.attempt) AS attempt,
    tenant.from_ms AS tenant_from_ms, tenant.to_ms AS tenant_to_ms,
    tenant.share < tenant.whole AS shared, tenancy.only_instance AND NOT shared AS whole
FROM timeline
JOIN tenant USING (tenant_id)
JOIN tenancy ON tenancy.tenancy_id = timeline.tenancy_id
LEFT JOIN mark ON mark.mark_id = timeline.mark_id
LEFT JOIN step_fold ON step_fold.fold_id = timeline.fold_id
LEFT JOIN sample_span ON sample_span.sample_id = timeline.sample_id;

CREATE OR REPLACE TEMP MACRO in_minutes(by_amount_only) AS TABLE
SELECT *, (least(to_ms, minute_ms + 60000) - greatest(from_ms, minute_ms))::INTEGER AS ms,
    whole AND tenant_from_ms <= minute_ms AND tenant_to_ms >= minute_ms + 60000 AS alone
FROM (
    SELECT *, unnest(range(from_ms // 60000 * 60000, to_ms, 60000)) AS minute_ms
    FROM judged WHERE by_amount = by_amount_only
);

CREATE OR REPLACE TEMP TABLE piece AS
SELECT tenant_id, tenancy_id, shared, minute_ms, attempt, state, evidence, ms, whole AND ms = 60000 AS alone
FROM in_minutes(false);

-- A piece of a window has a proportional part of its amounts. Rounding running sums keeps the sum, and nothing is negative.
CREATE OR REPLACE TEMP TABLE folded AS
SELECT tenant_id, any_value(tenancy_id) AS tenancy_id, any_value(shared) AS shared, minute_ms, attempt, evidence,
    sum(ms)::INTEGER AS ms,
    bool_and(alone) AS alone,
    sum((2 * checkpoint_to * ms + length_ms) // (2 * length_ms))::INTEGER AS checkpoint_to,
    sum((2 * data_stall_to * ms + length_ms) // (2 * length_ms))::INTEGER AS data_stall_to,
    sum((2 * straggler_wait_to * ms + length_ms) // (2 * length_ms))::INTEGER AS straggler_wait_to,
    sum((2 * comm_stall_to * ms + length_ms) // (2 * length_ms))::INTEGER AS comm_stall_to,
    sum((2 * evaluate_to * ms + length_ms) // (2 * length_ms))::INTEGER AS evaluate_to
FROM in_minutes(true)
GROUP BY tenant_id, minute_ms, attempt, evidence;

CREATE OR REPLACE TEMP VIEW tenant_minute AS
FROM piece
UNION ALL SELECT tenant_id, tenancy_id, shared, minute_ms, attempt, 'checkpoint', evidence, checkpoint_to, alone
    FROM folded WHERE checkpoint_to > 0
UNION ALL SELECT tenant_id, tenancy_id, shared, minute_ms, attempt, 'data_stall', evidence, data_stall_to - checkpoint_to, alone
    FROM folded WHERE data_stall_to - checkpoint_to > 0
UNION ALL SELECT tenant_id, tenancy_id, shared, minute_ms, attempt, 'straggler_wait', evidence, straggler_wait_to - data_stall_to, alone
    FROM folded WHERE straggler_wait_to - data_stall_to > 0
UNION ALL SELECT tenant_id, tenancy_id, shared, minute_ms, attempt, 'comm_stall', evidence, comm_stall_to - straggler_wait_to, alone
    FROM folded WHERE comm_stall_to - straggler_wait_to > 0
UNION ALL SELECT tenant_id, tenancy_id, shared, minute_ms, attempt, 'evaluate', evidence, evaluate_to - comm_stall_to, alone
    FROM folded WHERE evaluate_to - comm_stall_to > 0
UNION ALL SELECT tenant_id, tenancy_id, shared, minute_ms, attempt, 'train', evidence, ms - evaluate_to, alone
    FROM folded WHERE ms - evaluate_to > 0;
