"""The questions of commands and of the HTTP API: what answers each of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.account.build.ledger import LedgerCoverage, Progress, build
from pyrometer.account.build.retention import forget
from pyrometer.account.closing.charge_basis import LEDGER, ChargeBasis, basis_of
from pyrometer.account.closing.charges import charges
from pyrometer.account.closing.charges import groupings as charged_by
from pyrometer.account.closing.closing_months import closed_answer
from pyrometer.account.closing.node_hours import node_hours
from pyrometer.account.query.cost import CostQuestion, cost, pot_of
from pyrometer.account.query.energy import tariff_of
from pyrometer.account.query.groupings import GROUPINGS
from pyrometer.account.query.names import open_names
from pyrometer.account.query.scope import ScopeNotFoundError, only
from pyrometer.account.query.sharing import NONE, Pot
from pyrometer.account.query.time_range import TimeRange, time_ms
from pyrometer.answers.burn import burn
from pyrometer.answers.experiments.experiment_list import experiments
from pyrometer.answers.experiments.worth import ExperimentNotFoundError, MetricNotFoundError, worth
from pyrometer.answers.fleet.cluster_map import MinuteNotFoundError, cluster
from pyrometer.answers.fleet.pipeline import PipelineNotFoundError, show_pipeline
from pyrometer.answers.fleet.sweep import SweepNotFoundError, show_sweep
from pyrometer.answers.fleet.top import MAX_ROWS, top
from pyrometer.answers.ledger_by_cause import with_causes
from pyrometer.answers.runs.lifecycle import trace_run
from pyrometer.answers.runs.lineage import (
    MAX_UPDATES,
    NotRecordedError,
    lineage_of_checkpoint,
    lineage_of_sample,
    lineage_of_step,
)
from pyrometer.answers.runs.overview import RunNotFoundError, controller_run, run_names, runs, show
from pyrometer.answers.runs.signals import signals
from pyrometer.answers.runs.trace import trace_sample, trace_step
from pyrometer.answers.why import why
from pyrometer.causes.registry import DETECTORS
from pyrometer.identify.gpus.price_book import read_price_book
from pyrometer.model.settings import Settings
from pyrometer.questions.parameters import (
    MAX_LIMIT,
    QuestionError,
    common_parameters,
    groupings_of,
    number_of,
    omitted_parts,
    one_of,
    sample_of,
    target_of,
)
from pyrometer.store import Store, StoreReader

Answer = dict[str, Any]


# A checked question. Answers from a store that is up to date.
Question = Callable[[StoreReader, LedgerCoverage], Answer]


class NotFoundError(LookupError):
    """A valid question for something that does not exist."""


class _Scope(NamedTuple):
    """The time range, time zone, price, and team or experiment of a question."""

    window: TimeRange
    zone: tzinfo
    settings: Settings
    price_usd_micro: int | None
    team: str | None = None
    experiment: str | None = None
    workload: str | None = None
    pot: Pot | None = None  # the cost of slots without a holder, when teams share it

    def basis(self, store: StoreReader, by: Sequence[str]) -> ChargeBasis:
        """The ledger or the charges of closed months, whichever applies."""
        if self.workload is not None:
            return LEDGER
        return basis_of(store, self.window, by, self.zone, self.team, self.experiment)


def question(what: str, parameters: Mapping[str, str], settings: Settings) -> Question:
    """Checks a question. Its parameters are named like the options of its command."""
    if what not in _ANSWERS:
        raise NotFoundError(f"Question {what!r} not found. Known questions: {', '.join(_ANSWERS)}.")
    common = common_parameters(what, parameters, settings)
    answer = _ANSWERS[what](parameters)

    def ask(store: StoreReader, covered: LedgerCoverage) -> Answer:
        window, zone, price_usd_micro, team, experiment, share, workload = common
        scope = _Scope(
            window=window(covered),
            zone=zone,
            settings=settings,
            price_usd_micro=price_usd_micro,
            team=team,
            experiment=experiment,
            workload=workload,
        )
        scope = scope._replace(pot=_pot(store, scope, what, parameters, share))
        try:
            with only(store, team, experiment, workload):
                return answer(store, scope)
        except ScopeNotFoundError as error:
            raise NotFoundError(str(error)) from None

    return ask


def question_names() -> tuple[str, ...]:
    """The names of all questions."""
    return tuple(_ANSWERS)


def bring_up_to_date(
    store: Store, settings: Settings, *, now_ms: int, progress: Progress = lambda done, total: None
) -> LedgerCoverage | None:
    """Builds the stale hours of the ledger and deletes data that is too old. None when there is no data."""
    prices = read_price_book(Path(settings.price_book)) if settings.price_book else []
    covered = build(store, settings, now_ms=now_ms, prices=prices, progress=progress)
    if settings.retention_days > 0 and forget(store, keep_days=settings.retention_days, now_ms=now_ms):
        covered = build(store, settings, now_ms=now_ms, prices=prices)
    return covered


_Answering = Callable[[StoreReader, _Scope], Answer]


def _why(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, scope: why(
        store, scope.window, scope.settings, zone=scope.zone, price_usd_micro=scope.price_usd_micro
    )


def _burn(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, scope: burn(
        store, scope.window, scope.settings, zone=scope.zone, price_usd_micro=scope.price_usd_micro
    )


def _cost(parameters: Mapping[str, str]) -> _Answering:
    by, names = parameters.get("by", "team"), groupings_of(parameters)
    for name in names:
        if name not in GROUPINGS:
            near = difflib.get_close_matches(name, GROUPINGS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(GROUPINGS)}."
            raise QuestionError(f"--by {name!r} is not a grouping. {hint}")
    if len(set(names)) != len(names) or not names:
        raise QuestionError(f"--by {by!r} names no grouping, or the same one twice.")

    def answer(store: StoreReader, scope: _Scope) -> Answer:
        open_names(store, ("holder_name", "node_name"))
        ledger = (
            with_causes(store, scope.window, scope.settings, scope.zone, detectors=DETECTORS)
            if "cause" in names
            else "ledger_row"
        )
        return cost(
            store,
            scope.window,
            names,
            zone=scope.zone,
            price_usd_micro=scope.price_usd_micro,
            ledger=ledger,
            tariff=tariff_of(scope.settings),
            basis=scope.basis(store, names),
            pot=scope.pot,
        )

    return answer


def _charges(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, scope: charges(
        store,
        scope.window,
        zone=scope.zone,
        price_usd_micro=scope.price_usd_micro,
        basis=scope.basis(store, ()),
        pot=scope.pot,
    )


def _pot(store: StoreReader, scope: _Scope, what: str, parameters: Mapping[str, str], share: str) -> Pot | None:
    """The cost of all slots without a holder, summed before the store is limited to a team."""
    if share == NONE:
        return None
    open_names(store)
    by = groupings_of(parameters) if what == "cost" else charged_by(scope.price_usd_micro)
    subject = CostQuestion(scope.window, scope.zone, scope.price_usd_micro, scope.basis(store, by))
    return pot_of(store, subject, by, share)


def _instances(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, scope: node_hours(store, scope.window, zone=scope.zone, price_usd_micro=scope.price_usd_micro)


def _closed(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, scope: closed_answer(store, scope.team, scope.experiment)


def _cluster(parameters: Mapping[str, str]) -> _Answering:
    at = parameters.get("at")
    if at is not None:
        time_ms(at, UTC)  # an invalid time is invalid in every zone

    def answer(store: StoreReader, scope: _Scope) -> Answer:
        try:
            at_ms = None if at is None else time_ms(at, scope.zone)
            return cluster(store, scope.window, zone=scope.zone, at_ms=at_ms)
        except MinuteNotFoundError as error:
            raise NotFoundError(str(error)) from None

    return answer


def _runs(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, scope: runs(store, scope.window, zone=scope.zone, price_usd_micro=scope.price_usd_micro)


def _show(parameters: Mapping[str, str]) -> _Answering:
    without = omitted_parts(parameters)

    def answer(store: StoreReader, named: str, scope: _Scope) -> Answer:
        """A run, a workload that only its controller reports, a run of a pipeline, or a sweep."""
        window, settings, zone, price = scope.window, scope.settings, scope.zone, scope.price_usd_micro
        try:
            return show(store, named, window, settings, zone=zone, price_usd_micro=price, without=without)
        except RunNotFoundError:
            run = controller_run(store, named)
        if run is not None:
            with suppress(RunNotFoundError):
                return show(store, run, window, settings, zone=zone, price_usd_micro=price, without=without)
        try:
            return show_pipeline(
                store, named, window, settings, zone=zone, price_usd_micro=price, findings="findings" not in without
            )
        except PipelineNotFoundError as no_pipeline:
            try:
                return show_sweep(store, named, window, zone=zone, price_usd_micro=price)
            except SweepNotFoundError as no_sweep:
                raise RunNotFoundError(named, (*no_pipeline.recorded, *no_sweep.recorded)) from None

    return _of_run(parameters, answer)


def _signals(parameters: Mapping[str, str]) -> _Answering:
    return _of_run(parameters, lambda store, run, scope: signals(store, run, scope.window, zone=scope.zone))


def _trace(parameters: Mapping[str, str]) -> _Answering:
    selected = one_of(parameters, ("step", "sample"))
    step, attempt = number_of(parameters, "step"), number_of(parameters, "attempt")
    if attempt is not None and selected != "step":
        raise QuestionError("--attempt selects the attempt of a step. Pass --step, too.")

    def answer(store: StoreReader, run: str, scope: _Scope) -> Answer:
        if step is not None:
            return trace_step(store, run, step, scope.window, zone=scope.zone, attempt=attempt)
        if selected == "sample":
            return trace_sample(store, run, sample_of(parameters), scope.window, zone=scope.zone)
        return trace_run(store, run, scope.window, zone=scope.zone)

    return _of_run(parameters, answer)


def _lineage(parameters: Mapping[str, str]) -> _Answering:
    selected = one_of(parameters, ("step", "sample", "checkpoint", "spikes"))
    if selected is None:
        raise QuestionError("Choose one of --step N, --sample ID, --checkpoint STEP, --spikes.")
    if "attempt" in parameters and selected not in ("step", "checkpoint"):
        raise QuestionError("--attempt selects the attempt of a step or checkpoint. Pass --step or --checkpoint, too.")
    if "metric" in parameters and selected != "spikes":
        raise QuestionError("--metric selects the metric of --spikes. Pass --spikes, too.")
    step, saved, attempt = (number_of(parameters, name) for name in ("step", "checkpoint", "attempt"))
    limit = number_of(parameters, "limit", MAX_LIMIT) or MAX_UPDATES
    offset = number_of(parameters, "offset") or 0

    def answer(store: StoreReader, run: str, scope: _Scope) -> Answer:
        window, zone = scope.window, scope.zone
        if step is not None:
            return lineage_of_step(store, run, step, window, zone=zone, attempt=attempt, limit=limit, offset=offset)
        if saved is not None:
            return lineage_of_checkpoint(
                store, run, saved, window, zone=zone, attempt=attempt, limit=limit, offset=offset
            )
        if selected == "sample":
            return lineage_of_sample(store, run, sample_of(parameters), window, zone=zone, limit=limit, offset=offset)
        from pyrometer.answers.runs.spikes import lineage_of_spikes  # imports numpy

        return lineage_of_spikes(store, run, window, zone=zone, metric=parameters.get("metric"))

    return _of_run(parameters, answer)


def _worth(parameters: Mapping[str, str]) -> _Answering:
    experiment, metric, target = parameters.get("experiment"), parameters.get("metric"), target_of(parameters)
    if target is not None and experiment is None:
        raise QuestionError("--target needs an experiment. `pyrometer worth` lists them.")

    def answer(store: StoreReader, scope: _Scope) -> Answer:
        window, zone, price = scope.window, scope.zone, scope.price_usd_micro
        if experiment is None:
            return experiments(store, window, zone=zone, metric=metric, price_usd_micro=price)
        try:
            return worth(store, experiment, window, zone=zone, metric=metric, target=target, price_usd_micro=price)
        except MetricNotFoundError as error:
            raise NotFoundError(str(error)) from None
        except ExperimentNotFoundError as error:
            near = difflib.get_close_matches(experiment, error.recorded, 1, cutoff=0.4)
            hint = f"Did you mean {near[0]!r}?" if near else "`pyrometer worth` lists them."
            raise NotFoundError(f"Experiment {experiment!r} not found in this time range. {hint}") from None

    return answer


def _top(parameters: Mapping[str, str]) -> _Answering:
    limit = number_of(parameters, "limit", MAX_LIMIT)
    return lambda store, scope: top(
        store,
        scope.window,
        zone=scope.zone,
        price_usd_micro=scope.price_usd_micro,
        limit=MAX_ROWS if limit is None else limit,
    )


def _of_run(parameters: Mapping[str, str], answer: Callable[[StoreReader, str, _Scope], Answer]) -> _Answering:
    """The answer for one run. If it does not exist, the error names a similar one."""
    run = parameters.get("run") or ""
    if not run:
        raise QuestionError("Which run? `pyrometer runs` lists them.")

    def of_run(store: StoreReader, scope: _Scope) -> Answer:
        try:
            return answer(store, run, scope)
        except NotRecordedError as error:
            raise NotFoundError(str(error)) from None
        except RunNotFoundError as error:
            if run in run_names(store, TimeRange(-(2**62), 2**62)):
                there = f"Run {run!r} did not run in this time range. `pyrometer runs` shows when it ran."
                raise NotFoundError(there) from None
            known = [*run_names(store, scope.window), *error.also]
            near = difflib.get_close_matches(run, known, 1, cutoff=0.4)
            hint = f"Did you mean {near[0]!r}?" if near else "`pyrometer runs` lists them."
            raise NotFoundError(f"Run {run!r} not found in this time range. {hint}") from None

    return of_run


_ANSWERS: dict[str, Callable[[Mapping[str, str]], _Answering]] = {
    "why": _why,
    "cost": _cost,
    "runs": _runs,
    "show": _show,
    "trace": _trace,
    "lineage": _lineage,
    "burn": _burn,
    "worth": _worth,
    "cluster": _cluster,
    "signals": _signals,
    "charges": _charges,
    "top": _top,
    "closed": _closed,
    "instances": _instances,
}
