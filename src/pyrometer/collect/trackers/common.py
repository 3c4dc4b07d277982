"""What an experiment tracker knows of one run, in words that all trackers share: who, when, where, and its metrics.

Tags say where a run was; trackers, plug-ins and people have many names for the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyrometer.store.batches import NEWEST_MS, OLDEST_MS

MLFLOW, WANDB = "mlflow", "wandb"
OURS, SYSTEM = "pyrometer/", ("system/", "system.")  # metrics that we wrote ourselves, and those of machines
MOST_NAMES = 500  # of metrics of a run
MOST_VALUES = 5_000_000  # of a run
MOST_PARAMETERS, MOST_CHARACTERS = 50, 200  # that are told of, and the length of each
LONGEST_NAME = 200

# Where a tag says that a run was, by what it says; the first that is there counts.
PLACES: dict[str, tuple[str, ...]] = {
    "run": ("pyrometer.run",),
    "launch": ("pyrometer.launch",),
    "workload": ("pyrometer.workload", "k8s.job.uid", "k8s.job.name"),
    "pod_uid": ("pyrometer.pod_uid", "k8s.pod.uid", "POD_UID", "pod_uid"),
    "pod_name": ("pyrometer.pod_name", "k8s.pod.name", "POD_NAME", "pod_name", "pod"),
    "namespace": ("pyrometer.namespace", "k8s.namespace.name", "POD_NAMESPACE", "namespace"),
    "host": ("pyrometer.host", "host.name", "HOSTNAME", "hostname", "host"),
}


class Where(NamedTuple):
    """What a run says of its place; nothing of it needs to be known here."""

    run: str | None = None  # as it is called here
    launch: str | None = None
    workload: str | None = None  # its UID, its name, or namespace/name
    pod_uid: str | None = None
    pod_name: str | None = None
    namespace: str | None = None
    host: str | None = None  # in Kubernetes, the name of the pod
    gpus: int = 0  # that its machine has, where that is known
    gpu_model: str | None = None

    def __str__(self) -> str:
        """What is said, for people who look for it."""
        said = {name: value for name, value in self._asdict().items() if value and not name.startswith("gpu")}
        return ", ".join(f"{name} {value}" for name, value in said.items()) or "nothing of where it ran"


class TrackedRun(NamedTuple):
    """One run of a tracker. Its id is what it is called here, unless its own processes told of it."""

    tracker: str
    run_id: str
    name: str
    experiment: str | None
    started_ms: int
    ended_ms: int | None
    outcome: str | None  # succeeded, failed, killed; None: it goes on, as far as anybody knows
    where: Where = Where()
    words: str = ""  # which it is, and what it was told to do


class TrackedPoint(NamedTuple):
    """One value of a metric."""

    time_ms: int
    name: str
    value: float
    step: int | None


def where_of(tags: Mapping[str, str], **known: Any) -> Where:
    """What tags say of a place; what is known otherwise counts where they are silent."""
    found = {what: next((tags[name] for name in names if tags.get(name)), None) for what, names in PLACES.items()}
    return Where(**{**known, **{name: value for name, value in found.items() if value}})


def is_curve(name: str) -> bool:
    """Whether a metric is the program's own, and short enough to be a name."""
    return not name.startswith((OURS, *SYSTEM, "_")) and 0 < len(name) <= LONGEST_NAME


def is_time(time_ms: Any) -> bool:
    """Whether that can be a time in milliseconds."""
    return isinstance(time_ms, int) and OLDEST_MS <= time_ms < NEWEST_MS


def described(parameters: Iterable[tuple[str, str]]) -> str:
    """What a run was told to do: some of it."""
    listed = [f"{name}={value}"[:MOST_CHARACTERS] for name, value in sorted(parameters)]
    more = f", and {len(listed) - MOST_PARAMETERS} more" if len(listed) > MOST_PARAMETERS else ""
    return ", ".join(listed[:MOST_PARAMETERS]) + more
