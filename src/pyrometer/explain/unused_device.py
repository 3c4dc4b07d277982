"""`unused_device`: devices that a workload holds and never uses, while others of the same pod work.

Needs GPU telemetry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple

from pyrometer.explain.episodes import Episode
from pyrometer.explain.findings import Proposal, Scope
from pyrometer.explain.night import Night
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS


class _Device(NamedTuple):
    pod_uid: str
    node_uid: str
    slot_index: int
    unused: bool
    util: float | None  # percent, while others lay unused


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each workload that has devices it does not use."""
    by_owner: dict[str, list[Episode]] = defaultdict(list)
    for episode in night.episodes("unused_device"):
        by_owner[episode.owner_uid].append(episode)
    devices = _devices(night, by_owner.values())
    for owner, episodes in by_owner.items():
        from_ms, to_ms = min(e.from_ms for e in episodes), max(e.to_ms for e in episodes)
        pods = sorted({pod for episode in episodes for pod in episode.pods})
        held = [device for pod in pods for device in devices[pod]]
        unused = [device for device in held if device.unused]
        names = night.pod_names(pods)
        yield Proposal(
            cause="unused_device",
            owner_uid=owner,
            from_ms=from_ms,
            to_ms=to_ms,
            states=CLAIMS["unused_device"],
            scope=tuple(Scope(device.pod_uid, from_ms, to_ms, device.node_uid, device.slot_index) for device in unused),
            headline=(
                f"never used {len(unused)} of its {counted(len(held), 'GPU')}, "
                f"for {duration(to_ms - from_ms)} from {night.time(from_ms)} on"
            ),
            evidence=tuple(_evidence(held, names)),
            suggestion=(
                "Ask for as many GPUs as it uses, or start a process for each: "
                "look at CUDA_VISIBLE_DEVICES and the number of processes a node."
            ),
            culprit=_culprit(night, unused, names),
            confidence=0.9,
            known_ms=from_ms + night.settings.idle_gap_ms,  # as the ledger judges it
        )


def _culprit(night: Night, unused: list[_Device], names: list[str]) -> dict[str, Any]:
    """The device, the devices of one node, or the pods."""
    if len({device.node_uid for device in unused}) > 1:
        return {"pods": names}
    node = night.node(unused[0].node_uid)
    if len(unused) == 1:
        return {"node": node, "gpu": unused[0].slot_index}
    return {"node": node, "gpus": sorted({device.slot_index for device in unused})}


def _devices(night: Night, of_owners: Iterable[list[Episode]]) -> dict[str, list[_Device]]:
    """All devices of the pods in these episodes, and how busy each was from the first of its owner's to the last."""
    devices: dict[str, list[_Device]] = defaultdict(list)
    spans = sorted(
        (pod, min(e.from_ms for e in episodes), max(e.to_ms for e in episodes))
        for episodes in of_owners
        for pod in {pod for episode in episodes for pod in episode.pods}
    )
    if spans:
        rows = night.ask(
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
            *map(list, zip(*spans, strict=True)), *night.window,
        )  # fmt: skip
        for row in rows:
            devices[row[0]].append(_Device(*row))
    return devices


def _evidence(held: list[_Device], names: list[str]) -> Iterable[str]:
    unused = [device for device in held if device.unused]
    yield f"{counted(len(unused), 'GPU')} of {listed(names)} showed no activity at all"
    used = [device.util for device in held if not device.unused and device.util is not None]
    if used:
        yield f"the others of the same pods were {median(used):.0f}% utilised"
