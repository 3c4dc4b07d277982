-- The energy of each holder in each quarter of an hour, in millijoules: that is watts × milliseconds, and the unit of the device
-- counter, so the input is not rounded. A quarter is measured by the counter; if it is absent or was reset, by the mean of the
-- power readings. Energy between two readings that are more than a quarter of an hour apart is unknown.
-- Needs: sampled, tenant, tenancy, every_slot.

CREATE OR REPLACE TEMP TABLE reading AS
SELECT slot_id, time_ms // 900000 * 900000 AS quarter_ms, min(time_ms) AS first_ms, max(time_ms) AS last_ms,
    arg_min(energy_j, time_ms) AS first_j, arg_max(energy_j, time_ms) AS last_j,
    -- it only rose, by at most three joules per millisecond: otherwise it was reset, or the device was replaced
    coalesce(count(energy_j) = count(*) AND first_j = min(energy_j) AND last_j = max(energy_j)
        AND last_j - first_j <= 3 * (last_ms - first_ms), false) AS counts,
    coalesce(sum(power_w), 0)::BIGINT AS watts, count(power_w) AS readings
FROM sampled
WHERE instance = -1 AND (energy_j IS NOT NULL OR power_w IS NOT NULL)
    AND time_ms >= getvariable('chunk_from_ms') - 900000 AND time_ms < getvariable('chunk_to_ms') + 900000
GROUP BY slot_id, quarter_ms;

-- A quarter from its first to its last reading, extended to the readings of adjacent quarters: energy across the boundary is
-- divided at it by time, so that both sides together have the whole energy.
CREATE OR REPLACE TEMP TABLE drawn AS
WITH beside AS (
    SELECT here.*, before.last_ms AS before_ms, after.first_ms AS after_ms,
        here.first_j - before.last_j AS before_j, after.first_j - here.last_j AS after_j,
        coalesce(here.first_ms - before_ms <= 900000, false) AS follows, coalesce(after_ms - here.last_ms <= 900000, false) AS goes_on,
        follows AND here.counts AND before.counts AND before_j BETWEEN 0 AND 3 * (here.first_ms - before_ms) AS counts_before,
        goes_on AND here.counts AND after.counts AND after_j BETWEEN 0 AND 3 * (after_ms - here.last_ms) AS counts_after,
        follows AND least(here.readings, before.readings) > 0 AND NOT counts_before AS guessed_before,
        goes_on AND least(here.readings, after.readings) > 0 AND NOT counts_after AS guessed_after
    FROM reading here
    LEFT JOIN reading before ON before.slot_id = here.slot_id AND before.quarter_ms = here.quarter_ms - 900000
    LEFT JOIN reading after ON after.slot_id = here.slot_id AND after.quarter_ms = here.quarter_ms + 900000
    WHERE here.quarter_ms >= getvariable('chunk_from_ms') AND here.quarter_ms < getvariable('chunk_to_ms')
        AND (here.counts OR here.readings > 0)
),
measured AS (
    SELECT slot_id, quarter_ms, watts, readings,
        CASE WHEN counts_before OR guessed_before THEN quarter_ms ELSE first_ms END AS from_ms,
        CASE WHEN counts_after OR guessed_after THEN quarter_ms + 900000 ELSE last_ms END AS to_ms,
        -- milliseconds that are estimated from the mean power
        CASE WHEN counts THEN 0 ELSE last_ms - first_ms END + CASE WHEN guessed_before THEN first_ms - quarter_ms ELSE 0 END
            + CASE WHEN guessed_after THEN quarter_ms + 900000 - last_ms ELSE 0 END AS estimated_ms,
        CASE WHEN counts THEN 1000 * (last_j - first_j) ELSE 0 END
            + CASE WHEN counts_before
                THEN 1000 * before_j - 1000 * before_j * (quarter_ms - before_ms) // (first_ms - before_ms) ELSE 0 END
            + CASE WHEN counts_after THEN 1000 * after_j * (quarter_ms + 900000 - last_ms) // (after_ms - last_ms) ELSE 0 END
            + CASE WHEN estimated_ms > 0 THEN watts * estimated_ms // readings ELSE 0 END AS mj
    FROM beside
)
FROM measured WHERE from_ms < to_ms;

-- The common case: one holder has all of a slot all the time.
CREATE OR REPLACE TEMP TABLE drawn_alone AS
SELECT drawn.slot_id, quarter_ms, tenancy_id, mj, drawn.to_ms - drawn.from_ms AS ms, estimated_ms
FROM drawn
JOIN tenant ON tenant.slot_id = drawn.slot_id AND tenant.from_ms <= drawn.from_ms AND tenant.to_ms >= drawn.to_ms
WHERE tenant.share = tenant.whole;

-- Otherwise a quarter is divided among its segments by their time and the power readings in each, and a segment among its
-- holders. Running amounts are rounded, so that the parts add up. The part of a slot without a holder has no holder.
CREATE OR REPLACE TEMP TABLE drawn_together AS
WITH divided AS (
    SELECT drawn.* FROM drawn ANTI JOIN drawn_alone USING (slot_id, quarter_ms)
),
piece AS (
    SELECT divided.*, segment_id, greatest(segment.from_ms, divided.from_ms) AS begin_ms,
        least(segment.to_ms, divided.to_ms) AS end_ms
    FROM divided JOIN segment
        ON segment.slot_id = divided.slot_id AND segment.from_ms < divided.to_ms AND segment.to_ms > divided.from_ms
),
weighed AS (
    SELECT piece.*, coalesce(watts // nullif(readings, 0), 0) + 1 AS usual_w,  -- one more watt, so that every time has a weight
        (end_ms - begin_ms) * coalesce(round(read.power_w)::BIGINT + 1, usual_w) AS weight
    FROM piece
    LEFT JOIN (
        SELECT segment_id, quarter_ms, avg(power_w) AS power_w
        FROM piece JOIN sampled
            ON sampled.slot_id = piece.slot_id AND sampled.time_ms >= begin_ms AND sampled.time_ms < end_ms
        WHERE instance = -1 GROUP BY segment_id, quarter_ms
    ) read USING (segment_id, quarter_ms)
),
segment_part AS (
    SELECT segment_id, quarter_ms, estimated_ms, to_ms - from_ms AS length_ms, end_ms - begin_ms AS ms,
        sum(weight) OVER in_time * mj // everything - (sum(weight) OVER in_time - weight) * mj // everything AS mj
    FROM (
        SELECT *, sum(weight) OVER whole + (to_ms - from_ms - sum(end_ms - begin_ms) OVER whole) * usual_w AS everything
        FROM weighed WINDOW whole AS (PARTITION BY slot_id, quarter_ms)
    )
    WINDOW in_time AS (PARTITION BY slot_id, quarter_ms ORDER BY begin_ms ROWS UNBOUNDED PRECEDING)
),
part AS (
    SELECT tenancy_id, quarter_ms, length_ms, estimated_ms, segment_part.ms * share::HUGEINT // whole AS ms,
        mj * (sum(share) OVER sharing)::HUGEINT // whole - mj * (sum(share) OVER sharing - share)::HUGEINT // whole AS mj
    FROM segment_part JOIN tenant USING (segment_id)
    WINDOW sharing AS (PARTITION BY segment_id, quarter_ms ORDER BY tenant_id ROWS UNBOUNDED PRECEDING)
)
SELECT any_value(tenancy_id) AS tenancy_id, quarter_ms, sum(mj)::BIGINT AS mj, sum(ms)::BIGINT AS ms,
    sum(estimated_ms * ms // length_ms)::BIGINT AS estimated_ms
FROM part JOIN tenancy USING (tenancy_id)
GROUP BY holder_id, quarter_ms;

CREATE OR REPLACE TEMP VIEW chunk_energy AS
WITH ordered AS (
    SELECT tenancy_id, quarter_ms, mj, ms::INTEGER AS ms, estimated_ms::INTEGER AS estimated_ms
    FROM (
        SELECT tenancy_id, quarter_ms, mj, ms, estimated_ms FROM drawn_alone
        UNION ALL SELECT tenancy_id, quarter_ms, mj, ms, estimated_ms FROM drawn_together
    )
    WHERE ms > 0 OR mj > 0 ORDER BY tenancy_id, quarter_ms
),
named AS MATERIALIZED (
    SELECT tenancy_id, node_uid, slot_index, nullif(pod_uid, '') AS pod_uid FROM tenancy JOIN every_slot USING (slot_id)
)
SELECT quarter_ms AS time_ms, node_uid, slot_index, pod_uid, mj AS energy_mj, ms, estimated_ms
FROM ordered JOIN named USING (tenancy_id);
