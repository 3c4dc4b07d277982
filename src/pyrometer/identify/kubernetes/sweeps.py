"""Sweeps: Katib's Experiments and Trials. The objective, the parameters of each trial, and the results."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ms
from pyrometer.identify.kubernetes.change_times import MAX_TEXT_CHARS, finite, iso_ms, stamped
from pyrometer.model.records import Sweep, Trial

EXPERIMENT = ("kubeflow.org", "Experiment")
TRIAL = ("kubeflow.org", "Trial")

MAX_PARAMETERS = 100  # of one trial
_GOALS = {"minimize": "min", "maximize": "max"}
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")

Json = Mapping[str, Any]


class SweepStatus(NamedTuple):
    """The status of an Experiment or a Trial: its record, without the cluster and the time of the record."""

    record: Sweep | Trial
    changed_ms: int  # its last word


def read_sweep_status(owner: objects.OwnerObject) -> SweepStatus:
    """Reads the status of an Experiment or a Trial."""
    spec, status = _object(owner.spec), _object(owner.status)
    meta = owner.metadata
    objective = _object(spec.get("objective"))
    conditions = [_object(each) for each in _listed(status.get("conditions"))]
    true = [each for each in conditions if each.get("status") == "True"]
    state = _WORD.sub("_", str(true[-1].get("type")) if true else "Created").lower()
    times = [iso_ms(each.get("lastUpdateTime") or each.get("lastTransitionTime")) for each in conditions]
    started_ms = iso_ms(status.get("startTime")) or ms(meta.creation_timestamp)
    ended_ms = iso_ms(status.get("completionTime"))
    changed_ms = max(each or 0 for each in (*times, started_ms, ended_ms))
    goal = _GOALS.get(str(objective.get("type")))
    metric = _text(objective.get("objectiveMetricName"))
    if (owner.group, owner.kind) == EXPERIMENT:
        best = _object(status.get("currentOptimalTrial"))
        sweep = Sweep(
            time_ms=0,
            cluster="",
            sweep_uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            state=state,
            metric=metric,
            goal=goal,
            target=finite(objective.get("goal")),
            algorithm=_text(_object(spec.get("algorithm")).get("algorithmName")),
            best_trial=_text(best.get("bestTrialName")),
            started_ms=started_ms,
            ended_ms=ended_ms,
        )
        return SweepStatus(sweep, changed_ms)
    parameters = {
        str(each.get("name")): str(each.get("value"))[:MAX_TEXT_CHARS]
        for each in map(_object, _listed(spec.get("parameterAssignments"))[:MAX_PARAMETERS])
    }
    metrics = _metrics(_object(status.get("observation")))
    above = meta.controller
    trial = Trial(
        time_ms=0,
        trial_uid=meta.uid,
        sweep_uid=above.uid if above else "",
        namespace=meta.namespace,
        name=meta.name,
        state=state,
        parameters_json=json.dumps(parameters) if parameters else None,
        value=_value(metrics.get(metric or ""), objective, goal),
        metrics_json=json.dumps(metrics) if metrics else None,
        started_ms=started_ms,
        ended_ms=ended_ms,
    )
    return SweepStatus(trial, changed_ms)


def _metrics(observation: Json) -> dict[str, dict[str, float]]:
    """Least, greatest and last value of each metric; Katib writes numbers as texts, and `unavailable` for none."""
    found = {}
    for each in map(_object, _listed(observation.get("metrics"))[:MAX_PARAMETERS]):
        values = {name: number for name in ("min", "max", "latest") if (number := finite(each.get(name))) is not None}
        if values:
            found[str(each.get("name"))] = values
    return found


def _value(values: Json | None, objective: Json, goal: str | None) -> float | None:
    """The value that Katib compares: according to the objective's strategy, else the best."""
    if values is None:
        return None
    strategies = {
        str(each.get("name")): str(each.get("value"))
        for each in map(_object, _listed(objective.get("metricStrategies")))
    }
    strategy = strategies.get(str(objective.get("objectiveMetricName"))) or goal or "latest"
    found: float | None = values.get(strategy, values.get("latest"))
    return found


class Sweeps:
    """The sweeps of one cluster, with their last records."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self._trials: dict[str, dict[str, SweepStatus]] = {}  # by sweep and UID
        self._sweeps: dict[str, SweepStatus] = {}
        self._written: dict[str, Sweep | Trial] = {}  # by UID, of sweeps that use GPUs
        self._resumed: set[str] = set()  # trials that used GPUs before this process began, and their sweeps

    def resume(self, trial_uids: set[str]) -> None:
        """Trials whose pods were recorded before: their sweeps are followed, though those may be gone."""
        self._resumed = trial_uids

    def followed_kinds(self) -> list[tuple[str, str]]:
        """The kinds that are followed before any pod names them."""
        return [EXPERIMENT, TRIAL] if self._resumed else []

    def trial_of(self, chain: Sequence[objects.OwnerObject]) -> objects.OwnerObject | None:
        """The trial above a pod."""
        return next((owner for owner in chain if (owner.group, owner.kind) == TRIAL), None)

    def see(self, owner: objects.OwnerObject, seen_ms: int, *, gone: bool) -> list[Sweep | Trial]:
        """An Experiment or a Trial has changed, or is gone."""
        status, uid = owner.status, owner.metadata.uid
        if gone:
            self._sweeps.pop(uid, None)
            for trials in self._trials.values():
                trials.pop(uid, None)
            return []
        if not isinstance(status, SweepStatus):
            return []
        if isinstance(status.record, Sweep):
            self._sweeps[uid] = status
            sweep_uid = uid
        else:
            sweep_uid = status.record.sweep_uid
            self._trials.setdefault(sweep_uid, {})[uid] = status
        if uid in self._resumed and sweep_uid not in self._resumed:
            self._resumed.add(sweep_uid)
            everything = [self._sweeps.get(sweep_uid), *self._trials[sweep_uid].values()]
            return [record for one in everything if one is not None for record in self._news(one, seen_ms)]
        return self._news(status, seen_ms) if sweep_uid in self._written or sweep_uid in self._resumed else []

    def use(self, chain: Sequence[objects.OwnerObject], seen_ms: int) -> list[Sweep | Trial]:
        """A pod with GPUs belongs to a trial: from now on its sweep, with all of its trials, is recorded."""
        trial = self.trial_of(chain)
        if trial is None or trial.metadata.uid in self._written:
            return []
        above = next((owner for owner in chain if (owner.group, owner.kind) == EXPERIMENT), None)
        written: list[Sweep | Trial] = []
        for owner in (above, trial):
            if owner is not None and not isinstance(owner.status, SweepStatus):  # it may not be read, or is gone
                owner.status = read_sweep_status(owner)
            if owner is not None:
                written += self.see(owner, seen_ms, gone=False) or self._news(owner.status, seen_ms)
        for status in self._trials.get(above.metadata.uid if above else "", {}).values():
            written += self._news(status, seen_ms)
        return written

    def forget(self, used: set[str]) -> None:
        """Sweeps of which neither a pod nor an object is there any more; `used` are trials of pods."""
        there = {uid for trials in self._trials.values() for uid in trials} | set(self._sweeps) | used
        for uid in [uid for uid in self._written if uid not in there]:
            del self._written[uid]
        self._trials = {uid: trials for uid, trials in self._trials.items() if trials}

    def _news(self, status: SweepStatus, seen_ms: int) -> list[Sweep | Trial]:
        record = status.record
        if isinstance(record, Sweep):
            record = record._replace(cluster=self.cluster)
        uid = record.sweep_uid if isinstance(record, Sweep) else record.trial_uid
        fresh = stamped(record, self._written.get(uid), status.changed_ms, seen_ms)
        if fresh is None:
            return []
        self._written[uid] = fresh
        return [fresh]


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value[:MAX_TEXT_CHARS] if isinstance(value, str) and value else None
