"""Events about the pods of one cluster: what Kubernetes reports about them, and restarts of their containers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ms
from pyrometer.identify.kubernetes.change_times import MAX_TEXT_CHARS
from pyrometer.identify.kubernetes.pod_lifecycle import Restart, disruption_of
from pyrometer.identify.kubernetes.translated_events import REASONS, translate_event
from pyrometer.model import events
from pyrometer.model.records import Event, Pod

MAX_EARLY_PODS = 10_000  # pods that are not known yet, of which events are kept

Records = list[tuple[Any, ...]]


class PodEvents:
    """Turns reports about pods into events, each of them once."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self._early: OrderedDict[str, list[objects.EventObject]] = (
            OrderedDict()
        )  # by the UID of a pod that is not known yet
        self._last: dict[tuple[str, str], str] = {}  # the last message by kind and pod UID

    def keep(self, event: objects.EventObject) -> None:
        """Keeps an event until its pod is seen."""
        self._early.setdefault(event.involved_object.uid, []).append(event)
        while len(self._early) > MAX_EARLY_PODS:
            self._early.popitem(last=False)

    def of_new_pod(self, pod: Pod) -> Records:
        """The events that were reported before their pod was seen."""
        return [record for early in self._early.pop(pod.pod_uid, ()) for record in self.of_pod(early, pod)]

    def of_pod(self, event: objects.EventObject, pod: Pod) -> Records:
        """An event of Kubernetes as a record, unless it repeats the last one."""
        happening = translate_event(event)
        if happening is None or self._last.get((happening.kind, pod.pod_uid)) == event.message:
            return []
        if happening.repeats:
            self._last[happening.kind, pod.pod_uid] = event.message
        return [self._event(happening.at_ms, happening.kind, pod, event.reason, event.message, happening.duration_ms)]

    def of_changes(
        self, pod: objects.PodObject, record: Pod, restarts: frozenset[Restart], known: frozenset[Restart]
    ) -> Iterator[Event]:
        """Restarts of containers that are not known yet, and a preemption that the pod's conditions announce."""
        ends = {(restart.container, restart.at_ms) for restart in known}
        for restart in sorted(restarts - known, key=lambda r: r.at_ms):
            if (restart.container, restart.at_ms) not in ends:
                yield self._event(
                    restart.at_ms,
                    events.CONTAINER_RESTARTED,
                    record,
                    restart.reason,
                    f"{restart.container} exited with code {restart.exit_code}",
                )
            if restart.again_ms is not None:
                yield self._event(restart.again_ms, events.CONTAINER_STARTED, record, None, restart.container)
        disruption = disruption_of(pod)
        if disruption is not None and self._last.get((events.PREEMPTED, record.pod_uid)) is None:
            self._last[events.PREEMPTED, record.pod_uid] = disruption.reason
            at_ms = ms(disruption.last_transition_time) or record.time_ms
            yield self._event(at_ms, events.PREEMPTED, record, disruption.reason, disruption.message)

    def forget(self, pod_uid: str) -> None:
        """Forgets the last messages about a pod."""
        for kind in set(REASONS.values()):
            self._last.pop((kind, pod_uid), None)

    def _event(
        self, at_ms: int, kind: str, pod: Pod, reason: str | None, message: str | None, duration_ms: int | None = None
    ) -> Event:
        return Event(
            time_ms=at_ms,
            kind=kind,
            duration_ms=duration_ms,
            cluster=self.cluster,
            node_uid=pod.node_uid,
            pod_uid=pod.pod_uid,
            workload_uid=pod.workload_uid,
            attempt=pod.attempt,
            reason=reason,
            message=(message or "")[:MAX_TEXT_CHARS] or None,
        )
