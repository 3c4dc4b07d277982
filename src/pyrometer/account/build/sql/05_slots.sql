-- The slots of this chunk of hours, and their prices.

CREATE OR REPLACE TEMP TABLE slot_span AS
SELECT * REPLACE (
    greatest(from_ms, getvariable('chunk_from_ms')) AS from_ms,
    least(to_ms, getvariable('chunk_to_ms')) AS to_ms
)
FROM every_slot_span
WHERE from_ms < getvariable('chunk_to_ms') AND to_ms > getvariable('chunk_from_ms') AND from_ms < to_ms;

-- The price of each kind of slot at each time: the price book before the public list, then the most selectors, then the newest,
-- then the last one written.
CREATE OR REPLACE TEMP TABLE slot_price AS
WITH kind AS (
    SELECT DISTINCT gpu_model, pool, cluster, purchase, instance_type, node_gpus IS NOT NULL AS described FROM slot_span
),
change AS (
    SELECT getvariable('chunk_from_ms') AS at_ms
    UNION SELECT from_ms FROM every_price
    UNION SELECT to_ms FROM every_price
),
choice AS (
    SELECT kind.*, change.at_ms, price.usd_micro_per_hour, price.per, price.place
    FROM kind
    CROSS JOIN change
    LEFT JOIN every_price price ON price_matches(price, kind, kind.described, change.at_ms)
    WHERE change.at_ms >= getvariable('chunk_from_ms') AND change.at_ms < getvariable('chunk_to_ms')
    QUALIFY row_number() OVER (
        PARTITION BY kind.gpu_model, kind.pool, kind.cluster, kind.purchase, kind.instance_type, kind.described, change.at_ms
        ORDER BY price.source = 'list', (price.gpu_model IS NOT NULL)::INTEGER + (price.pool IS NOT NULL)::INTEGER
            + (price.cluster IS NOT NULL)::INTEGER + (price.purchase IS NOT NULL)::INTEGER
            + (price.instance_type IS NOT NULL)::INTEGER DESC,
            price.from_ms DESC, price.time_ms DESC, price.place DESC
    ) = 1
),
-- The price of a slot changes with the price book and with its node's pool. A minute has the price of its last millisecond.
step AS (
    SELECT slot_span.slot_id, greatest(slot_span.from_ms, choice.at_ms) AS from_ms, choice.place,
        -- the remainder goes to the first slots, one micro-dollar each: together they cost what the node does
        CASE WHEN choice.per = 'node'
            THEN choice.usd_micro_per_hour // node_gpus + (slot_index < choice.usd_micro_per_hour % node_gpus)::INTEGER
            ELSE choice.usd_micro_per_hour END AS usd_micro_per_hour
    FROM slot_span
    JOIN every_slot USING (slot_id)
    JOIN choice
        ON choice.gpu_model IS NOT DISTINCT FROM slot_span.gpu_model AND choice.pool IS NOT DISTINCT FROM slot_span.pool
        AND choice.cluster IS NOT DISTINCT FROM slot_span.cluster
        AND choice.purchase IS NOT DISTINCT FROM slot_span.purchase
        AND choice.instance_type IS NOT DISTINCT FROM slot_span.instance_type
        AND choice.described = (slot_span.node_gpus IS NOT NULL)
    WHERE choice.at_ms < slot_span.to_ms
    QUALIFY row_number() OVER (
        PARTITION BY slot_span.slot_id, greatest(slot_span.from_ms, choice.at_ms) ORDER BY choice.at_ms DESC
    ) = 1
)
SELECT slot_id, usd_micro_per_hour, place, from_ms,
    lead(from_ms, 1, getvariable('chunk_to_ms')) OVER (PARTITION BY slot_id ORDER BY from_ms) AS to_ms
FROM step;
