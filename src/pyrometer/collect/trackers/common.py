"""The common form of a run in an experiment tracker: its identity, times, location and metrics.

Tags name the location of a run. Trackers, plug-ins and users have several names for the same tag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyrometer.store.batches import NEWEST_MS, OLDEST_MS

MLFLOW, WANDB = "mlflow", "wandb"
OURS, SYSTEM = "pyrometer/", ("system/", "system.")  # metrics written by Pyrometer, and those of machines
MAX_METRICS = 500  # per run
MAX_VALUES = 5_000_000  # per run
MAX_PARAMETERS, MAX_PARAMETER_CHARS = 50, 200  # in a description, and the length of each
MAX_NAME_CHARS = 200

# The tags that name the location of a run. The first one that is present counts.
LOCATION_TAGS: dict[str, tuple[str, ...]] = {
    "run": ("pyrometer.run",),
    "launch": ("pyrometer.launch",),
    "workload": ("pyrometer.workload", "k8s.job.uid", "k8s.job.name"),
    "pod_uid": ("pyrometer.pod_uid", "k8s.pod.uid", "POD_UID", "pod_uid"),
    "pod_name": ("pyrometer.pod_name", "k8s.pod.name", "POD_NAME", "pod_name", "pod"),
    "namespace": ("pyrometer.namespace", "k8s.namespace.name", "POD_NAMESPACE", "namespace"),
    "host": ("pyrometer.host", "host.name", "HOSTNAME", "hostname", "host"),
}


class RunLocation(NamedTuple):
    """The location of a run according to its tags, which the ledger may not know."""

    run: str | None = None  # its name in the ledger
    launch: str | None = None
    workload: str | None = None  # its UID, its name, or namespace/name
    pod_uid: str | None = None
    pod_name: str | None = None
    namespace: str | None = None
    host: str | None = None  # in Kubernetes, the name of the pod
    gpus: int = 0  # number of GPUs of its machine, if known
    gpu_model: str | None = None

    def __str__(self) -> str:
        """The known fields, for messages."""
        known = {name: value for name, value in self._asdict().items() if value and not name.startswith("gpu")}
        return ", ".join(f"{name} {value}" for name, value in known.items()) or "no location"


class TrackedRun(NamedTuple):
    """One run of a tracker. Its id becomes its name in the ledger unless its own processes reported it."""

    tracker: str
    run_id: str
    name: str
    experiment: str | None
    started_ms: int
    ended_ms: int | None
    outcome: str | None  # succeeded, failed, killed; None while it is running
    where: RunLocation = RunLocation()
    description: str = ""  # its name, and its parameters


class TrackedPoint(NamedTuple):
    """One value of a metric."""

    time_ms: int
    name: str
    value: float
    step: int | None


def location_of(tags: Mapping[str, str], **known: Any) -> RunLocation:
    """Reads the location from tags. `known` has defaults for missing tags."""
    found = {
        field: next((tags[name] for name in names if tags.get(name)), None) for field, names in LOCATION_TAGS.items()
    }
    return RunLocation(**{**known, **{name: value for name, value in found.items() if value}})


def is_curve(name: str) -> bool:
    """Whether a metric is one of the program, with a name that is short enough."""
    return not name.startswith((OURS, *SYSTEM, "_")) and 0 < len(name) <= MAX_NAME_CHARS


def is_time(time_ms: Any) -> bool:
    """Whether a value is a valid time in milliseconds."""
    return isinstance(time_ms, int) and OLDEST_MS <= time_ms < NEWEST_MS


def describe_parameters(parameters: Iterable[tuple[str, str]]) -> str:
    """The first parameters of a run as text."""
    listed = [f"{name}={value}"[:MAX_PARAMETER_CHARS] for name, value in sorted(parameters)]
    more = f", and {len(listed) - MAX_PARAMETERS} more" if len(listed) > MAX_PARAMETERS else ""
    return ", ".join(listed[:MAX_PARAMETERS]) + more
