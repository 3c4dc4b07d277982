"""`throttled`: GPUs run at a lower clock because of heat or power.

The excess over the time at the usual clock is claimed. The usual clock is that of the workload's other GPUs, or of the
model. A power cap in force (0x4) is normal. Needs GPU telemetry with clocks, and with throttle reasons or temperatures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyrometer.findings.episodes import EPISODE_GAP_MS
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_MINUTE

# Bits of NVML's throttle reasons that indicate a problem.
REASONS = {
    0x80: ("power brake", "its power supply: the power brake is active"),
    0x40: ("thermal slowdown by hardware", "its cooling: fans, airflow, coolant"),
    0x20: ("thermal slowdown by the driver", "its cooling: fans, airflow, coolant"),
    0x08: ("slowdown by hardware", "its power supply and cooling"),
}
BAD = sum(REASONS)
HOT_C = 83  # if reasons are not reported: data center GPUs slow down from 83 to 90 °C on
LOWER = 0.05  # below the usual clock, on average over a stretch
MIN_SAMPLE_DROP = 0.08  # ...and in each sample that starts or continues it
MIN_DURATION_MS = 5 * MS_PER_MINUTE
MIN_SAMPLES = 10  # under load and not throttled, to know what is usual
MIN_SLOTS = 3  # of the same model, if the workload itself has too few

_AT_WORK = """
    SELECT node_uid, slot_index, time_ms, sm_clock_mhz, throttle_reasons, temperature_c,
        coalesce(throttle_reasons & {bad} > 0, temperature_c >= {hot}, false) AS bad
    FROM gpu_sample
    WHERE sm_clock_mhz > 0 AND greatest(gpu_util_permille, sm_active_permille) >= 300
        AND time_ms >= {from_ms} AND time_ms < {to_ms}
"""

# One pass over all samples: the slots with a problem.
_SUSPECTS = """
SELECT node_uid, slot_index FROM ({at_work}) WHERE bad GROUP BY node_uid, slot_index HAVING count(*) > 1
"""

# A second pass over these slots and the other slots of the same workloads, which show what is usual, or else the model.
_STRETCHES = """
WITH suspect AS (SELECT unnest($1) AS node_uid, unnest($2) AS slot_index),
held AS MATERIALIZED (
    SELECT coalesce(workload_uid, pod_uid) AS owner_uid, pod_uid, allocation.node_uid, slot_index, gpu_model, from_ms,
        coalesce(max_by(to_ms, allocation.time_ms), any_value(ended_ms), {to_ms}) AS to_ms
    FROM allocation JOIN holder_name USING (pod_uid) LEFT JOIN node_name ON node_name.node_uid = allocation.node_uid
    LEFT JOIN (SELECT pod_uid, max(ended_ms) AS ended_ms FROM pod GROUP BY pod_uid) ended USING (pod_uid)
    WHERE from_ms < {to_ms} GROUP BY ALL
),
hold AS MATERIALIZED (
    FROM held WHERE owner_uid IN (SELECT owner_uid FROM held SEMI JOIN suspect USING (node_uid, slot_index))
),
sample AS MATERIALIZED (
    SELECT DISTINCT hold.* EXCLUDE (from_ms, to_ms), time_ms, sm_clock_mhz AS mhz, throttle_reasons, temperature_c, bad
    FROM hold JOIN ({at_work}) at_work USING (node_uid, slot_index)
    WHERE time_ms >= hold.from_ms AND time_ms < hold.to_ms
),
of_owner AS (
    SELECT owner_uid, gpu_model, median(mhz) AS mhz FROM sample WHERE NOT bad
    GROUP BY owner_uid, gpu_model HAVING count(*) >= {enough_samples}
),
alone AS (  -- models of which a workload has too few samples
    SELECT DISTINCT sample.gpu_model FROM sample ANTI JOIN of_owner ON of_owner.owner_uid = sample.owner_uid
        AND of_owner.gpu_model IS NOT DISTINCT FROM sample.gpu_model
),
of_model AS (  -- a tenth of the samples says as much
    SELECT gpu_model, median(sm_clock_mhz) AS mhz FROM ({at_work}) LEFT JOIN node_name USING (node_uid)
    SEMI JOIN alone ON alone.gpu_model IS NOT DISTINCT FROM node_name.gpu_model
    WHERE NOT bad AND time_ms // 60000 % 10 = 0
    GROUP BY gpu_model HAVING count(*) >= {enough_samples} AND count(DISTINCT (node_uid, slot_index)) >= {enough_slots}
),
judged AS MATERIALIZED (
    SELECT sample.*, coalesce(of_owner.mhz, of_model.mhz) AS usual_mhz,
        bad AND sample.mhz <= (1 - {lower}) * coalesce(of_owner.mhz, of_model.mhz) AS low,
        of_owner.mhz IS NOT NULL AS by_peers,
        least(lead(time_ms) OVER (PARTITION BY pod_uid, node_uid, slot_index ORDER BY time_ms), time_ms + {reach_ms})
            AS until_ms
    FROM sample
    LEFT JOIN of_owner ON of_owner.owner_uid = sample.owner_uid
        AND of_owner.gpu_model IS NOT DISTINCT FROM sample.gpu_model
    LEFT JOIN of_model ON of_model.gpu_model IS NOT DISTINCT FROM sample.gpu_model
),
stretch AS (
    SELECT pod_uid, node_uid, slot_index, min(time_ms) AS from_ms, max(until_ms) AS to_ms
    FROM (
        SELECT *, sum(begins) OVER (PARTITION BY pod_uid, node_uid, slot_index ORDER BY time_ms) AS number FROM (
            SELECT *, coalesce(time_ms - lag(time_ms) OVER (
                PARTITION BY pod_uid, node_uid, slot_index ORDER BY time_ms) > {gap_ms}, true)::INTEGER AS begins
            FROM judged WHERE low
        )
    ) GROUP BY pod_uid, node_uid, slot_index, number
    HAVING max(until_ms) - min(time_ms) >= {shortest_ms}
)
SELECT owner_uid, pod_uid, node_uid, slot_index, from_ms, to_ms, avg(mhz), any_value(usual_mhz),
    bit_or(throttle_reasons) FILTER (WHERE low) & {bad}, max(temperature_c) FILTER (WHERE low), any_value(by_peers)
FROM stretch JOIN judged USING (pod_uid, node_uid, slot_index)
WHERE time_ms >= from_ms AND time_ms < to_ms
GROUP BY owner_uid, pod_uid, node_uid, slot_index, from_ms, to_ms
HAVING avg(mhz) <= (1 - {lower_on_average}) * any_value(usual_mhz)
ORDER BY owner_uid, node_uid, from_ms, slot_index
"""


class _Stretch(NamedTuple):
    """A stretch in which one GPU was throttled."""

    owner_uid: str
    pod_uid: str
    node_uid: str
    slot_index: int
    from_ms: int
    to_ms: int
    mhz: float
    usual_mhz: float
    reasons: int | None
    temperature_c: int | None
    by_peers: bool  # the usual clock is that of the same workload

    @property
    def permille(self) -> int:
        return round(1000 * (1 - self.mhz / self.usual_mhz))


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each stretch in which GPUs of a workload were throttled, for each of its nodes."""
    if not evidence.has("gpu_sample"):
        return
    at_work = _AT_WORK.format(bad=BAD, hot=HOT_C, from_ms=evidence.window.from_ms, to_ms=evidence.window.to_ms)
    suspects = evidence.ask(_SUSPECTS.format(at_work=at_work))
    if not suspects:
        return
    evidence.store.expose_all(["allocation"])
    rows = evidence.ask(
        _STRETCHES.format(
            at_work=at_work,
            bad=BAD,
            lower=MIN_SAMPLE_DROP,
            lower_on_average=LOWER,
            gap_ms=EPISODE_GAP_MS,
            shortest_ms=MIN_DURATION_MS,
            reach_ms=evidence.settings.sample_reach_ms,
            enough_samples=MIN_SAMPLES,
            enough_slots=MIN_SLOTS,
            to_ms=evidence.window.to_ms,
        ),
        *map(list, zip(*suspects, strict=True)),
    )
    for together in _together([_Stretch(*row) for row in rows]):
        yield _proposal(evidence, together)


def _together(stretches: list[_Stretch]) -> Iterator[list[_Stretch]]:
    """Stretches of one workload on one node that overlap."""
    group: list[_Stretch] = []
    for stretch in stretches:
        apart = not group or (stretch.owner_uid, stretch.node_uid) != (group[0].owner_uid, group[0].node_uid)
        if apart or stretch.from_ms >= max(other.to_ms for other in group):
            if group:
                yield group
            group = []
        group.append(stretch)
    if group:
        yield group


def _proposal(evidence: Evidence, group: list[_Stretch]) -> Proposal:
    from_ms, to_ms = min(s.from_ms for s in group), min(max(s.to_ms for s in group), evidence.window.to_ms)
    node = evidence.node(group[0].node_uid)
    gpus = sorted({s.slot_index for s in group})
    mhz, usual = (
        round(sum(values) / len(group)) for values in zip(*((s.mhz, s.usual_mhz) for s in group), strict=True)
    )
    reasons = 0
    for stretch in group:
        reasons |= stretch.reasons or 0
    reported = [(words, where) for bit, (words, where) in REASONS.items() if reasons & bit]
    degrees = [s.temperature_c for s in group if s.temperature_c is not None]
    peers = "other GPUs of the workload" if group[0].by_peers else "other GPUs of its model"
    facts = [f"{mhz:,} MHz under load, {usual:,} MHz on {peers}: {round(100 * (1 - mhz / usual))}% slower"]
    if reported:
        facts.append(f"the driver reports {listed([words for words, _ in reported])}")
    if degrees:
        facts.append(f"up to {max(degrees)} °C")
    which = f"GPU {gpus[0]}" if len(gpus) == 1 else counted(len(gpus), "GPU")
    return Proposal(
        cause="throttled",
        owner_uid=group[0].owner_uid,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["throttled"],
        scope=tuple(Scope(s.pod_uid, s.from_ms, s.to_ms, s.node_uid, s.slot_index, permille=s.permille) for s in group),
        headline=f"ran on throttled {which} of {node} for {duration(to_ms - from_ms)}, from {evidence.time(from_ms)}",
        evidence=tuple(facts),
        suggestion=f"Take {node} out of service and check {reported[0][1] if reported else REASONS[0x40][1]}.",
        culprit={"node": node, "gpu": gpus[0]} if len(gpus) == 1 else {"node": node, "gpus": gpus},
        confidence=0.9 if reported else 0.7,
        detectable_ms=from_ms + MIN_DURATION_MS,
    )
