"""The current state of runs: step, speed, metrics, and problems.

It is updated once per minute, so it reads only the newest measurements and keeps the rest in memory. After a restart it
reads further back once. Older reports are not known until they are repeated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.rank_tables import WEIGHED, open_ranks
from pyrometer.account.relations.run_tables import open_placed_runs
from pyrometer.answers.runs.metric_curves import OWN_LOSS, is_training_loss
from pyrometer.answers.runs.run_cost import NOTHING, costs
from pyrometer.answers.runs.throughput import nothing, phases_of_all, throughput
from pyrometer.model.events import CHECKPOINT_SAVED, FINITE_LOSS, NONFINITE_LOSS, STUCK, UNSTUCK
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import StoreReader

LOOK_BACK_MS = 5 * MS_PER_MINUTE  # later measurements are skipped
MAX_WINDOW_MS = 5 * MS_PER_MINUTE  # steps that take minutes have windows of minutes
FIRST_LOOK_MS = MS_PER_HOUR
EVENTS_MS = MS_PER_HOUR  # they are few
FIRST_EVENTS_MS = 24 * MS_PER_HOUR
SPEED_MS = LOOK_BACK_MS  # the interval over which speed is measured
GOODPUT_MS = MS_PER_HOUR
ENDED_MS = MS_PER_HOUR  # how long a run is listed after its end
SILENT_MS = 12 * MS_PER_HOUR  # and how long a run without a reported end
MAX_METRICS = 20  # of a run: the first ones that it reports stay

_RUNS = f"""
SELECT the_run.run, max(attempt), arg_max(ranks, weight), min(started_ms), arg_max_null(ended_ms, weight),
    coalesce(arg_max_null(the_run.outcome, weight), 'running'),
    any_value(coalesce(the_run.experiment, holder_name.experiment)), any_value(team),
    any_value(workload_namespace || '/' || workload_name), any_value(framework), max(time_ms)
FROM {WEIGHED} the_run LEFT JOIN holder_name USING (pod_uid)
GROUP BY the_run.run HAVING coalesce(arg_max_null(ended_ms, weight) > $1, true)
"""

_EVENTS = """
SELECT run, attempt, coalesce(rank, 0), kind, max(time_ms) FROM event
WHERE kind IN (SELECT unnest($1)) AND run IS NOT NULL AND attempt IS NOT NULL AND time_ms > $2 AND time_ms <= $3
GROUP BY ALL ORDER BY 5, 4
"""

_METRICS = """
SELECT run, attempt, name, rank, value, time_ms FROM metric WHERE time_ms > $1 AND time_ms <= $2
QUALIFY row_number() OVER (PARTITION BY run, name ORDER BY attempt DESC, rank, time_ms DESC, step DESC) = 1
ORDER BY run, goal IS NULL, name  -- those that say what they aim at come first
"""


@dataclass
class RunActivity:
    """The newest attempt of a run, as far as it is known."""

    run: str
    attempt: int = 0
    ranks: int = 1
    started_ms: int = 0
    ended_ms: int | None = None
    outcome: str = "running"
    experiment: str | None = None
    team: str | None = None
    workload: str | None = None  # namespace/name
    framework: str | None = None
    last_report_ms: int = 0  # its last report of any kind
    step: int | None = None  # how many are done
    stepped_ms: int | None = None  # when the last of them ended
    saved_ms: int | None = None  # its last checkpoint, of any attempt
    goodput: float | None = None
    speed: dict[str, Any] = field(default_factory=nothing)
    phases: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    reported_by: dict[str, int] = field(default_factory=dict)  # metrics: the first rank that reported each
    more_metrics: int = 0  # that have no place there
    stuck: set[int] = field(default_factory=set)  # ranks
    nonfinite: bool = False  # it continues although its loss is not finite

    def begin(self, attempt: int) -> None:
        """A new attempt keeps only the checkpoints and the metrics of the previous one."""
        if attempt > self.attempt:
            self.attempt, self.stuck, self.nonfinite, self.reported_by = attempt, set(), False, {}

    def tells(self, name: str, rank: int) -> bool:
        """Whether the values of a rank are the curve of the metric."""
        losses = [reported for other, reported in self.reported_by.items() if is_training_loss(other)]
        if name == OWN_LOSS and self.reported_by[name] > min(losses):  # it is logged under another name
            self.metrics.pop(name, None)
            return False
        return rank == self.reported_by[name]


class Progress:
    """The state of the runs that are running or ended recently."""

    def __init__(self) -> None:
        self.runs: dict[str, RunActivity] = {}
        self._looked = False

    def read(self, store: StoreReader, end_ms: int, settled_ms: int) -> None:
        """Read the new records at `end_ms`. The ledger before `settled_ms` usually no longer changes."""
        open_names(store)
        open_ranks(store, end_ms, tracked=True)
        recorded = self._newest_words(store, end_ms)
        from_ms = end_ms - (LOOK_BACK_MS if self._looked else FIRST_LOOK_MS)
        self._steps(store, recorded, from_ms, end_ms)
        self._events(store, recorded, end_ms - (EVENTS_MS if self._looked else FIRST_EVENTS_MS), end_ms)
        self._metrics(store, recorded, from_ms, end_ms)
        self._goodput(store, recorded, TimeRange(settled_ms - GOODPUT_MS, settled_ms))
        self.runs = {run: doing for run, doing in recorded.items() if doing.last_report_ms > end_ms - SILENT_MS}
        self._looked = True

    def _newest_words(self, store: StoreReader, end_ms: int) -> dict[str, RunActivity]:
        recorded: dict[str, RunActivity] = {}
        for row in store.connection.execute(_RUNS, [end_ms - ENDED_MS]).fetchall():
            run, attempt, ranks, started_ms, ended_ms, outcome, experiment, team, workload, framework, at_ms = row
            doing = recorded[run] = self.runs.get(run) or RunActivity(run)
            doing.begin(attempt)
            doing.ranks, doing.started_ms, doing.ended_ms, doing.outcome = ranks, started_ms, ended_ms, outcome
            doing.experiment, doing.team, doing.workload, doing.framework = experiment, team, workload, framework
            doing.last_report_ms = max(doing.last_report_ms, at_ms)
        return recorded

    def _steps(self, store: StoreReader, recorded: dict[str, RunActivity], from_ms: int, end_ms: int) -> None:
        began_ms = from_ms - MAX_WINDOW_MS
        store.expose(["step_window"], began_ms, end_ms + 1)
        store.connection.execute(
            "CREATE OR REPLACE TEMP TABLE recent_window AS SELECT * FROM step_window "
            "WHERE time_ms > ? AND to_ms > ? AND to_ms <= ? QUALIFY attempt = max(attempt) OVER (PARTITION BY run)",
            [began_ms, from_ms, end_ms],
        )
        rows = store.connection.execute(
            "SELECT run, max(first_step + steps), max(to_ms) FILTER (WHERE steps > 0), max(to_ms) "
            "FROM recent_window GROUP BY run"
        ).fetchall()
        for run, step, stepped_ms, last_report_ms in rows:
            if doing := recorded.get(run):
                doing.step = doing.step if step is None else step
                doing.stepped_ms = doing.stepped_ms if stepped_ms is None else stepped_ms
                doing.last_report_ms = max(doing.last_report_ms, last_report_ms)
        windows = f"(SELECT * FROM recent_window WHERE to_ms > {end_ms - SPEED_MS})"
        speeds, phases = throughput(store, windows), phases_of_all(store, windows)
        for run, doing in recorded.items():
            doing.speed, doing.phases = speeds.get(run) or nothing(), phases.get(run, {})

    def _events(self, store: StoreReader, recorded: dict[str, RunActivity], from_ms: int, end_ms: int) -> None:
        store.expose(["event"], from_ms, end_ms + 1)
        kinds = [CHECKPOINT_SAVED, STUCK, UNSTUCK, NONFINITE_LOSS, FINITE_LOSS]
        for run, attempt, rank, kind, time_ms in store.connection.execute(_EVENTS, [kinds, from_ms, end_ms]).fetchall():
            doing = recorded.get(run)
            if doing is None:
                continue
            doing.last_report_ms = max(doing.last_report_ms, time_ms)
            if kind == CHECKPOINT_SAVED:
                doing.saved_ms = max(doing.saved_ms or 0, time_ms)
            elif attempt == doing.attempt:
                if kind in (STUCK, UNSTUCK):
                    (doing.stuck.add if kind == STUCK else doing.stuck.discard)(rank)
                else:
                    doing.nonfinite = kind == NONFINITE_LOSS
        for doing in recorded.values():
            if doing.ended_ms is not None:  # it has ended, whatever it was
                doing.stuck, doing.nonfinite = set(), False

    def _metrics(self, store: StoreReader, recorded: dict[str, RunActivity], from_ms: int, end_ms: int) -> None:
        store.expose(["metric"], from_ms, end_ms + 1)
        more: Counter[str] = Counter()
        rows = store.connection.execute(_METRICS, [from_ms, end_ms]).fetchall()
        reported = [
            (recorded[row[0]], *row[2:]) for row in rows if row[0] in recorded and row[1] == recorded[row[0]].attempt
        ]
        for doing, name, rank, _, time_ms in reported:
            doing.last_report_ms = max(
                doing.last_report_ms, time_ms
            )  # the only reports of a run that only a tracker knows
            doing.reported_by[name] = min(rank, doing.reported_by.get(name, rank))
        for doing, name, rank, value, _ in reported:
            if not doing.tells(name, rank):
                continue
            if name in doing.metrics or len(doing.metrics) < MAX_METRICS:
                doing.metrics[name] = value
            else:
                more[doing.run] += 1
        for run, doing in recorded.items():
            doing.more_metrics = more[run]

    def _goodput(self, store: StoreReader, recorded: dict[str, RunActivity], window: TimeRange) -> None:
        open_placed_runs(store, window)
        spent = costs(store, window, None)
        for run, doing in recorded.items():
            doing.goodput = spent.get(run, NOTHING).goodput
