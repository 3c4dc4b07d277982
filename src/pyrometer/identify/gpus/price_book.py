"""Reads a price book: YAML, one entry per price.

    prices:
      - usd_per_gpu_hour: 2.10      # or usd_per_node_hour, or owned
        model: H100-SXM             # any of model, pool, cluster, purchase, instance_type; none of them: everything
        pool: reserved-a
        from: 2026-01-01            # optional, inclusive, UTC; as is `until`, exclusive

A mistake in it would be a wrong bill, so nothing is guessed: an entry that is not understood is an error.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.identify.gpus.gpu_models import gpu_model
from pyrometer.identify.yaml_text import YamlError, parsed
from pyrometer.model.records import Price
from pyrometer.model.units import USD_MICRO_PER_USD

MAX_BOOK_BYTES = 4_000_000
HOURS_PER_YEAR = 8_766  # 365.25 days
PURCHASES = ("on_demand", "spot", "reserved")
SELECTORS = {
    "model": "gpu_model",
    "pool": "pool",
    "cluster": "cluster",
    "purchase": "purchase",
    "instance_type": "instance_type",
}

_PRICED_BY = ("usd_per_gpu_hour", "usd_per_node_hour", "owned")
_FIELDS = (*_PRICED_BY, *SELECTORS, "from", "until")
_CAPITAL = ("capital_usd_per_gpu", "capital_usd_per_node")
_OWNED = (*_CAPITAL, "lifetime_years", "power_w", "pue", "usd_per_kwh", "fixed_usd_per_hour")
_MAX_AMOUNTS = {  # larger amounts are mistakes
    "usd_per_gpu_hour": 10**6,
    "usd_per_node_hour": 10**6,
    "capital_usd_per_gpu": 10**9,
    "capital_usd_per_node": 10**9,
    "lifetime_years": 100,
    "power_w": 10**6,
    "pue": 10,
    "usd_per_kwh": 1_000,
    "fixed_usd_per_hour": 10**6,
}


class PriceError(ValueError):
    """A price book that cannot be read as one; the text names the entry."""


class Entry(NamedTuple):
    """One entry of a book: its price, and the arithmetic if the price is computed."""

    number: int
    price: Price
    arithmetic: str | None = None


def read_price_book(path: Path) -> list[Price]:
    """The prices of a YAML book."""
    return [entry.price for entry in read_entries(path)]


def read_entries(path: Path) -> list[Entry]:
    """The entries of a YAML book, in its order."""
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BOOK_BYTES + 1)
        if len(content) > MAX_BOOK_BYTES:
            raise PriceError(f"Price book {path} has more than {MAX_BOOK_BYTES:,} bytes: it is not a price book.")
        book = parsed(content.decode("utf-8"))
    except (OSError, UnicodeDecodeError, YamlError) as error:
        raise PriceError(f"Price book {path} cannot be read: {error}.") from None
    listed = book.get("prices") if isinstance(book, dict) else None
    if not isinstance(listed, list):
        raise PriceError(f"Price book {path} has no list `prices`.")
    entries = [_entry(entry, number, f"Price book {path}, entry {number}") for number, entry in enumerate(listed, 1)]
    _reject_duplicates(entries, path)
    return entries


def selectors_of(price: Price) -> dict[str, str]:
    """The selectors of a price, as a book names them."""
    chosen = {name: getattr(price, column) for name, column in SELECTORS.items()}
    return {name: value for name, value in chosen.items() if value is not None}


def _reject_duplicates(entries: list[Entry], path: Path) -> None:
    """Two entries for the same GPUs from the same time on: it is unclear which was meant."""
    first: dict[Any, Entry] = {}
    for entry in entries:
        known = gpu_model(entry.price.gpu_model)
        model = known.model if known else entry.price.gpu_model
        chosen = selectors_of(entry.price) | ({"model": model.casefold()} if model else {})
        twin = first.setdefault((entry.price.from_ms, *chosen.items()), entry)
        if twin is not entry:
            words = ", ".join(f"{name} {value}" for name, value in selectors_of(entry.price).items()) or "everything"
            raise PriceError(
                f"Price book {path}: entries {twin.number} and {entry.number} are both for {words} from the same time "
                "on. Leave one out, or give it a `from` of its own."
            )


def _entry(entry: Any, number: int, where: str) -> Entry:
    pricing = [name for name in _PRICED_BY if isinstance(entry, dict) and name in entry]
    if not pricing:
        raise PriceError(f"{where} has no `usd_per_gpu_hour`, `usd_per_node_hour` or `owned`.")
    if len(pricing) > 1:
        raise PriceError(f"{where} has both `{pricing[0]}` and `{pricing[1]}`: leave one out.")
    _reject_unknown(entry, _FIELDS, where)
    from_ms, until_ms = _day_ms(entry, "from", where) or 0, _day_ms(entry, "until", where)
    if until_ms is not None and until_ms <= from_ms:
        raise PriceError(f"{where}: until {entry['until']} is not after from {entry.get('from', '1970-01-01')}.")
    if pricing == ["owned"]:
        usd_micro, per, arithmetic = _owned(entry["owned"], where)
    else:
        usd_micro, per, arithmetic = _usd_micro(_amount(entry, pricing[0], where)), _per(pricing[0]), None
    chosen: dict[str, Any] = {column: _text(entry, name, where) for name, column in SELECTORS.items()}
    if chosen["purchase"] is not None:
        chosen["purchase"] = chosen["purchase"].replace("-", "_")
        if chosen["purchase"] not in PURCHASES:
            raise PriceError(f"{where}: purchase {entry['purchase']!r} is not one of {', '.join(PURCHASES)}.")
    return Entry(
        number,
        Price(time_ms=from_ms, usd_micro_per_hour=usd_micro, from_ms=from_ms, to_ms=until_ms, per=per, **chosen),
        arithmetic,
    )


def _owned(owned: Any, where: str) -> tuple[int, str | None, str]:
    """The cost per hour of an owned machine, used or not: its parts are rounded to micro-dollars, then added."""
    if not isinstance(owned, dict):
        raise PriceError(f"{where}: owned {reprlib.repr(owned)} is not a list of `name: value`.")
    _reject_unknown(owned, _OWNED, f"{where}, owned,")
    capital = [name for name in _CAPITAL if name in owned]
    if len(capital) != 1 or "lifetime_years" not in owned:
        raise PriceError(f"{where}: owned needs `lifetime_years` and one of `{_CAPITAL[0]}` and `{_CAPITAL[1]}`.")
    if ("power_w" in owned) != ("usd_per_kwh" in owned):
        raise PriceError(f"{where}: owned needs `power_w` and `usd_per_kwh` together, or neither.")
    amounts = {name: _amount(owned, name, f"{where}, owned") for name in owned}
    years, pue = amounts["lifetime_years"], amounts.get("pue", Fraction(1))
    if years == 0:
        raise PriceError(f"{where}, owned: lifetime_years must be more than 0.")
    if pue < 1:
        raise PriceError(f"{where}, owned: pue {owned['pue']!r} is below 1: a site draws no less than its machines.")
    parts = [_usd_micro(amounts[capital[0]] / (years * HOURS_PER_YEAR))]
    terms = [f"{_dollars(amounts[capital[0]])} ÷ ({_plain(years)} years × {HOURS_PER_YEAR:,} h) = {_micro(parts[-1])}"]
    if "power_w" in owned:
        parts.append(_usd_micro(amounts["power_w"] / 1000 * pue * amounts["usd_per_kwh"]))
        drawn = f"{_plain(amounts['power_w'])} W × PUE {_plain(pue)} × {_dollars(amounts['usd_per_kwh'])}/kWh"
        terms.append(f"{drawn} = {_micro(parts[-1])}")
    if "fixed_usd_per_hour" in owned:
        parts.append(_usd_micro(amounts["fixed_usd_per_hour"]))
        terms.append(f"fixed {_micro(parts[-1])}")
    per = _per(capital[0])
    whole = f"{_micro(sum(parts))} per {'node' if per else 'GPU'}-hour"
    return sum(parts), per, f"{'; '.join(terms)}; together {whole}" if len(parts) > 1 else f"{terms[0]} per hour"


def _per(name: str) -> str | None:
    """Whether an amount of this name is for a whole node."""
    return "node" if "_per_node" in name else None


def _reject_unknown(entry: Mapping[Any, Any], known: tuple[str, ...], where: str) -> None:
    unknown = [name for name in entry if name not in known]
    if unknown:
        raise PriceError(f"{where} has {reprlib.repr(unknown[0])}. Known: {', '.join(known)}.")


def _amount(entry: Mapping[str, Any], name: str, where: str) -> Fraction:
    """A number as it is written: 2.10 is 2.10, not the nearest binary fraction."""
    value = entry[name]
    shown = f"{where}: {name} {reprlib.repr(value)}"
    try:
        number = Decimal(str(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite() or abs(number.adjusted()) > 30:
        raise PriceError(f"{shown} is not a number, without currency or unit.")
    if number < 0:
        raise PriceError(f"{shown} is negative.")
    if number > _MAX_AMOUNTS[name]:
        raise PriceError(f"{shown} is more than {_MAX_AMOUNTS[name]:,}: it is in another unit.")
    return Fraction(number)


def _text(entry: Mapping[str, Any], name: str, where: str) -> str | None:
    value = entry.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise PriceError(f"{where}: {name} {reprlib.repr(value)} is not a name.")
    return None if value is None else str(value)  # YAML reads `4090` as a number


def _day_ms(entry: Mapping[str, Any], name: str, where: str) -> int | None:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
    else:
        raise PriceError(f"{where}: {name} {reprlib.repr(value)} is not a date.")
    return round(moment.timestamp() * 1000)


def _usd_micro(amount_usd: Fraction) -> int:
    """Dollars as micro-dollars, rounded half up."""
    return int(amount_usd * USD_MICRO_PER_USD + Fraction(1, 2))


def _micro(usd_micro: int) -> str:
    return f"${usd_micro / USD_MICRO_PER_USD:,.6f}"


def _dollars(amount: Fraction) -> str:
    return f"${_plain(amount)}"


def _plain(amount: Fraction) -> str:
    """A number as a person wrote it."""
    return f"{int(amount):,}" if amount.denominator == 1 else f"{float(amount):,.10g}"
