-- Instead of 08 if there are no steps.

CREATE OR REPLACE TEMP TABLE step_fold (
    fold_id BIGINT, tenancy_id INTEGER, attempt SMALLINT, from_ms BIGINT, length_ms BIGINT, checkpoint_to BIGINT,
    data_stall_to BIGINT, straggler_wait_to BIGINT, comm_stall_to BIGINT, evaluate_to BIGINT, to_ms BIGINT, pauses BOOLEAN
);
