-- The newest word on every rank of every attempt, and what has been restated about them so far. What a tracker tells of a
-- run is no evidence of what its GPUs did: the ledger and the detectors know nothing of it.

CREATE OR REPLACE TEMP TABLE the_run AS
SELECT * FROM run WHERE time_ms <= getvariable('newest_ms') AND source IS NULL
QUALIFY row_number() OVER (PARTITION BY run, attempt, rank ORDER BY time_ms DESC) = 1;

CREATE OR REPLACE TEMP TABLE restated_before AS
SELECT * FROM restatement
QUALIFY row_number() OVER (PARTITION BY run, attempt, node_uid, slot_index, from_ms, state ORDER BY time_ms DESC) = 1;
