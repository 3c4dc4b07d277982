"""`diverged_suspected`: GPUs are as busy as before but draw much less power, as when training on NaN.

Needs GPU telemetry with power, an activity counter, and clocks or throttle reasons. With the SDK the loss itself is
known, and `diverged` reports it. A workload is compared with itself at times with similar activity.

Multiplying NaN flips few bits: on an H200 the power of training fell by 30% with every activity counter unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.identify.gpus.gpu_models import gpu_model
from pyrometer.model.human import counted, duration
from pyrometer.model.records import WHOLE_DEVICE
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE, SHARE_WHOLE

BUCKET_MS = 5 * MS_PER_MINUTE
NEIGHBORS = 6  # buckets before and after that are compared: half an hour, so that slow drifts do not count
MIN_BUCKETS = 2  # buckets needed on either side

# The ratio of power above idle for the same activity, after to before: 0.64 was measured, 0.70 where the idle power
# is not known. Noise and temperature change it by a few percent.
FELL = (0.50, 0.80)
MAX_POWER_RATIO_PER_GPU = 0.88  # every GPU must have fallen below this, because all of them have the same NaN
MAX_MIX_CHANGE = 0.08  # NaN changed the ratio of counters by at most 1.5%; another kind of work changes it more
MAX_ACTIVITY_CHANGE = 0.25  # activity may vary, and power follows it as it did before
MIN_CLOCK_RATIO = 0.97  # a lower clock is throttling, which explains lower power
THROTTLES = 4 | 8 | 32 | 64 | 128  # power cap, slowdown, thermal (software, hardware), power brake
MIN_THROTTLED_INCREASE = 0.2  # of the samples
BUSY_PERMILLE = 20  # as in the ledger: a sample below this is idle


class _Step(NamedTuple):
    """A drop of a workload's power."""

    owner_uid: str
    attempt: int
    bucket_ms: int
    power_before: float
    power_after: float
    activity: str


class _PowerDrop(NamedTuple):
    """When the power dropped, until when, and on which GPUs."""

    from_ms: int
    to_ms: int
    pods: tuple[str, ...]
    gpus: int


_ACTIVITY = "coalesce(sm_active_permille, dram_active_permille, tensor_active_permille)"
_DRAWN = f"(power_w - idle_w) / {_ACTIVITY}"  # above idle, per thousandth of activity

# The GPUs of some pods ($1) before $2, as a small table, so that few samples are read. Shared GPUs are left out:
# their telemetry does not belong to one pod.
_HOLD = f"""
CREATE OR REPLACE TEMP TABLE hold AS
WITH ended AS (
    SELECT pod_uid, attempt, ended_ms FROM pod
    QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
)
SELECT coalesce(workload_uid, pod_uid) AS owner_uid, pod_uid, ended.attempt, node_uid, slot_index, from_ms,
    coalesce(to_ms, ended_ms, $2) AS to_ms
FROM (
    SELECT * FROM allocation WHERE list_contains($1, pod_uid)
    QUALIFY row_number() OVER (
        PARTITION BY pod_uid, node_uid, slot_index, instance, from_ms ORDER BY time_ms DESC) = 1
) JOIN holder_name USING (pod_uid) JOIN ended USING (pod_uid)
WHERE share = {SHARE_WHOLE} AND instance = {WHOLE_DEVICE} AND from_ms < $2
"""

# Their telemetry from $1 to $2, in buckets ($3).
_BUCKETS = f"""
WITH bucket AS MATERIALIZED (
    SELECT node_uid, slot_index, time_ms // $3 * $3 AS bucket_ms, avg(power_w) AS power,
        avg({_DRAWN}) AS drawn, avg({_ACTIVITY}) AS activity,
        avg(sm_active_permille) AS sm, avg(tensor_active_permille) AS tensor, avg(dram_active_permille) AS dram,
        avg(sm_clock_mhz) AS clock, avg(((throttle_reasons & {THROTTLES}) > 0)::INTEGER) AS throttled
    FROM gpu_sample JOIN idle_board USING (node_uid)
    SEMI JOIN (SELECT node_uid, slot_index FROM hold) held USING (node_uid, slot_index)
    WHERE time_ms >= $1 AND time_ms < $2 AND power_w > 0 AND instance = {WHOLE_DEVICE}
        AND greatest(sm_active_permille, tensor_active_permille, dram_active_permille) >= {BUSY_PERMILLE}
    GROUP BY ALL
),
of_gpu AS MATERIALIZED (
    SELECT hold.owner_uid, hold.attempt, hold.pod_uid, bucket.*
    FROM bucket JOIN hold ON hold.node_uid = bucket.node_uid AND hold.slot_index = bucket.slot_index
        AND hold.from_ms <= bucket_ms AND hold.to_ms >= least(bucket_ms + $3, $2)
)"""

_COUNTERS = {"sm": "SM", "tensor": "tensor", "dram": "DRAM"}

_SAME_MIX = " AND ".join(
    f"coalesce(abs({c}_after / activity_after / ({c}_before / activity_before) - 1) <= {MAX_MIX_CHANGE}, true)"
    for c in _COUNTERS
)

_BEFORE_AND_AFTER = f"""
    before AS (PARTITION BY owner_uid, attempt ORDER BY bucket_ms ROWS BETWEEN {NEIGHBORS} PRECEDING AND 1 PRECEDING),
    after AS (PARTITION BY owner_uid, attempt ORDER BY bucket_ms ROWS BETWEEN 1 FOLLOWING AND {NEIGHBORS} FOLLOWING)"""

# For each bucket of a workload: the time before it against the time after it. It may contain the change itself.
_STEPS = f"""
{_BUCKETS},
fell AS MATERIALIZED (  -- somewhere: the others need no closer look
    SELECT DISTINCT owner_uid, attempt
    FROM (SELECT owner_uid, attempt, bucket_ms, median(drawn) AS drawn FROM of_gpu GROUP BY ALL)
    WINDOW {_BEFORE_AND_AFTER}
    QUALIFY median(drawn) OVER after / median(drawn) OVER before <= {FELL[1]}
),
series AS MATERIALIZED (
    SELECT owner_uid, attempt, bucket_ms, median(power) AS power, median(drawn) AS drawn,
        median(activity) AS activity, median(sm) AS sm, median(tensor) AS tensor,
        median(dram) AS dram, median(clock) AS clock, avg(throttled) AS throttled
    FROM of_gpu SEMI JOIN fell USING (owner_uid, attempt) GROUP BY owner_uid, attempt, bucket_ms
),
compared AS MATERIALIZED (
    SELECT owner_uid, attempt, bucket_ms, least(count(*) OVER before, count(*) OVER after) AS buckets,
        median(power) OVER before AS power_before, median(power) OVER after AS power_after,
        median(drawn) OVER before AS drawn_before, median(drawn) OVER after AS drawn_after,
        quantile_cont(drawn, 0.9) OVER rest AS drawn_rest,
        median(activity) OVER before AS activity_before, median(activity) OVER after AS activity_after,
        {", ".join(f"median({c}) OVER before AS {c}_before, median({c}) OVER after AS {c}_after" for c in _COUNTERS)},
        median(clock) OVER before AS clock_before, median(clock) OVER after AS clock_after,
        avg(throttled) OVER before AS throttled_before, avg(throttled) OVER after AS throttled_after
    FROM series
    WINDOW {_BEFORE_AND_AFTER},
    rest AS (PARTITION BY owner_uid, attempt ORDER BY bucket_ms ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
),
busy_then AS (  -- what it drew whenever it was that busy before
    SELECT owner_uid, attempt, compared.bucket_ms, median(series.drawn) AS drawn_then
    FROM compared JOIN series USING (owner_uid, attempt)
    WHERE series.bucket_ms < compared.bucket_ms
        AND abs(series.activity / activity_after - 1) <= {MAX_ACTIVITY_CHANGE}
    GROUP BY owner_uid, attempt, compared.bucket_ms HAVING count(*) >= {MIN_BUCKETS}
),
steepest AS (  -- of each attempt, among those that its activity does not explain
    SELECT * FROM compared LEFT JOIN busy_then USING (owner_uid, attempt, bucket_ms)
    WHERE buckets >= {MIN_BUCKETS} AND coalesce(tensor_after, dram_after, sm_after) IS NOT NULL
        AND coalesce(
            drawn_after <= {FELL[1]} * drawn_then, abs(activity_after / activity_before - 1) <= {MAX_ACTIVITY_CHANGE})
        AND {_SAME_MIX}
    QUALIFY row_number() OVER (PARTITION BY owner_uid, attempt ORDER BY drawn_after / drawn_before, bucket_ms) = 1
)
SELECT owner_uid, attempt, bucket_ms, power_before, power_after,
    {" || ".join(f"coalesce(', {word} ' || ({c}_before / 10)::INTEGER || '%', '')" for c, word in _COUNTERS.items())}
FROM steepest
WHERE drawn_after / drawn_before BETWEEN {FELL[0]} AND {FELL[1]}
    AND drawn_rest < (drawn_before + drawn_after) / 2  -- it stays there: what is NaN once is NaN for good
    AND coalesce(clock_after, throttled_after) IS NOT NULL  -- else it may be throttling
    AND coalesce(clock_after >= {MIN_CLOCK_RATIO} * clock_before, true)
    AND coalesce(throttled_after - throttled_before < {MIN_THROTTLED_INCREASE}, true)
ORDER BY owner_uid, attempt
"""

_SINCE = f"""
{_BUCKETS},
fell AS (  -- GPU by GPU
    SELECT pod_uid, node_uid, slot_index,
        median(drawn) FILTER (bucket_ms < $4 AND bucket_ms >= $4 - {NEIGHBORS} * $3) AS drawn_before,
        median(drawn) FILTER (bucket_ms > $4) AS drawn_after
    FROM of_gpu WHERE attempt = $5 GROUP BY ALL HAVING drawn_before > 0 AND drawn_after > 0
),
sample AS (
    SELECT fell.*, time_ms, {_DRAWN} > (drawn_before + drawn_after) / 2 AS high
    FROM gpu_sample JOIN fell USING (node_uid, slot_index) JOIN idle_board USING (node_uid)
    WHERE time_ms >= $4 - {NEIGHBORS} * $3 AND time_ms < $2 AND power_w > 0
        AND greatest(sm_active_permille, tensor_active_permille, dram_active_permille) >= {BUSY_PERMILLE}
),
changed AS (
    SELECT node_uid, slot_index, min(time_ms) AS from_ms, max(time_ms) AS last_ms
    FROM sample JOIN (
        SELECT node_uid, slot_index, max(time_ms) AS high_ms FROM sample
        WHERE high AND time_ms < $4 + 2 * $3 GROUP BY ALL
    ) USING (node_uid, slot_index)
    WHERE time_ms > high_ms GROUP BY ALL
)
SELECT median(changed.from_ms)::BIGINT, max(least(last_ms + $6, hold.to_ms, $2)),
    list_sort(list(DISTINCT pod_uid)), count(*), max(drawn_after / drawn_before)
FROM changed JOIN fell USING (node_uid, slot_index) JOIN hold USING (pod_uid, node_uid, slot_index)
"""


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each attempt whose power dropped at once on all its GPUs while they were as busy as before."""
    worth = evidence.worth("active", "train")  # both: `throttled` may claim the same time
    pods = [
        pod
        for owner, pod in evidence.ask(
            "SELECT any_value(coalesce(workload_uid, pod_uid)), pod_uid FROM burn JOIN holder_name USING (pod_uid) "
            "WHERE state = 'active' AND evidence & 2 > 0 GROUP BY pod_uid HAVING sum(ms) >= ? ORDER BY pod_uid",
            MIN_BUCKETS * BUCKET_MS,
        )
        if owner in worth
    ]
    if not pods:
        return
    evidence.store.expose_all(["allocation"])
    _idle_boards(evidence)
    evidence.ask(_HOLD, pods, evidence.window.to_ms)
    for row in evidence.ask(_STEPS, evidence.window.from_ms - MS_PER_HOUR, evidence.window.to_ms, BUCKET_MS):
        step = _Step(*row)
        since = _since(evidence, step)
        if since is not None and since.to_ms > evidence.window.from_ms:
            yield _proposal(evidence, step, since)


def _idle_boards(evidence: Evidence) -> None:
    """The power of a held, idle board of each node; 0 if its model is not known."""
    rows = [
        (node_uid, recorded.held_idle_power_w if (recorded := gpu_model(model)) else 0)
        for node_uid, model in evidence.ask("SELECT node_uid, any_value(gpu_model) FROM node_name GROUP BY node_uid")
    ]
    evidence.ask("CREATE OR REPLACE TEMP TABLE idle_board (node_uid VARCHAR, idle_w INTEGER)")
    evidence.ask(
        "INSERT INTO idle_board SELECT unnest($1), unnest($2)", [node for node, _ in rows], [watts for _, watts in rows]
    )


def _since(evidence: Evidence, step: _Step) -> _PowerDrop | None:
    """When the drop began, to the sample; None if one of the GPUs kept its power."""
    evidence.ask(_HOLD, evidence.pods(step.owner_uid), evidence.window.to_ms)
    from_ms, to_ms, fell, gpus, max_ratio = evidence.ask(
        _SINCE,
        evidence.window.from_ms - MS_PER_HOUR,
        evidence.window.to_ms,
        BUCKET_MS,
        step.bucket_ms,
        step.attempt,
        evidence.settings.sample_reach_ms,
    )[0]
    if not gpus or max_ratio > MAX_POWER_RATIO_PER_GPU:
        return None
    return _PowerDrop(from_ms, to_ms, tuple(fell), gpus)


def _proposal(evidence: Evidence, step: _Step, since: _PowerDrop) -> Proposal:
    from_ms = max(since.from_ms, evidence.window.from_ms)
    fell = round(100 * (1 - step.power_after / step.power_before))
    return Proposal(
        cause="diverged_suspected",
        owner_uid=step.owner_uid,
        from_ms=from_ms,
        to_ms=since.to_ms,
        states=CLAIMS["diverged_suspected"],
        scope=tuple(Scope(pod, from_ms, since.to_ms) for pod in since.pods),
        headline=(
            f"may have trained on NaN for {duration(since.to_ms - since.from_ms)}, since {evidence.time(since.from_ms)}"
        ),
        evidence=(
            f"{counted(since.gpus, 'GPU')} dropped from {step.power_before:.0f} to {step.power_after:.0f} W "
            f"({fell}% less) at once and stayed there",
            f"their activity ({step.activity.removeprefix(', ')}) and clocks do not explain it",
        ),
        suggestion="Check its loss, and stop it if it is NaN. The SDK would have reported this at the first step.",
        confidence=0.6,
        detectable_ms=since.from_ms - since.from_ms % BUCKET_MS + (1 + MIN_BUCKETS) * BUCKET_MS,
    )
