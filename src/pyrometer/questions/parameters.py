"""The parameters of questions, named like the options of the commands: their limits, defaults and checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import tzinfo
from decimal import Decimal
from typing import NamedTuple

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.query.sharing import HOW, NONE
from pyrometer.account.query.time_range import TimeRange, time_range_of, zone_of
from pyrometer.model.settings import Settings

WINDOW = ("last", "since", "until", "month", "all", "tz", "price")
SCOPE = ("team", "experiment")  # limits the answer to one team or experiment
COMMON_PARAMETERS = (*WINDOW, *SCOPE)
OWN_PARAMETERS = {  # of each question
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
# Other questions cover all data by default.
DEFAULT_LAST = {"why": "12h", "cost": "12h", "burn": "12h", "charges": "12h", "top": "1h"}
MAX_USD_MICRO_PER_HOUR = 10**12
MAX_STEP = 2**62
MAX_LIMIT = 100_000
MAX_SAMPLE_LENGTH = 1_000
MAX_NAME_LENGTH = 1_000
OPTIONAL_PARTS = ("windows", "findings")  # of `show`: large or slow


class QuestionError(ValueError):
    """An invalid question. The text names the option, the value and what to do."""


class CommonParameters(NamedTuple):
    """The parameters that every question has, checked."""

    window: Callable[[LedgerCoverage], TimeRange]
    zone: tzinfo
    price_usd_micro: int | None
    team: str | None
    experiment: str | None
    share: str  # how slots without a holder are paid
    workload: str | None = None  # its UID


def common_parameters(what: str, parameters: Mapping[str, str], settings: Settings) -> CommonParameters:
    """Checks the parameters that every question has. Raises errors for unknown ones."""
    allowed = (*COMMON_PARAMETERS, *OWN_PARAMETERS.get(what, ()))
    unknown = sorted(set(parameters) - set(allowed))
    if unknown:
        raise QuestionError(f"Parameter {unknown[0]!r} is unknown. Known parameters: {', '.join(allowed)}.")
    values = {name: parameters.get(name) for name in allowed}
    zone = zone_of(values["tz"] or settings.timezone)
    window = time_range_of(
        values["last"],
        values["since"],
        values["until"],
        values["month"],
        values["all"] in ("1", "true"),
        zone,
        DEFAULT_LAST.get(what),
    )
    price_usd_micro = _price(values["price"])
    # the experiment of `worth` is the one that its runs name, not the one that pays
    team, experiment = (None if name in OWN_PARAMETERS.get(what, ()) else _name(parameters, name) for name in SCOPE)
    workload = _name(parameters, "workload")
    return CommonParameters(
        window=window,
        zone=zone,
        price_usd_micro=price_usd_micro,
        team=team,
        experiment=experiment,
        share=_share(parameters, experiment or workload),
        workload=workload,
    )


def groupings_of(parameters: Mapping[str, str]) -> list[str]:
    """The groupings of an answer."""
    return [name.strip() for name in parameters.get("by", "team").split(",") if name.strip()]


def _share(parameters: Mapping[str, str], experiment: str | None) -> str:
    """How slots without a holder are paid."""
    share = parameters.get("share_platform", NONE)
    if share not in HOW:
        raise QuestionError(f"--share-platform {share!r} is unknown. Known values: {', '.join(HOW)}.")
    if share != NONE and experiment is not None:
        raise QuestionError("--share-platform divides among teams. Drop the experiment and the workload.")
    return share


def target_of(parameters: Mapping[str, str]) -> float | None:
    """The value for a metric to reach."""
    text = parameters.get("target")
    try:
        target = None if text is None else float(text)
    except ValueError:
        target = math.nan
    if target is not None and not math.isfinite(target):
        raise QuestionError(f"--target {text!r} is not a number.")
    return target


def one_of(parameters: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """The name of the only parameter of these that is passed. Two are an error."""
    passed = [name for name in names if parameters.get(name) is not None]
    if len(passed) > 1:
        raise QuestionError(f"Pass only one of {', '.join(f'--{name}' for name in names)}.")
    return passed[0] if passed else None


def number_of(parameters: Mapping[str, str], name: str, maximum: int = MAX_STEP) -> int | None:
    """An optional whole number."""
    text = parameters.get(name)
    if text is None:
        return None
    digits = text.replace(",", "").strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and int(digits) <= maximum):
        raise QuestionError(f"--{name} {text!r} is not a whole number from 0 to {maximum:,}.")
    return int(digits)


def _name(parameters: Mapping[str, str], name: str) -> str | None:
    """An optional name. An empty one is an error, because it would mean everything."""
    value = parameters.get(name)
    if value is not None and not 0 < len(value) <= MAX_NAME_LENGTH:
        raise QuestionError(f"--{name} has {len(value):,} characters. It must have 1 to {MAX_NAME_LENGTH:,}.")
    return value


def omitted_parts(parameters: Mapping[str, str]) -> list[str]:
    """The parts of an answer that the client does not need."""
    names = [name.strip() for name in parameters.get("without", "").split(",") if name.strip()]
    for name in names:
        if name not in OPTIONAL_PARTS:
            raise QuestionError(f"--without {name!r} is unknown. Known values: {', '.join(OPTIONAL_PARTS)}.")
    return names


def sample_of(parameters: Mapping[str, str]) -> str:
    """The ID of a sample."""
    sample = parameters["sample"]
    if len(sample) > MAX_SAMPLE_LENGTH:
        raise QuestionError(f"--sample has {len(sample):,} characters. The maximum is {MAX_SAMPLE_LENGTH:,}.")
    return sample


def _price(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        micro = int(Decimal(text.lstrip("$")) * 1_000_000)
    except (ArithmeticError, ValueError):  # not a number, "nan", "inf", "1e999999"
        raise QuestionError(f"--price {text!r} is not a number of dollars.") from None
    if not 0 <= micro <= MAX_USD_MICRO_PER_HOUR:
        raise QuestionError(f"--price {text!r} is not between 0 and 1,000,000 dollars per GPU-hour.")
    return micro
