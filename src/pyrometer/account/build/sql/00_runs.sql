-- The newest record of every rank of every attempt, and its restatements so far. Runs that a tracker reported are left out: they
-- are not evidence of what GPUs did.

CREATE OR REPLACE TEMP TABLE the_run AS
SELECT * FROM run WHERE time_ms <= getvariable('newest_ms') AND source IS NULL
QUALIFY row_number() OVER (PARTITION BY run, attempt, rank ORDER BY time_ms DESC) = 1;

CREATE OR REPLACE TEMP TABLE restated_before AS
SELECT * FROM restatement
QUALIFY row_number() OVER (PARTITION BY run, attempt, node_uid, slot_index, from_ms, state ORDER BY time_ms DESC) = 1;
