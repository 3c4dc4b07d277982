"""How runs are doing at this moment: their step, their speed, their metrics, and whether anything is wrong with them.

Asked once a minute, so it reads the measurements of the last minutes only and remembers what it read before. After a
restart it looks further back, once: what a run said before that is not known until it says it again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pyrometer.account.names import open_names
from pyrometer.account.time_range import TimeRange
from pyrometer.account.relations.ranks import WEIGHED
from pyrometer.account.relations.ranks import open_ranks
from pyrometer.account.relations.runs import open_placed_runs
from pyrometer.explain.metrics import OWN_LOSS, is_training_loss
from pyrometer.explain.spending import NOTHING, costs
from pyrometer.explain.throughput import nothing, phases_of_all, throughput
from pyrometer.model.events import CHECKPOINT_SAVED, FINITE_LOSS, NONFINITE_LOSS, STUCK, UNSTUCK
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import StoreReader

LOOK_BACK_MS = 5 * MS_PER_MINUTE  # measurements that come later than that are passed over
LONGEST_WINDOW_MS = 5 * MS_PER_MINUTE  # steps of minutes make windows of minutes
FIRST_LOOK_MS = MS_PER_HOUR
EVENTS_MS = MS_PER_HOUR  # they are few
FIRST_EVENTS_MS = 24 * MS_PER_HOUR
SPEED_MS = LOOK_BACK_MS  # how fast it is: in the last minutes
GOODPUT_MS = MS_PER_HOUR
ENDED_MS = MS_PER_HOUR  # how long a run is told of after its end
SILENT_MS = 12 * MS_PER_HOUR  # and how long one that never said that it ended
MOST_METRICS = 20  # of a run: the first that it names keep their place

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
class Doing:
    """A run's newest attempt, as far as it is known."""

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
    heard_ms: int = 0  # its last word of any kind
    step: int | None = None  # how many are done
    stepped_ms: int | None = None  # when the last of them was over
    saved_ms: int | None = None  # its last checkpoint, of any attempt
    goodput: float | None = None
    speed: dict[str, Any] = field(default_factory=nothing)
    phases: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    told_by: dict[str, int] = field(default_factory=dict)  # metrics: the first rank that told each
    more_metrics: int = 0  # that have no place there
    stuck: set[int] = field(default_factory=set)  # ranks
    nonfinite: bool = False  # it trains on although its loss is no number any more

    def begin(self, attempt: int) -> None:
        """A new attempt knows nothing of the one before but its checkpoints and metrics."""
        if attempt > self.attempt:
            self.attempt, self.stuck, self.nonfinite, self.told_by = attempt, set(), False, {}

    def tells(self, name: str, rank: int) -> bool:
        """Whether a rank's values of a metric are the run's curve, by all that was heard."""
        losses = [told for other, told in self.told_by.items() if is_training_loss(other)]
        if name == OWN_LOSS and self.told_by[name] > min(losses):  # somebody logs it under another name
            self.metrics.pop(name, None)
            return False
        return rank == self.told_by[name]


class Progress:
    """What is known of the runs that go on, or ended not long ago."""

    def __init__(self) -> None:
        self.runs: dict[str, Doing] = {}
        self._looked = False

    def read(self, store: StoreReader, end_ms: int, settled_ms: int) -> None:
        """Reads what is new at `end_ms`; the ledger does not change before `settled_ms` any more, as a rule."""
        open_names(store)
        open_ranks(store, end_ms, tracked=True)
        known = self._newest_words(store, end_ms)
        from_ms = end_ms - (LOOK_BACK_MS if self._looked else FIRST_LOOK_MS)
        self._steps(store, known, from_ms, end_ms)
        self._events(store, known, end_ms - (EVENTS_MS if self._looked else FIRST_EVENTS_MS), end_ms)
        self._metrics(store, known, from_ms, end_ms)
        self._goodput(store, known, TimeRange(settled_ms - GOODPUT_MS, settled_ms))
        self.runs = {run: doing for run, doing in known.items() if doing.heard_ms > end_ms - SILENT_MS}
        self._looked = True

    def _newest_words(self, store: StoreReader, end_ms: int) -> dict[str, Doing]:
        known: dict[str, Doing] = {}
        for row in store.connection.execute(_RUNS, [end_ms - ENDED_MS]).fetchall():
            run, attempt, ranks, started_ms, ended_ms, outcome, experiment, team, workload, framework, at_ms = row
            doing = known[run] = self.runs.get(run) or Doing(run)
            doing.begin(attempt)
            doing.ranks, doing.started_ms, doing.ended_ms, doing.outcome = ranks, started_ms, ended_ms, outcome
            doing.experiment, doing.team, doing.workload, doing.framework = experiment, team, workload, framework
            doing.heard_ms = max(doing.heard_ms, at_ms)
        return known

    def _steps(self, store: StoreReader, known: dict[str, Doing], from_ms: int, end_ms: int) -> None:
        began_ms = from_ms - LONGEST_WINDOW_MS
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
        for run, step, stepped_ms, heard_ms in rows:
            if doing := known.get(run):
                doing.step = doing.step if step is None else step
                doing.stepped_ms = doing.stepped_ms if stepped_ms is None else stepped_ms
                doing.heard_ms = max(doing.heard_ms, heard_ms)
        windows = f"(SELECT * FROM recent_window WHERE to_ms > {end_ms - SPEED_MS})"
        speeds, phases = throughput(store, windows), phases_of_all(store, windows)
        for run, doing in known.items():
            doing.speed, doing.phases = speeds.get(run) or nothing(), phases.get(run, {})

    def _events(self, store: StoreReader, known: dict[str, Doing], from_ms: int, end_ms: int) -> None:
        store.expose(["event"], from_ms, end_ms + 1)
        kinds = [CHECKPOINT_SAVED, STUCK, UNSTUCK, NONFINITE_LOSS, FINITE_LOSS]
        for run, attempt, rank, kind, time_ms in store.connection.execute(_EVENTS, [kinds, from_ms, end_ms]).fetchall():
            doing = known.get(run)
            if doing is None:
                continue
            doing.heard_ms = max(doing.heard_ms, time_ms)
            if kind == CHECKPOINT_SAVED:
                doing.saved_ms = max(doing.saved_ms or 0, time_ms)
            elif attempt == doing.attempt:
                if kind in (STUCK, UNSTUCK):
                    (doing.stuck.add if kind == STUCK else doing.stuck.discard)(rank)
                else:
                    doing.nonfinite = kind == NONFINITE_LOSS
        for doing in known.values():
            if doing.ended_ms is not None:  # it does not any more, whatever it was
                doing.stuck, doing.nonfinite = set(), False

    def _metrics(self, store: StoreReader, known: dict[str, Doing], from_ms: int, end_ms: int) -> None:
        store.expose(["metric"], from_ms, end_ms + 1)
        more: Counter[str] = Counter()
        rows = store.connection.execute(_METRICS, [from_ms, end_ms]).fetchall()
        told = [(known[row[0]], *row[2:]) for row in rows if row[0] in known and row[1] == known[row[0]].attempt]
        for doing, name, rank, _, time_ms in told:
            doing.heard_ms = max(doing.heard_ms, time_ms)  # all that is heard of a run that only a tracker knows
            doing.told_by[name] = min(rank, doing.told_by.get(name, rank))
        for doing, name, rank, value, _ in told:
            if not doing.tells(name, rank):
                continue
            if name in doing.metrics or len(doing.metrics) < MOST_METRICS:
                doing.metrics[name] = value
            else:
                more[doing.run] += 1
        for run, doing in known.items():
            doing.more_metrics = more[run]

    def _goodput(self, store: StoreReader, known: dict[str, Doing], window: TimeRange) -> None:
        open_placed_runs(store, window)
        spent = costs(store, window, None)
        for run, doing in known.items():
            doing.goodput = spent.get(run, NOTHING).goodput
