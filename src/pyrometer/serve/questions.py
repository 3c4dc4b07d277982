"""The questions that commands and the HTTP API ask, each checked and answered in one place: both give one answer."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.account.charge_basis import LEDGER, ChargeBasis, basis_of
from pyrometer.account.charges import charges
from pyrometer.account.charges import groupings as charged_by
from pyrometer.account.closing import closed_answer
from pyrometer.account.cost import CostQuestion, cost, pot_of
from pyrometer.account.energy import tariff_of
from pyrometer.account.groupings import GROUPINGS
from pyrometer.account.ledger import LedgerCoverage, Progress, build
from pyrometer.account.names import open_names
from pyrometer.account.node_hours import node_hours
from pyrometer.account.retention import forget
from pyrometer.account.scope import ScopeNotFoundError, only
from pyrometer.account.sharing import HOW, NONE, Pot
from pyrometer.account.time_range import TimeRange, time_ms, time_range_of, zone_of
from pyrometer.explain.burn import burn
from pyrometer.explain.causes import with_causes
from pyrometer.explain.cluster import NoSuchMinuteError, cluster
from pyrometer.explain.lifecycle import trace_run
from pyrometer.explain.lineage import (
    MOST_UPDATES,
    NotRecordedError,
    lineage_of_checkpoint,
    lineage_of_sample,
    lineage_of_step,
)
from pyrometer.explain.pipelines import NoSuchPipelineError, show_pipeline
from pyrometer.explain.runs import NoSuchRunError, run_names, runs, show, told_run
from pyrometer.explain.signals import signals
from pyrometer.explain.sweeps import NoSuchSweepError, show_sweep
from pyrometer.explain.top import MOST_ROWS, top
from pyrometer.explain.trace import trace_sample, trace_step
from pyrometer.explain.why import why
from pyrometer.explain.worth import NoSuchExperimentError, NoSuchMetricError, experiments, worth
from pyrometer.identify.price_book import read_price_book
from pyrometer.model.settings import Settings
from pyrometer.store import Store, StoreReader

Answer = dict[str, Any]
# checked, and ready to be asked of a store that is up to date
Question = Callable[[StoreReader, LedgerCoverage], Answer]

WINDOW = ("last", "since", "until", "month", "all", "tz", "price")
SCOPE = ("team", "experiment")  # only what belongs to them
ASKED_ALWAYS = (*WINDOW, *SCOPE)
ASKED_BY = {  # what a question takes besides
    "why": ("workload",),
    "burn": ("workload",),
    "runs": ("workload",),
    "cost": ("by", "share_platform", "workload"),
    "charges": ("share_platform",),
    "cluster": ("at",),
    "show": ("run", "without"),
    "signals": ("run",),
    "trace": ("run", "step", "sample", "attempt"),
    "lineage": ("run", "step", "sample", "checkpoint", "spikes", "metric", "attempt", "limit", "offset"),
    "worth": ("experiment", "metric", "target"),
    "top": ("limit",),
}
# Others are about everything there is.
DEFAULT_LAST = {"why": "12h", "cost": "12h", "burn": "12h", "charges": "12h", "top": "1h"}
HIGHEST_USD_MICRO_PER_HOUR = 10**12
HIGHEST_STEP = 2**62
HIGHEST_LIMIT = 100_000
LONGEST_SAMPLE = 1_000
LONGEST_NAME = 1_000
LEFT_OUT = ("windows", "findings")  # parts of `show` that are large, or take long


class QuestionError(ValueError):
    """A question that makes no sense; the text names the option, the value and the way out."""


class NothingError(LookupError):
    """A question that makes sense, about something that is not there."""


class _About(NamedTuple):
    """What every question is about: which time, in which zone, at which price, of whom."""

    window: TimeRange
    zone: tzinfo
    settings: Settings
    price_usd_micro: int | None
    team: str | None = None
    experiment: str | None = None
    workload: str | None = None
    pot: Pot | None = None  # what nobody held, where others pay for it

    def basis(self, store: StoreReader, by: Sequence[str]) -> ChargeBasis:
        """What it is answered from, once months are closed."""
        if self.workload is not None:
            return LEDGER
        return basis_of(store, self.window, by, self.zone, self.team, self.experiment)


def question(what: str, parameters: Mapping[str, str], settings: Settings) -> Question:
    """A question in the words of the command's options, without their dashes. Raises before any store is opened."""
    heard = heard_as(what, parameters, settings)
    answer = _ANSWERS[what](parameters)

    def asked(store: StoreReader, covered: LedgerCoverage) -> Answer:
        window, zone, price_usd_micro, team, experiment, share, workload = heard
        about = _About(window(covered), zone, settings, price_usd_micro, team, experiment, workload)
        about = about._replace(pot=_pot(store, about, what, parameters, share))
        try:
            with only(store, team, experiment, workload):
                return answer(store, about)
        except ScopeNotFoundError as error:
            raise NothingError(str(error)) from None

    return asked


class Heard(NamedTuple):
    """What every question says, checked."""

    window: Callable[[LedgerCoverage], TimeRange]
    zone: tzinfo
    price_usd_micro: int | None
    team: str | None
    experiment: str | None
    share: str  # who pays for what nobody held
    workload: str | None = None  # its UID


def heard_as(what: str, parameters: Mapping[str, str], settings: Settings) -> Heard:
    """What is said of time, price and whose it is."""
    if what not in _ANSWERS:
        raise NothingError(f"There is no question {what!r}. Known: {', '.join(_ANSWERS)}.")
    allowed = (*ASKED_ALWAYS, *ASKED_BY.get(what, ()))
    unknown = sorted(set(parameters) - set(allowed))
    if unknown:
        raise QuestionError(f"There is no parameter {unknown[0]!r}. Known: {', '.join(allowed)}.")
    told = {name: parameters.get(name) for name in allowed}
    zone = zone_of(told["tz"] or settings.timezone)
    window = time_range_of(
        told["last"], told["since"], told["until"], told["month"], told["all"] in ("1", "true"), zone,
        DEFAULT_LAST.get(what),
    )  # fmt: skip
    price_usd_micro = _price(told["price"])
    # what `worth` calls an experiment is what its runs say, not who pays
    team, experiment = (None if name in ASKED_BY.get(what, ()) else _name(parameters, name) for name in SCOPE)
    workload = _name(parameters, "workload")
    return Heard(window, zone, price_usd_micro, team, experiment, _share(parameters, experiment or workload), workload)


def known() -> tuple[str, ...]:
    """The questions that there are."""
    return tuple(_ANSWERS)


def bring_up_to_date(
    store: Store, settings: Settings, *, now_ms: int, progress: Progress = lambda done, total: None
) -> LedgerCoverage | None:
    """Builds the stale hours of the ledger and forgets what is too old; None when there is nothing to account for."""
    prices = read_price_book(Path(settings.price_book)) if settings.price_book else []
    covered = build(store, settings, now_ms=now_ms, prices=prices, progress=progress)
    if settings.retention_days > 0 and forget(store, keep_days=settings.retention_days, now_ms=now_ms):
        covered = build(store, settings, now_ms=now_ms, prices=prices)
    return covered


# -- one function a question: checks what it takes, and gives the function that answers it ----------------------------

_Answering = Callable[[StoreReader, _About], Answer]


def _why(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, about: why(
        store, about.window, about.settings, zone=about.zone, price_usd_micro=about.price_usd_micro
    )


def _burn(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, about: burn(
        store, about.window, about.settings, zone=about.zone, price_usd_micro=about.price_usd_micro
    )


def _cost(parameters: Mapping[str, str]) -> _Answering:
    by, names = parameters.get("by", "team"), groupings_of(parameters)
    for name in names:
        if name not in GROUPINGS:
            near = difflib.get_close_matches(name, GROUPINGS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(GROUPINGS)}."
            raise QuestionError(f"--by {name!r} is not a grouping. {hint}")
    if len(set(names)) != len(names) or not names:
        raise QuestionError(f"--by {by!r} names no grouping, or one twice.")

    def answer(store: StoreReader, about: _About) -> Answer:
        open_names(store, ("holder_name", "node_name"))
        ledger = with_causes(store, about.window, about.settings, about.zone) if "cause" in names else "ledger_row"
        return cost(
            store, about.window, names, zone=about.zone, price_usd_micro=about.price_usd_micro, ledger=ledger,
            tariff=tariff_of(about.settings), basis=about.basis(store, names), pot=about.pot,
        )  # fmt: skip

    return answer


def groupings_of(parameters: Mapping[str, str]) -> list[str]:
    """What an answer is grouped by."""
    return [name.strip() for name in parameters.get("by", "team").split(",") if name.strip()]


def _charges(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, about: charges(
        store, about.window, zone=about.zone, price_usd_micro=about.price_usd_micro, basis=about.basis(store, ()),
        pot=about.pot,
    )  # fmt: skip


def _share(parameters: Mapping[str, str], experiment: str | None) -> str:
    """Who pays for what nobody held."""
    share = parameters.get("share_platform", NONE)
    if share not in HOW:
        raise QuestionError(f"--share-platform {share!r} is not known: {', '.join(HOW)}.")
    if share != NONE and experiment is not None:
        raise QuestionError("--share-platform is paid by teams: leave out the experiment and the workload.")
    return share


def _pot(store: StoreReader, about: _About, what: str, parameters: Mapping[str, str], share: str) -> Pot | None:
    """What nobody held, of everything there is: asked before the store is limited to a team."""
    if share == NONE:
        return None
    open_names(store)
    by = groupings_of(parameters) if what == "cost" else charged_by(about.price_usd_micro)
    asked = CostQuestion(about.window, about.zone, about.price_usd_micro, about.basis(store, by))
    return pot_of(store, asked, by, share)


def _instances(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, about: node_hours(store, about.window, zone=about.zone, price_usd_micro=about.price_usd_micro)


def _closed(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, about: closed_answer(store, about.team, about.experiment)


def _cluster(parameters: Mapping[str, str]) -> _Answering:
    at = parameters.get("at")
    if at is not None:
        time_ms(at, UTC)  # what is no time is none in any zone

    def answer(store: StoreReader, about: _About) -> Answer:
        try:
            at_ms = None if at is None else time_ms(at, about.zone)
            return cluster(store, about.window, zone=about.zone, at_ms=at_ms)
        except NoSuchMinuteError as error:
            raise NothingError(str(error)) from None

    return answer


def _runs(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, about: runs(store, about.window, zone=about.zone, price_usd_micro=about.price_usd_micro)


def _show(parameters: Mapping[str, str]) -> _Answering:
    without = _without(parameters)

    def answer(store: StoreReader, named: str, about: _About) -> Answer:
        """A run; else a workload that only its controller tells of, a run of a pipeline, a sweep."""
        window, settings, zone, price = about.window, about.settings, about.zone, about.price_usd_micro
        try:
            return show(store, named, window, settings, zone=zone, price_usd_micro=price, without=without)
        except NoSuchRunError:
            told = told_run(store, named)
        if told is not None:
            with suppress(NoSuchRunError):
                return show(store, told, window, settings, zone=zone, price_usd_micro=price, without=without)
        try:
            return show_pipeline(
                store, named, window, settings, zone=zone, price_usd_micro=price, findings="findings" not in without
            )
        except NoSuchPipelineError as no_pipeline:
            try:
                return show_sweep(store, named, window, zone=zone, price_usd_micro=price)
            except NoSuchSweepError as no_sweep:
                raise NoSuchRunError(named, (*no_pipeline.known, *no_sweep.known)) from None

    return _of_run(parameters, answer)


def _signals(parameters: Mapping[str, str]) -> _Answering:
    return _of_run(parameters, lambda store, run, about: signals(store, run, about.window, zone=about.zone))


def _trace(parameters: Mapping[str, str]) -> _Answering:
    asked = _one_of(parameters, ("step", "sample"))
    step, attempt = _number(parameters, "step"), _number(parameters, "attempt")
    if attempt is not None and asked != "step":
        raise QuestionError("--attempt says which attempt's step is meant: it needs --step.")

    def answer(store: StoreReader, run: str, about: _About) -> Answer:
        if step is not None:
            return trace_step(store, run, step, about.window, zone=about.zone, attempt=attempt)
        if asked == "sample":
            return trace_sample(store, run, _sample(parameters), about.window, zone=about.zone)
        return trace_run(store, run, about.window, zone=about.zone)

    return _of_run(parameters, answer)


def _lineage(parameters: Mapping[str, str]) -> _Answering:
    asked = _one_of(parameters, ("step", "sample", "checkpoint", "spikes"))
    if asked is None:
        raise QuestionError("Of what? Say --step N, --sample ID, --checkpoint STEP or --spikes.")
    if "attempt" in parameters and asked not in ("step", "checkpoint"):
        raise QuestionError("--attempt says whose step or checkpoint is meant: it needs --step or --checkpoint.")
    if "metric" in parameters and asked != "spikes":
        raise QuestionError("--metric says what spikes: it needs --spikes.")
    step, saved, attempt = (_number(parameters, name) for name in ("step", "checkpoint", "attempt"))
    limit = _number(parameters, "limit", HIGHEST_LIMIT) or MOST_UPDATES
    offset = _number(parameters, "offset") or 0

    def answer(store: StoreReader, run: str, about: _About) -> Answer:
        window, zone = about.window, about.zone
        if step is not None:
            return lineage_of_step(store, run, step, window, zone=zone, attempt=attempt, limit=limit, offset=offset)
        if saved is not None:
            return lineage_of_checkpoint(
                store, run, saved, window, zone=zone, attempt=attempt, limit=limit, offset=offset
            )
        if asked == "sample":
            return lineage_of_sample(store, run, _sample(parameters), window, zone=zone, limit=limit, offset=offset)
        from pyrometer.explain.spikes import lineage_of_spikes  # numpy: only here

        return lineage_of_spikes(store, run, window, zone=zone, metric=parameters.get("metric"))

    return _of_run(parameters, answer)


def _worth(parameters: Mapping[str, str]) -> _Answering:
    experiment, metric, target = parameters.get("experiment"), parameters.get("metric"), _target(parameters)
    if target is not None and experiment is None:
        raise QuestionError("--target is reached by runs of one experiment: say which. `pyrometer worth` lists them.")

    def answer(store: StoreReader, about: _About) -> Answer:
        window, zone, price = about.window, about.zone, about.price_usd_micro
        if experiment is None:
            return experiments(store, window, zone=zone, metric=metric, price_usd_micro=price)
        try:
            return worth(store, experiment, window, zone=zone, metric=metric, target=target, price_usd_micro=price)
        except NoSuchMetricError as error:
            raise NothingError(str(error)) from None
        except NoSuchExperimentError as error:
            near = difflib.get_close_matches(experiment, error.known, 1, cutoff=0.4)
            hint = f"Did you mean {near[0]!r}?" if near else "`pyrometer worth` lists them."
            raise NothingError(f"There is no experiment {experiment!r} in that time. {hint}") from None

    return answer


def _top(parameters: Mapping[str, str]) -> _Answering:
    limit = _number(parameters, "limit", HIGHEST_LIMIT)
    return lambda store, about: top(
        store, about.window, zone=about.zone, price_usd_micro=about.price_usd_micro,
        limit=MOST_ROWS if limit is None else limit,
    )  # fmt: skip


def _target(parameters: Mapping[str, str]) -> float | None:
    """The value that a metric should reach."""
    text = parameters.get("target")
    try:
        target = None if text is None else float(text)
    except ValueError:
        target = math.nan
    if target is not None and not math.isfinite(target):
        raise QuestionError(f"--target {text!r} is not a number.")
    return target


def _of_run(parameters: Mapping[str, str], answer: Callable[[StoreReader, str, _About], Answer]) -> _Answering:
    """The answer about one run; of a run that is not there, a near one is named."""
    run = parameters.get("run") or ""
    if not run:
        raise QuestionError("Which run? `pyrometer runs` lists them.")

    def of_run(store: StoreReader, about: _About) -> Answer:
        try:
            return answer(store, run, about)
        except NotRecordedError as error:
            raise NothingError(str(error)) from None
        except NoSuchRunError as error:
            if run in run_names(store, TimeRange(-(2**62), 2**62)):
                there = f"Run {run!r} did not run in that time. `pyrometer runs` shows when it ran."
                raise NothingError(there) from None
            known = [*run_names(store, about.window), *error.also]
            near = difflib.get_close_matches(run, known, 1, cutoff=0.4)
            hint = f"Did you mean {near[0]!r}?" if near else "`pyrometer runs` lists them."
            raise NothingError(f"There is no run {run!r} in that time. {hint}") from None

    return of_run


def _one_of(parameters: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Which of these is asked about; not two of them."""
    asked = [name for name in names if parameters.get(name) is not None]
    if len(asked) > 1:
        raise QuestionError(f"Say one of {', '.join(f'--{name}' for name in names)}, not {len(asked)}.")
    return asked[0] if asked else None


def _number(parameters: Mapping[str, str], name: str, most: int = HIGHEST_STEP) -> int | None:
    text = parameters.get(name)
    if text is None:
        return None
    digits = text.replace(",", "").strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and int(digits) <= most):
        raise QuestionError(f"--{name} {text!r} is not a whole number from 0 to {most:,}.")
    return int(digits)


def _name(parameters: Mapping[str, str], name: str) -> str | None:
    """A name that may be said, and then not as nothing: nothing would mean everything."""
    said = parameters.get(name)
    if said is not None and not 0 < len(said) <= LONGEST_NAME:
        raise QuestionError(f"--{name} has {len(said):,} characters: 1 to {LONGEST_NAME:,}.")
    return said


def _without(parameters: Mapping[str, str]) -> list[str]:
    said = parameters.get("without", "")
    names = [name.strip() for name in said.split(",") if name.strip()]
    for name in names:
        if name not in LEFT_OUT:
            raise QuestionError(f"--without {name!r} is not known: {', '.join(LEFT_OUT)}.")
    return names


def _sample(parameters: Mapping[str, str]) -> str:
    sample = parameters["sample"]
    if len(sample) > LONGEST_SAMPLE:
        raise QuestionError(f"--sample has {len(sample):,} characters, {LONGEST_SAMPLE:,} at most.")
    return sample


_ANSWERS: dict[str, Callable[[Mapping[str, str]], _Answering]] = {
    "why": _why, "cost": _cost, "runs": _runs, "show": _show, "trace": _trace, "lineage": _lineage,
    "burn": _burn, "worth": _worth, "cluster": _cluster, "signals": _signals, "charges": _charges, "top": _top,
    "closed": _closed, "instances": _instances,
}  # fmt: skip


def _price(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        micro = int(Decimal(text.lstrip("$")) * 1_000_000)
    except (ArithmeticError, ValueError):  # not a number, "nan", "inf", "1e999999"
        raise QuestionError(f"--price {text!r} is not a number of dollars.") from None
    if not 0 <= micro <= HIGHEST_USD_MICRO_PER_HOUR:
        raise QuestionError(f"--price {text!r} is not a price: 0 to 1,000,000 dollars per GPU-hour.")
    return micro
