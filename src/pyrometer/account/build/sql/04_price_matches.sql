-- Whether a price applies to a slot at a time. A selector that a price does not have matches every slot. A price of a whole
-- node applies only to nodes whose number of GPUs is known.

CREATE OR REPLACE TEMP MACRO price_matches(price, slot, has_node_gpus, at_ms) AS
    price.from_ms <= at_ms AND coalesce(price.to_ms > at_ms, true)
    AND coalesce(price.gpu_model = slot.gpu_model, price.gpu_model IS NULL)
    AND coalesce(price.pool = slot.pool, price.pool IS NULL)
    AND coalesce(price.cluster = slot.cluster, price.cluster IS NULL)
    AND coalesce(price.purchase = slot.purchase, price.purchase IS NULL)
    AND coalesce(price.instance_type = slot.instance_type, price.instance_type IS NULL)
    AND (has_node_gpus OR price.per IS DISTINCT FROM 'node');
