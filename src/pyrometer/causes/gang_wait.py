"""`gang_wait`: pods hold GPUs while other pods of their gang are missing.

Needs Kubernetes, and a workload that declares the number of pods of its gang. Other evidence adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each stretch in which part of a gang waited for the rest."""
    for episode in evidence.episodes("gang_wait"):
        ((needed,),) = evidence.ask(
            "SELECT least(max_by(gang_pods, time_ms), coalesce(max_by(gang_pods, time_ms) FILTER (time_ms < $2), "
            "min_by(gang_pods, time_ms))) FROM workload WHERE workload_uid = $1",
            episode.owner_uid,
            episode.to_ms,
        )
        late = evidence.ask(
            "SELECT pod.name, pod.scheduled_ms FROM pod WHERE workload_uid = $1 "
            "QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1 "
            "AND NOT list_contains($2, pod_uid) AND coalesce(scheduled_ms >= $3, true) "
            "ORDER BY scheduled_ms NULLS LAST, pod.name",
            episode.owner_uid,
            list(episode.pods),
            episode.from_ms,
        )
        missing = [name for name, _ in late]
        needed = needed or len(episode.pods) + 1
        there = min(len(episode.pods), needed - 1)  # not all of them ran at the same time
        reasons = [f"{there} of {counted(needed, 'pod')} were scheduled"]
        if missing:
            reasons.append(f"missing: {listed(missing)}")
        yield Proposal(
            cause="gang_wait",
            owner_uid=episode.owner_uid,
            from_ms=episode.from_ms,
            to_ms=episode.to_ms,
            states=CLAIMS["gang_wait"],
            scope=tuple(Scope(pod, episode.from_ms, episode.to_ms) for pod in episode.pods),
            headline=(
                f"held GPUs for {duration(episode.to_ms - episode.from_ms)} from {evidence.time(episode.from_ms)}, "
                "waiting for the rest of its gang"
            ),
            evidence=tuple(reasons),
            suggestion=(
                "Admit its pods together (Kueue, Volcano or another gang scheduler), "
                "so that none holds GPUs while waiting."
            ),
            culprit={"pods": missing} if missing else None,
            detectable_ms=episode.from_ms,
        )
