"""Stores the records of training processes: reads bodies of the inbox, joins them with what the store has, and appends.

A server stores the bodies that it receives this way, and a command those that `pyrometer run` left in a folder.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from pyrometer.collect.gpu.dcgm import Dcgm
from pyrometer.collect.gpu.samples import Sample, Values
from pyrometer.collect.gpu.whole_scrapes import SETTLE_S, WholeScrapes
from pyrometer.collect.otlp import requests
from pyrometer.collect.otlp.forms import OtlpError
from pyrometer.collect.otlp.messages import EventMessage, RankMessages
from pyrometer.collect.otlp.readers import MALFORMED, OtlpBody
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.identify.runs.rank_locations import RunContext
from pyrometer.identify.runs.run_registry import MissingContext, RunRegistry
from pyrometer.model import events
from pyrometer.model.records import Allocation, Pod, Run, Slot
from pyrometer.serve.ingest.spooled_bodies import append_what_fits
from pyrometer.store import Store
from pyrometer.store.inbox import Inbox, of_training
from pyrometer.store.reader import newest_records, newest_slots

POD_WAIT_S = 120.0  # for Kubernetes to report a pod and its devices
BATCH_SIZE = 100_000  # messages that are read from a folder before they are stored
SENT = "http"  # in the name of a body that a server received; `pyrometer run` wrote the others

_log = logging.getLogger("pyrometer")


def suffix_of(signal: str, *, is_json: bool, packed: bool) -> str:
    """The end of the name of a body that a server received."""
    return f".{signal}.{SENT}.{'json' if is_json else 'pb'}{'.gz' if packed else ''}"


def was_sent(path: Path) -> bool:
    """Whether a server received a body; otherwise a process on this machine put it into the folder."""
    return f".{SENT}." in path.name


def signal_of(name: str) -> str:
    """The signal of a body, by its name."""
    return name.partition(".")[2].partition(".")[0]


def read(name: str, body: bytes) -> OtlpBody:
    """The records of a body in the inbox. Its name has its signal and format."""
    signal, form = signal_of(name), name.partition(".")[2].partition(".")[2]
    if signal not in requests.SIGNALS or form not in _FORMS:
        raise OtlpError(f"{name} is not the name of a body.")
    unpacked = requests.unpack(body, "gzip" if form.endswith(".gz") else "")
    return requests.read(signal, unpacked, is_json="json" in form, now_ms=time.time_ns() // 1_000_000)


_FORMS = ("json.gz", *(f"{SENT}.{form}{packed}" for form in ("json", "pb") for packed in ("", ".gz")))


def store_inbox(store: Store) -> Counter[str]:
    """Stores the inbox of a folder without a server. Returns how many records were rejected, by reason."""
    inbox = of_training(store.folder)
    steps = StepStore(store, inbox)
    refused: Counter[str] = Counter()
    for path in inbox.paths():
        for _, received in steps.read(path):
            refused += received.refused
        if steps.waiting > BATCH_SIZE:
            steps.store(everything=True)
    steps.store(everything=True)
    return refused


class _Body:
    """A body, and its messages that are not stored yet."""

    __slots__ = ("arrived_s", "body_bytes", "local", "messages", "path", "sampled")

    def __init__(self, path: Path, received: OtlpBody, arrived_s: float) -> None:
        self.path = path
        self.messages = received.messages
        self.body_bytes = received.body_bytes
        self.sampled = bool(received.samples)
        self.arrived_s = arrived_s
        self.local = not was_sent(path)


class StepStore:
    """Bodies wait here for the rest of their scrapes and for pods that are not reported yet. Not thread-safe.

    `waits_for_pods`: a cluster is followed, so that its pods will be reported.
    """

    def __init__(
        self,
        store: Store,
        inbox: Inbox,
        *,
        node_uid_of: Callable[[str], str | None] = lambda host: None,
        waits_for_pods: bool = False,
    ) -> None:
        self.stored = 0
        self._store = store
        self._inbox = inbox
        self._node_uid_of = node_uid_of
        self._waits_for_pods = waits_for_pods
        self._runs = RunRegistry(node_uid_of)
        self._bodies: list[_Body] = []
        self._scrapes = WholeScrapes()
        self._dcgm: Dcgm | None = None  # created when the store can be read
        self._unconverted: list[Sample] = []
        self._unstored: list[tuple[Any, ...]] = []
        self._done: list[Path] = []

    @property
    def waiting(self) -> int:
        """How many messages and samples are not stored yet."""
        messages = sum(len(group) for body in self._bodies for _, group in body.messages)
        return messages + self._scrapes.waiting + len(self._unstored)

    @property
    def waiting_bytes(self) -> int:
        """The total size of the bodies that are not stored completely."""
        return sum(body.body_bytes for body in self._bodies)

    @property
    def paths(self) -> set[Path]:
        """The files of bodies that are not stored completely."""
        return {body.path for body in self._bodies}

    def read(self, path: Path) -> list[tuple[str, OtlpBody]]:
        """Adds the bodies of a file of the inbox. Returns their records by name. A file that cannot be read is moved
        aside."""
        try:
            read_all = [(name, read(name, body)) for name, body in self._inbox.bodies(path)]
        except (OtlpError, msgspec.MsgspecError) as error:
            _log.warning("%s cannot be read and is moved aside: %s", path, error)
            self._inbox.refuse(path)
            return [(path.name, OtlpBody([], [], Counter(), Counter({MALFORMED: 1})))]
        for _, received in read_all:
            self.add(path, received)
        return read_all

    def add(self, path: Path, received: OtlpBody) -> None:
        """Adds the records of a body of the inbox."""
        body = _Body(path, received, time.monotonic())
        self._scrapes.add(Values.of(received.samples), body.arrived_s)
        self._bodies.append(body)

    def store(self, *, everything: bool = False) -> None:
        """Stores what can be stored and drops its bodies. What cannot be stored now stays in memory and on disk.
        `everything`: also scrapes that may be incomplete."""
        now_s = time.monotonic()
        settled_s = float("inf") if everything else now_s - SETTLE_S
        self._unstored += self._joined(now_s)
        self._unconverted += [sample for batch in self._scrapes.take(settled_s) for sample in batch]
        if self._unconverted:
            if self._dcgm is None:
                self._dcgm = Dcgm(self._node_uid_of, near_idle_power_w, newest_slots(self._store))
            self._unstored += self._dcgm.take(self._unconverted).records
            self._unconverted = []
        self._done += [b.path for b in self._bodies if not b.messages and not (b.sampled and b.arrived_s >= settled_s)]
        self._bodies = [b for b in self._bodies if b.messages or (b.sampled and b.arrived_s >= settled_s)]
        if self._unstored:
            append_what_fits(self._store, self._unstored)
            self.stored += len(self._unstored)
            self._unstored = []
        unfinished = {body.path for body in self._bodies}  # other bodies of the same file may have to wait
        self._inbox.drop(path for path in self._done if path not in unfinished)
        self._done = []

    def _joined(self, now_s: float) -> list[tuple[Any, ...]]:
        """The records of ranks whose pod is known, and of those that have waited long enough."""
        records: list[tuple[Any, ...]] = []
        groups: dict[tuple[bool, bool], list[_Body]] = {}
        for body in self._bodies:
            if body.messages:
                patient = self._waits_for_pods and now_s - body.arrived_s < POD_WAIT_S
                groups.setdefault((body.local, patient), []).append(body)
        for (local, patient), bodies in groups.items():
            messages: list[RankMessages] = [one for body in bodies for one in body.messages]
            known = look_up(self._store, self._runs.missing_context(messages), local=local)
            taken = self._runs.take(messages, known, local=local, patient=patient)
            records += taken.records
            if taken.unnumbered:
                _log.warning("%d messages are left out because their run has too many attempts", taken.unnumbered)
            waiting = {id(group) for _, group in taken.waiting}
            for body in bodies:
                body.messages = [one for one in body.messages if id(one[1]) in waiting]
        return records


def look_up(store: Store, wanted: MissingContext, *, local: bool) -> RunContext:
    """The records that a join needs. Of a local folder, also the launches that have not ended."""
    if not any(wanted):
        return RunContext()
    store.expose_all(["run", "pod", "slot", "allocation"])
    pods = _pods(store, wanted) if store.has("pod") else []
    slots: list[Slot] = []
    if wanted.uuids and store.has("slot"):
        uuids = list(wanted.uuids)
        slots = newest_records(
            store, Slot, "node_uid, slot_index", "true", [uuids], "list_contains(?::VARCHAR[], uuid)"
        )
    holds: list[Allocation] = []
    if (pods or slots) and store.has("allocation"):
        places = [f"{slot.node_uid} {slot.slot_index}" for slot in slots]
        holds = newest_records(
            store,
            Allocation,
            "pod_uid, node_uid, slot_index, instance, from_ms",
            "list_contains(?::VARCHAR[], pod_uid) OR list_contains(?::VARCHAR[], node_uid || ' ' || slot_index)",
            [[pod.pod_uid for pod in pods], places],
            "to_ms IS NULL OR to_ms > from_ms",
        )
        others = {hold.pod_uid for hold in holds} - {pod.pod_uid for pod in pods}
        pods += _pods(store, wanted._replace(pod_uids=others, pod_names=set()))
    known = RunContext(pods=pods, slots=slots, holds=holds)
    if not store.has("run"):
        return known
    runs = wanted.runs | {pod.workload_uid for pod in pods if pod.workload_uid}
    return _of_runs(store, wanted.launches, runs, known, local=local)


def _pods(store: Store, wanted: MissingContext) -> list[Pod]:
    names = [f"{namespace}/{name}" for namespace, name in wanted.pod_names]
    return newest_records(
        store,
        Pod,
        "pod_uid",
        "list_contains(?::VARCHAR[], pod_uid) OR list_contains(?::VARCHAR[], namespace || '/' || name)",
        [list(wanted.pod_uids), names],
        "true",
    )


def _of_runs(store: Store, launches: set[str], runs: set[str], known: RunContext, *, local: bool) -> RunContext:
    """Adds what the store has of launches, and of the runs whose attempts they may be."""
    of_these = [list(launches), list(runs)]
    ranks = newest_records(
        store,
        Run,
        "run, attempt, rank",
        "launch IS NOT NULL AND (list_contains(?::VARCHAR[], launch) OR list_contains(?::VARCHAR[], run) OR ?)",
        [*of_these, local, *of_these],
        # others may have ended by now, or find the checkpoint from which they resumed
        "list_contains(?::VARCHAR[], launch) OR (ended_ms IS NULL AND pod_uid = 'run:' || launch || ':' || rank) "
        "OR (list_contains(?::VARCHAR[], run) AND (ended_ms IS NULL OR (attempt > 1 AND resumed_step IS NULL)))",
    )
    runs = runs | {rank.run for rank in ranks}
    ask = store.connection.execute
    attempts = ask(
        "SELECT run, attempt, any_value(launch), min(started_ms) FROM run "
        "WHERE launch IS NOT NULL AND list_contains(?::VARCHAR[], run) GROUP BY ALL",
        [list(runs)],
    ).fetchall()
    if not attempts:
        return known
    since_ms = min(started_ms for *_, started_ms in attempts)
    store.expose(["step_window", "event"], since_ms, 2**62)
    windows = ask(
        "SELECT run, attempt, rank, max(to_ms) FROM step_window WHERE list_contains(?::VARCHAR[], run) GROUP BY ALL",
        [list(runs)],
    ).fetchall()
    saved = ask(
        "SELECT run, attempt, message, max(time_ms), arg_max(step, time_ms) FROM event WHERE kind = ? "
        "AND list_contains(?::VARCHAR[], run) AND message IS NOT NULL AND step IS NOT NULL GROUP BY ALL",
        [events.CHECKPOINT_SAVED, list(runs)],
    ).fetchall()
    restored = ask(
        "SELECT run, attempt, rank, max(time_ms), arg_max_null(step, time_ms), arg_max_null(message, time_ms) "
        "FROM event WHERE kind = ? AND list_contains(?::VARCHAR[], run) GROUP BY ALL",
        [events.RESTORED, list(runs)],
    ).fetchall()
    launch_of = {(run, attempt): launch for run, attempt, launch, _ in attempts}
    return known._replace(
        ranks=ranks,
        last_report_ms={
            (launch_of[run, attempt], rank): to_ms
            for run, attempt, rank, to_ms in windows
            if (run, attempt) in launch_of
        },
        restored={
            (launch_of[run, attempt], rank): EventMessage(time_ms, events.RESTORED, step=step, message=message)
            for run, attempt, rank, time_ms, step, message in restored
            if (run, attempt) in launch_of
        },
        attempts=[(run, attempt, launch) for run, attempt, launch, _ in attempts],
        checkpoints=saved,
    )
