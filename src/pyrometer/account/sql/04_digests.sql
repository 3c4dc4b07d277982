-- What each chunk of hours is computed from, as one number: when it is the same as when the chunk was built, the chunk is
-- still right. Needs: chunk(from_ms, to_ms), the objects, the restatements, the prices.

WITH facts AS (
    SELECT span.from_ms, span.to_ms, hash('slot', node_uid, slot_index, span.known_by, span.from_ms, span.available,
        span.gpu_model, span.pool, span.cluster, span.purchase) AS fact
    FROM every_slot_span span JOIN every_slot USING (slot_id)
    UNION ALL
    SELECT time_ms, until_ms, hash('health', node_uid, slot_index, time_ms, healthy) FROM slot_seen WHERE NOT healthy
    UNION ALL
    SELECT from_ms, to_ms, hash('hold', pod_uid, node_uid, slot_index, instance, share, from_ms) FROM the_allocation
    UNION ALL
    SELECT hold.from_ms, hold.to_ms, hash('pod', pod.pod_uid, attempt, started_ms, phase, serves)
    FROM the_allocation hold JOIN the_pod pod USING (pod_uid)
    UNION ALL
    SELECT started_ms, coalesce(ended_ms, getvariable('end_ms')),
        hash('run', run, attempt, rank, node_uid, slot_index, pod_uid, started_ms, first_step_ms, ended_ms)
    FROM the_run
    UNION ALL
    SELECT from_ms, coalesce(to_ms, getvariable('end_ms')), hash('restated', node_uid, slot_index, from_ms, state, attempt)
    FROM restated_before
    UNION ALL
    SELECT from_ms, to_ms, hash('gang', workload_uid, attempt, from_ms) FROM gang_incomplete
    UNION ALL
    SELECT from_ms, coalesce(to_ms, getvariable('end_ms')),
        hash('price', gpu_model, pool, cluster, purchase, usd_micro_per_hour, from_ms, source)
    FROM every_price
)
SELECT chunk.from_ms, chunk.to_ms,
    -- An object's part in a chunk: its hash, where it begins and ends inside it.
    coalesce(sum(hash(fact, greatest(facts.from_ms, chunk.from_ms), least(facts.to_ms, chunk.to_ms)))::VARCHAR, '')
FROM chunk LEFT JOIN facts ON facts.from_ms < chunk.to_ms AND facts.to_ms > chunk.from_ms
GROUP BY chunk.from_ms, chunk.to_ms
ORDER BY chunk.from_ms;
