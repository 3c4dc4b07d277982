"""The questions that commands and the HTTP API ask, each checked and answered in one place: both give one answer."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.account.energy import tariff_of
from pyrometer.account.ledger import Accounted, Progress, build
from pyrometer.account.retention import forget
from pyrometer.account.sums import GROUPINGS, Window, cost, open_names
from pyrometer.account.windows import window_of, zone_of
from pyrometer.explain.causes import with_causes
from pyrometer.explain.runs import NoSuchRunError, runs, show
from pyrometer.explain.why import why
from pyrometer.identify.price_book import read_price_book
from pyrometer.model.settings import Settings
from pyrometer.store import Store

Answer = dict[str, Any]
Question = Callable[[Store, Accounted], Answer]  # checked, and ready to be asked of a store that is up to date

WINDOW = ("last", "since", "until", "month", "all", "tz", "price")
ASKED_BY = {"cost": ("by",), "show": ("run",)}  # what a question takes besides
DEFAULT_LAST = {"why": "12h", "cost": "12h"}  # others are about everything there is
HIGHEST_USD_MICRO_PER_HOUR = 10**12


class QuestionError(ValueError):
    """A question that makes no sense; the text names the option, the value and the way out."""


class NothingError(LookupError):
    """A question that makes sense, about something that is not there."""


class _About(NamedTuple):
    """What every question is about: which time, in which zone, at which price."""

    window: Window
    zone: tzinfo
    settings: Settings
    price_usd_micro: int | None


def question(what: str, parameters: Mapping[str, str], settings: Settings) -> Question:
    """A question in the words of the command's options, without their dashes. Raises before any store is opened."""
    if what not in _ANSWERS:
        raise NothingError(f"There is no question {what!r}. Known: {', '.join(_ANSWERS)}.")
    allowed = (*WINDOW, *ASKED_BY.get(what, ()))
    unknown = sorted(set(parameters) - set(allowed))
    if unknown:
        raise QuestionError(f"There is no parameter {unknown[0]!r}. Known: {', '.join(allowed)}.")
    told = {name: parameters.get(name) for name in allowed}
    zone = zone_of(told["tz"] or settings.timezone)
    window = window_of(
        told["last"], told["since"], told["until"], told["month"], told["all"] in ("1", "true"), zone,
        DEFAULT_LAST.get(what),
    )  # fmt: skip
    price_usd_micro = _price(told["price"])
    answer = _ANSWERS[what](parameters)
    return lambda store, covered: answer(store, _About(window(covered), zone, settings, price_usd_micro))


def bring_up_to_date(
    store: Store, settings: Settings, *, now_ms: int, progress: Progress = lambda done, total: None
) -> Accounted | None:
    """Builds the stale hours of the ledger and forgets what is too old; None when there is nothing to account for."""
    prices = read_price_book(Path(settings.price_book)) if settings.price_book else []
    covered = build(store, settings, now_ms=now_ms, prices=prices, progress=progress)
    if settings.retention_days > 0 and forget(store, keep_days=settings.retention_days, now_ms=now_ms):
        covered = build(store, settings, now_ms=now_ms, prices=prices)
    return covered


# -- one function a question: checks what it takes, and gives the function that answers it ----------------------------

_Answering = Callable[[Store, _About], Answer]


def _why(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, about: why(
        store, about.window, about.settings, zone=about.zone, price_usd_micro=about.price_usd_micro
    )


def _cost(parameters: Mapping[str, str]) -> _Answering:
    by = parameters.get("by", "team")
    names = [name.strip() for name in by.split(",") if name.strip()]
    for name in names:
        if name not in GROUPINGS:
            near = difflib.get_close_matches(name, GROUPINGS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(GROUPINGS)}."
            raise QuestionError(f"--by {name!r} is not a grouping. {hint}")
    if len(set(names)) != len(names) or not names:
        raise QuestionError(f"--by {by!r} names no grouping, or one twice.")

    def answer(store: Store, about: _About) -> Answer:
        open_names(store)
        ledger = with_causes(store, about.window, about.settings, about.zone) if "cause" in names else "ledger_row"
        return cost(
            store, about.window, names, zone=about.zone, price_usd_micro=about.price_usd_micro, ledger=ledger,
            tariff=tariff_of(about.settings),
        )  # fmt: skip

    return answer


def _runs(parameters: Mapping[str, str]) -> _Answering:
    return lambda store, about: runs(store, about.window, zone=about.zone, price_usd_micro=about.price_usd_micro)


def _show(parameters: Mapping[str, str]) -> _Answering:
    run = parameters.get("run") or ""
    if not run:
        raise QuestionError("Which run? `pyrometer runs` lists them.")

    def answer(store: Store, about: _About) -> Answer:
        try:
            return show(
                store, run, about.window, about.settings, zone=about.zone, price_usd_micro=about.price_usd_micro
            )
        except NoSuchRunError:
            known = [row["run"] for row in runs(store, about.window, zone=about.zone)["rows"]]
            near = difflib.get_close_matches(run, known, 1, cutoff=0.4)
            hint = f"Did you mean {near[0]!r}?" if near else "`pyrometer runs` lists them."
            raise NothingError(f"There is no run {run!r} in that time. {hint}") from None

    return answer


_ANSWERS: dict[str, Callable[[Mapping[str, str]], _Answering]] = {
    "why": _why, "cost": _cost, "runs": _runs, "show": _show,
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
