"""The attempts of a workload in order: as the SDK reported them, or else pods that ran at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Scope
from pyrometer.model import events
from pyrometer.model.units import MS_PER_MINUTE

LATE_MS = 2 * MS_PER_MINUTE

Part = tuple[str | None, int | None]  # the step of a pipeline, and the index of a pod in its job


class WorkloadAttempt(NamedTuple):
    """One attempt of a workload, from the start of its first pod (or of its processes, in pods that continue) to its
    end."""

    owner_uid: str
    number: int
    run: str | None  # None: the SDK did not see it
    from_ms: int
    to_ms: int | None  # None: it is running
    pods: tuple[str, ...]
    failed: bool
    reasons: tuple[str, ...] = ()  # of the end of its pods
    first_step_ms: int | None = None  # the last rank's end of its first step
    resumed_step: int | None = None
    lost_from_ms: int | None = None  # its steps that a later attempt repeated
    lost_to_ms: int | None = None
    next_ms: int | None = None  # when the next one began
    parts: frozenset[Part] = frozenset()  # what its pods worked on, if they report it

    def scope(self, from_ms: int, to_ms: int) -> list[Scope]:
        """The time of its pods between two moments."""
        return [Scope(pod, from_ms, to_ms) for pod in self.pods if from_ms < to_ms]

    def had(self, pod_uid: str, at_ms: int) -> bool:
        """Whether an event of a pod belongs to this attempt. Ends are recorded a little late."""
        over = self.to_ms is not None and at_ms > self.to_ms + LATE_MS
        in_next = self.next_ms is not None and at_ms > self.next_ms > self.from_ms
        return pod_uid in self.pods and self.from_ms < at_ms and not over and not in_next


class _Pod(NamedTuple):
    """A pod, or its time between two restarts of its containers."""

    pod_uid: str
    attempt: int
    from_ms: int
    to_ms: int | None
    failed: bool
    reason: str | None
    restarts: int = 0  # before it
    part: Part | None = None


class _PodAttempt(NamedTuple):
    """A pod's part in an attempt of a run."""

    run: str
    attempt: int
    pod_uid: str
    started_ms: int
    ended_ms: int | None
    first_step_ms: int | None
    resumed_step: int | None
    failed: bool
    lost_from_ms: int | None
    lost_to_ms: int | None


# When containers of a pod ended to be started again, and why.
_Restarts = dict[str, list[tuple[int, str]]]


def attempts(evidence: Evidence, owners: Sequence[str]) -> dict[str, list[WorkloadAttempt]]:
    """All attempts of some workloads, in order of time."""
    pods: dict[str, list[_Pod]] = defaultdict(list)
    for owner, *pod, step, rank in evidence.ask(
        """
        WITH newest AS (
            SELECT pod_uid, attempt, scheduled_ms, phase, reason, pipeline_step, rank,
                coalesce(ended_ms, CASE WHEN phase IN ('Succeeded', 'Failed') THEN time_ms END) AS ended_ms
            FROM pod QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
        )
        SELECT coalesce(workload_uid, pod_uid), pod_uid, attempt, scheduled_ms, ended_ms, phase = 'Failed', reason,
            newest.pipeline_step, rank
        FROM newest JOIN holder_name USING (pod_uid)
        WHERE list_contains($1, coalesce(workload_uid, pod_uid)) AND scheduled_ms IS NOT NULL ORDER BY ALL
        """,
        list(owners),
    ):
        part = None if step is None and rank is None else (step, rank)
        pods[owner].append(_Pod(*pod)._replace(part=part))
    stays: dict[str, list[_PodAttempt]] = defaultdict(list)
    for owner, *stay in evidence.ask(
        """
        WITH lost AS (
            SELECT run, attempt, min(from_ms) AS from_ms, max(to_ms) AS to_ms FROM restated_before
            WHERE state = 'lost_work' AND to_ms > from_ms GROUP BY run, attempt
        )
        SELECT coalesce(holder_name.workload_uid, pod_uid), run, attempt, pod_uid, min(started_ms),
            CASE WHEN count(ended_ms) = count(*) THEN max(ended_ms) END, max(first_step_ms), min(resumed_step),
            coalesce(bool_or(the_run.outcome = 'failed'), false), any_value(lost.from_ms), any_value(lost.to_ms)
        FROM the_run JOIN holder_name USING (pod_uid) LEFT JOIN lost USING (run, attempt)
        WHERE list_contains($1, coalesce(holder_name.workload_uid, pod_uid))
        GROUP BY ALL ORDER BY ALL
        """,
        list(owners),
    ):
        stays[owner].append(_PodAttempt(*stay))
    restarts: _Restarts = defaultdict(list)
    for pod_uid, at_ms, reason in evidence.ask(
        "SELECT DISTINCT pod_uid, time_ms, coalesce(reason, 'Error') FROM event "
        f"WHERE kind = '{events.CONTAINER_RESTARTED}' ORDER BY time_ms"
    ):
        restarts[pod_uid].append((at_ms, reason))
    return {owner: _in_time(_of_owner(owner, pods[owner], stays[owner], restarts)) for owner in owners}


def _of_owner(
    owner: str, pods: Sequence[_Pod], stays: Sequence[_PodAttempt], restarts: _Restarts
) -> list[WorkloadAttempt]:
    seen = {pod.pod_uid: pod for pod in pods}
    starts: dict[str, list[int]] = defaultdict(list)
    for stay in stays:
        starts[stay.pod_uid].append(stay.started_ms)
    together: dict[tuple[str, int], list[_PodAttempt]] = defaultdict(list)
    for stay in stays:
        if stay.pod_uid in seen:
            together[stay.run, stay.attempt].append(stay)
    found = []
    for (run, number), parts in together.items():
        # a pod's first process starts with the pod; its last one ends with it
        began = [seen[p.pod_uid].from_ms if p.started_ms == min(starts[p.pod_uid]) else p.started_ms for p in parts]
        last = [seen[p.pod_uid] for p in parts if p.started_ms == max(starts[p.pod_uid])]
        ended = [p.ended_ms or seen[p.pod_uid].to_ms for p in parts]
        found.append(
            WorkloadAttempt(
                owner_uid=owner,
                number=number,
                run=run,
                from_ms=min(began),
                to_ms=max([e for e in ended if e], default=0) if all(ended) else None,
                pods=tuple(sorted({p.pod_uid for p in parts})),
                failed=any(p.failed for p in parts) or any(pod.failed for pod in last),
                reasons=tuple(sorted({pod.reason for pod in last if pod.reason})),
                first_step_ms=max((p.first_step_ms for p in parts if p.first_step_ms), default=None),
                resumed_step=min((p.resumed_step for p in parts if p.resumed_step is not None), default=None),
                lost_from_ms=parts[0].lost_from_ms,
                lost_to_ms=parts[0].lost_to_ms,
                parts=frozenset(pod.part for p in parts if (pod := seen[p.pod_uid]).part),
            )
        )
    unseen = _by_pods(owner, [life for pod in pods if pod.pod_uid not in starts for life in _lives(pod, restarts)])
    return found + [a for a in unseen if not any(_overlap(a, other) for other in found)]


def _lives(pod: _Pod, restarts: _Restarts) -> list[_Pod]:
    """One entry per start of the pod's containers; each entry that another follows has failed."""
    ends = [end for end in restarts.get(pod.pod_uid, ()) if pod.from_ms < end[0] < (pod.to_ms or end[0] + 1)]
    lives, from_ms = [], pod.from_ms
    for number, (at_ms, reason) in enumerate(ends):
        failed = reason != "Completed"
        lives.append(pod._replace(from_ms=from_ms, to_ms=at_ms, failed=failed, reason=reason, restarts=number))
        from_ms = at_ms
    return [*lives, pod._replace(from_ms=from_ms, restarts=len(ends))]


def _by_pods(owner: str, pods: Sequence[_Pod]) -> list[WorkloadAttempt]:
    """Pods of one attempt that run one after the other are separate attempts."""
    found: list[WorkloadAttempt] = []
    restarts = 0
    for pod in sorted(pods, key=lambda p: (p.attempt, p.restarts, p.from_ms)):
        last = found[-1] if found else None
        reasons = (pod.reason,) if pod.reason else ()
        parts = frozenset([pod.part] if pod.part else [])
        another = last is None or (last.number, restarts) != (pod.attempt, pod.restarts)
        if last is None or another or (last.to_ms is not None and last.to_ms <= pod.from_ms):
            restarts = pod.restarts
            found.append(
                WorkloadAttempt(
                    owner_uid=owner,
                    number=pod.attempt,
                    run=None,
                    from_ms=pod.from_ms,
                    to_ms=pod.to_ms,
                    pods=(pod.pod_uid,),
                    failed=pod.failed,
                    reasons=reasons,
                    parts=parts,
                )
            )
        else:
            found[-1] = last._replace(
                to_ms=None if last.to_ms is None or pod.to_ms is None else max(last.to_ms, pod.to_ms),
                pods=(*last.pods, pod.pod_uid),
                failed=last.failed or pod.failed,
                reasons=tuple(sorted({*last.reasons, *reasons})),
                parts=last.parts | parts,
            )
    return found


def _overlap(one: WorkloadAttempt, other: WorkloadAttempt) -> bool:
    return (other.to_ms is None or one.from_ms < other.to_ms) and (one.to_ms is None or other.from_ms < one.to_ms)


def _in_time(found: Sequence[WorkloadAttempt]) -> list[WorkloadAttempt]:
    """In order of time. An attempt without a recorded end ended when the next one began."""
    ordered = sorted(found, key=lambda a: (a.from_ms, a.number))
    begins = [*(attempt.from_ms for attempt in ordered[1:]), None]
    return [
        attempt._replace(to_ms=next_ms if attempt.to_ms is None else attempt.to_ms, next_ms=next_ms)
        for attempt, next_ms in zip(ordered, begins, strict=True)
    ]


def made_progress(evidence: Evidence, attempt: WorkloadAttempt, later: Sequence[WorkloadAttempt]) -> bool:
    """Whether later attempts benefited from this one.

    Without the SDK, a long attempt counts as progress.
    """
    lasted = (attempt.to_ms or evidence.window.to_ms) - (attempt.first_step_ms or attempt.from_ms)
    if attempt.run is None:
        return lasted > evidence.settings.startup_limit_ms
    if attempt.first_step_ms is None:
        return False
    resumed = next((other.resumed_step for other in later if other.resumed_step is not None), None)
    if resumed is not None:
        return resumed > (attempt.resumed_step or 0)
    saved = evidence.ask(
        "SELECT 1 FROM event WHERE kind = 'checkpoint_saved' AND run = $1 AND attempt = $2 LIMIT 1",
        attempt.run,
        attempt.number,
    )
    return bool(saved) or (not later and lasted > evidence.settings.startup_limit_ms)


def started(evidence: Evidence, attempt: WorkloadAttempt) -> int:
    """When an attempt finished its first step or first used its GPUs."""
    if attempt.run is not None:
        return attempt.first_step_ms or attempt.to_ms or evidence.window.to_ms
    rows = evidence.ask(
        "SELECT max(greatest(minute_ms, $2) + ms) FROM owner_ledger "
        "WHERE state = 'startup' AND list_contains($1, pod_uid)",
        list(attempt.pods),
        attempt.from_ms,
    )
    return int(rows[0][0] or attempt.from_ms)
