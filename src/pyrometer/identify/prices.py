"""Which price applies: the book a user wrote, then the bundled public list prices, marked as assumed.

A book is YAML, one entry a price:

    prices:
      - usd_per_gpu_hour: 2.10
        model: H100-SXM          # any of model, pool, cluster, purchase; none of them: everything
        pool: reserved-a
        from: 2026-01-01         # optional, inclusive, UTC; as is `until`, exclusive
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import yaml

from pyrometer.identify.gpu_models import gpu_model
from pyrometer.model.records import Price

_FIELDS = {"usd_per_gpu_hour", "model", "pool", "cluster", "purchase", "from", "until"}


class PriceError(ValueError):
    """A price book that cannot be read as one; the text names the entry."""


def read_price_book(path: Path) -> list[Price]:
    """The prices of a YAML book."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PriceError(f"Price book {path} cannot be read: {' '.join(str(error).split())}.") from None
    entries = content.get("prices") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise PriceError(f"Price book {path} has no list `prices`.")
    return [_price(entry, f"Price book {path}, entry {number}") for number, entry in enumerate(entries, 1)]


def prices_for(gpu_models_seen: Iterable[str | None], written: Iterable[Price]) -> list[Price]:
    """The prices that matter for these models, in the very words in which nodes name them.

    A price written for "H100-SXM" is for "NVIDIA-H100-80GB-HBM3" too: they are the same model.
    """
    seen = sorted({name for name in gpu_models_seen if name is not None})
    written = list(written)
    prices = [price for price in written if price.gpu_model is None]
    for name in seen:
        known = gpu_model(name)
        short = known.model if known else None
        prices += [
            price._replace(gpu_model=name)
            for price in written
            if price.gpu_model is not None
            and price.gpu_model.casefold() in (name.casefold(), (short or name).casefold())
        ]
        if known and known.list_usd_micro_per_hour is not None:
            prices.append(Price(0, known.list_usd_micro_per_hour, 0, gpu_model=name, source="list", assumed=True))
    return prices


def _price(entry: Any, where: str) -> Price:
    if not isinstance(entry, dict) or "usd_per_gpu_hour" not in entry:
        raise PriceError(f"{where} has no `usd_per_gpu_hour`.")
    unknown = sorted(set(entry) - _FIELDS)
    if unknown:
        raise PriceError(f"{where} has {unknown[0]!r}. Known: {', '.join(sorted(_FIELDS))}.")
    try:
        usd_micro = int(Decimal(str(entry["usd_per_gpu_hour"])) * 1_000_000)
    except (InvalidOperation, ValueError, OverflowError):  # not a number, ".nan", ".inf"
        raise PriceError(f"{where}: usd_per_gpu_hour {entry['usd_per_gpu_hour']!r} is not a number.") from None
    if usd_micro < 0:
        raise PriceError(f"{where}: usd_per_gpu_hour {entry['usd_per_gpu_hour']!r} is negative.")
    from_ms = _day_ms(entry.get("from"), where) or 0
    return Price(
        from_ms, usd_micro, from_ms, _day_ms(entry.get("until"), where),
        _text(entry.get("model")), _text(entry.get("pool")), _text(entry.get("cluster")), _text(entry.get("purchase")),
    )  # fmt: skip


def _text(value: Any) -> str | None:
    return None if value is None else str(value)  # YAML reads `4090` as a number


def _day_ms(value: Any, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
    else:
        raise PriceError(f"{where}: {value!r} is not a date.")
    return round(moment.timestamp() * 1000)
