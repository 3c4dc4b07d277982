"""`unused_device`: devices that a workload holds and never uses, while others of the same pod work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from pyrometer.explain.findings import Proposal, Scope
from pyrometer.explain.night import Episode, Night
from pyrometer.explain.words import counted, duration, listed


class _Device(NamedTuple):
    pod_uid: str
    node_uid: str
    slot_index: int


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each workload that has devices it does not use."""
    by_owner: dict[str, list[Episode]] = defaultdict(list)
    for episode in night.episodes("unused_device"):
        by_owner[episode.owner_uid].append(episode)
    for owner, episodes in by_owner.items():
        from_ms, to_ms = min(e.from_ms for e in episodes), max(e.to_ms for e in episodes)
        pods = sorted({pod for episode in episodes for pod in episode.pods})
        unused = [
            _Device(*row)
            for row in night.ask(
                "SELECT DISTINCT pod_uid, node_uid, slot_index FROM night_ledger "
                "WHERE state = 'unused_device' AND list_contains($1, pod_uid) ORDER BY ALL",
                pods,
            )
        ]
        held = night.ask(
            "SELECT count(DISTINCT (pod_uid, node_uid, slot_index)) FROM night_ledger WHERE list_contains($1, pod_uid)",
            pods,
        )[0][0]
        names = night.pod_names(pods)
        yield Proposal(
            cause="unused_device",
            owner_uid=owner,
            from_ms=from_ms,
            to_ms=to_ms,
            states=("unused_device",),
            scope=tuple(Scope(device.pod_uid, from_ms, to_ms, device.node_uid, device.slot_index) for device in unused),
            headline=(
                f"never used {len(unused)} of its {counted(held, 'GPU')}, "
                f"for {duration(to_ms - from_ms)} from {night.time(from_ms)} on"
            ),
            evidence=tuple(_evidence(night, unused, names, from_ms, to_ms)),
            suggestion=(
                "Ask for as many GPUs as it uses, or start a process for each: "
                "look at CUDA_VISIBLE_DEVICES and the number of processes a node."
            ),
            culprit=_culprit(night, unused, names),
            confidence=0.9,
        )


def _culprit(night: Night, unused: list[_Device], names: list[str]) -> dict[str, Any]:
    """The device, the devices of one node, or the pods."""
    if len({device.node_uid for device in unused}) > 1:
        return {"pods": names}
    node = night.node(unused[0].node_uid)
    if len(unused) == 1:
        return {"node": node, "gpu": unused[0].slot_index}
    return {"node": node, "gpus": sorted({device.slot_index for device in unused})}


def _evidence(night: Night, unused: list[_Device], names: list[str], from_ms: int, to_ms: int) -> Iterable[str]:
    yield f"{counted(len(unused), 'GPU')} of {listed(names)} showed no activity at all"
    used = night.ask(
        """
        SELECT median(gpu_util_permille) / 10 FROM gpu_sample
        JOIN (
            SELECT node_uid, slot_index FROM night_ledger WHERE list_contains($1, pod_uid)
            GROUP BY node_uid, slot_index HAVING count(*) FILTER (WHERE state = 'unused_device') = 0
        ) USING (node_uid, slot_index) WHERE time_ms BETWEEN $2 AND $3
        """,
        sorted({device.pod_uid for device in unused}), from_ms, to_ms,
    )[0][0]  # fmt: skip
    if used is not None:
        yield f"the others of the same pods were {used:.0f} % utilised"
