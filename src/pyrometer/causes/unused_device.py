"""`unused_device`: a workload holds GPUs that it never uses, while other GPUs of the same pod work.

Needs GPU telemetry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple

from pyrometer.findings.episodes import Episode
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS


class _Device(NamedTuple):
    pod_uid: str
    node_uid: str
    slot_index: int
    unused: bool
    util: float | None  # percent, while others were unused


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each workload with GPUs that it does not use."""
    by_owner: dict[str, list[Episode]] = defaultdict(list)
    for episode in evidence.episodes("unused_device"):
        by_owner[episode.owner_uid].append(episode)
    devices = _devices(evidence, by_owner.values())
    for owner, episodes in by_owner.items():
        from_ms, to_ms = min(e.from_ms for e in episodes), max(e.to_ms for e in episodes)
        pods = sorted({pod for episode in episodes for pod in episode.pods})
        held = [device for pod in pods for device in devices[pod]]
        unused = [device for device in held if device.unused]
        names = evidence.pod_names(pods)
        yield Proposal(
            cause="unused_device",
            owner_uid=owner,
            from_ms=from_ms,
            to_ms=to_ms,
            states=CLAIMS["unused_device"],
            scope=tuple(Scope(device.pod_uid, from_ms, to_ms, device.node_uid, device.slot_index) for device in unused),
            headline=(
                f"never used {len(unused)} of its {counted(len(held), 'GPU')} "
                f"for {duration(to_ms - from_ms)}, from {evidence.time(from_ms)}"
            ),
            evidence=tuple(_evidence(held, names)),
            suggestion=(
                "Request only the GPUs that it uses, or start one process per GPU. "
                "Check CUDA_VISIBLE_DEVICES and the number of processes per node."
            ),
            culprit=_culprit(evidence, unused, names),
            confidence=0.9,
            detectable_ms=from_ms + evidence.settings.idle_gap_ms,  # as in the ledger
        )


def _culprit(evidence: Evidence, unused: list[_Device], names: list[str]) -> dict[str, Any]:
    """The culprit: the GPU, the GPUs of one node, or the pods."""
    if len({device.node_uid for device in unused}) > 1:
        return {"pods": names}
    node = evidence.node(unused[0].node_uid)
    if len(unused) == 1:
        return {"node": node, "gpu": unused[0].slot_index}
    return {"node": node, "gpus": sorted({device.slot_index for device in unused})}


def _devices(evidence: Evidence, of_owners: Iterable[list[Episode]]) -> dict[str, list[_Device]]:
    """All GPUs of the pods in these episodes, with their activity during the owner's episodes."""
    devices: dict[str, list[_Device]] = defaultdict(list)
    spans = sorted(
        (pod, min(e.from_ms for e in episodes), max(e.to_ms for e in episodes))
        for episodes in of_owners
        for pod in {pod for episode in episodes for pod in episode.pods}
    )
    if spans:
        rows = evidence.ask(
            """
            WITH span AS (SELECT unnest($1) AS pod_uid, unnest($2) AS from_ms, unnest($3) AS to_ms),
            device AS (
                SELECT pod_uid, node_uid, slot_index, bool_or(state = 'unused_device') AS unused, from_ms, to_ms
                FROM ledger_row JOIN span USING (pod_uid)
                WHERE minute_ms >= $4 AND minute_ms < $5 AND minute_ms > from_ms - 60000 AND minute_ms < to_ms
                GROUP BY pod_uid, node_uid, slot_index, from_ms, to_ms
            )
            SELECT pod_uid, device.node_uid, device.slot_index, any_value(unused), median(gpu_util_permille) / 10
            FROM device LEFT JOIN gpu_sample sample
                ON sample.node_uid = device.node_uid AND sample.slot_index = device.slot_index
                AND sample.time_ms >= device.from_ms AND sample.time_ms < device.to_ms
            GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
            """,
            *map(list, zip(*spans, strict=True)),
            *evidence.window,
        )
        for row in rows:
            devices[row[0]].append(_Device(*row))
    return devices


def _evidence(held: list[_Device], names: list[str]) -> Iterable[str]:
    unused = [device for device in held if device.unused]
    yield f"{counted(len(unused), 'GPU')} of {listed(names)} showed no activity"
    used = [device.util for device in held if not device.unused and device.util is not None]
    if used:
        yield f"the other GPUs of these pods were {median(used):.0f}% utilized"
