-- A digest of the inputs of each chunk of hours: if it is the same as when the chunk was built, the chunk is still valid.
-- Needs: chunk(from_ms, to_ms), the objects, the restatements, the prices.

WITH facts AS (
    SELECT span.from_ms, span.to_ms, hash('slot', node_uid, slot_index, span.known_by, span.from_ms, span.available,
        span.gpu_model, span.pool, span.cluster, span.purchase, span.instance_type, span.node_gpus) AS fact
    FROM every_slot_span span JOIN every_slot USING (slot_id)
    UNION ALL
    SELECT time_ms, until_ms, hash('health', node_uid, slot_index, time_ms, healthy) FROM slot_seen WHERE NOT healthy
    UNION ALL
    SELECT from_ms, to_ms, hash('hold', pod_uid, node_uid, slot_index, instance, share, from_ms, source,
        CASE WHEN again THEN first_ms END, CASE WHEN again THEN last_ms END)
    FROM the_allocation
    UNION ALL
    SELECT hold.from_ms, hold.to_ms, hash('pod', pod.pod_uid, workload_uid, attempt, started_ms, serves,
        started_ms IS NULL AND phase IN ('Pending', 'Failed'))
    FROM the_allocation hold JOIN the_pod pod USING (pod_uid)
    UNION ALL  -- a run affects its slot before it started, while it ran, and after it ended
    SELECT hold.from_ms, coalesce(run.first_step_ms, run.ended_ms, hold.to_ms),
        hash('starts', run.run, run.attempt, run.rank, hold.node_uid, hold.slot_index, run.pod_uid, run.started_ms)
    FROM the_allocation hold JOIN the_run run USING (node_uid, slot_index)
    UNION ALL
    SELECT run.started_ms, coalesce(run.ended_ms, hold.to_ms),
        hash('runs', run.run, run.attempt, run.rank, hold.node_uid, hold.slot_index, run.pod_uid)
    FROM the_allocation hold JOIN the_run run USING (node_uid, slot_index)
    UNION ALL
    SELECT run.ended_ms, hold.to_ms,
        hash('over', run.run, run.attempt, run.rank, hold.node_uid, hold.slot_index, run.pod_uid, run.ended_ms)
    FROM the_allocation hold JOIN the_run run USING (node_uid, slot_index) WHERE run.ended_ms IS NOT NULL
    UNION ALL
    SELECT from_ms, coalesce(to_ms, getvariable('end_ms')), hash('restated', node_uid, slot_index, from_ms, state, attempt)
    FROM restated_before
    UNION ALL
    SELECT from_ms, to_ms, hash('gang', workload_uid, attempt, from_ms) FROM gang_incomplete
    UNION ALL
    SELECT from_ms, to_ms, hash('restarting', pod_uid, from_ms) FROM restarting
    UNION ALL
    SELECT from_ms, to_ms, hash('blind', cluster, from_ms) FROM blind
    UNION ALL
    SELECT from_ms, coalesce(to_ms, getvariable('end_ms')),
        hash('price', gpu_model, pool, cluster, purchase, instance_type, usd_micro_per_hour, per, from_ms, time_ms, source,
            -- the order in which prices were written, not their positions
            dense_rank() OVER (PARTITION BY from_ms, time_ms ORDER BY place))
    FROM every_price
)
SELECT chunk.from_ms, chunk.to_ms,
    -- An object's contribution to a chunk: its hash, its start within the chunk, and its end within the chunk or just after it,
    -- as far as gaps are judged.
    coalesce(sum(hash(
        fact, greatest(facts.from_ms, chunk.from_ms), least(facts.to_ms, chunk.to_ms + getvariable('idle_gap_ms'))
    ))::VARCHAR, '')
FROM chunk LEFT JOIN facts ON facts.from_ms < chunk.to_ms AND facts.to_ms > chunk.from_ms
GROUP BY chunk.from_ms, chunk.to_ms
ORDER BY chunk.from_ms;
