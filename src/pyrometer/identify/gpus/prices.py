"""The prices that apply to the GPUs of the clusters: those in the price book, then the bundled public list prices,
marked as assumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pyrometer.identify.gpus.gpu_models import gpu_model
from pyrometer.model.records import Price

LISTED = -1


class ApplicablePrice(NamedTuple):
    """A price for a model, as a node names it. `place`: its position among the written prices, or LISTED."""

    price: Price
    place: int


def applicable_prices(gpu_models_seen: Iterable[str | None], written: Sequence[Price]) -> Iterator[ApplicablePrice]:
    """The prices that apply to these models, with their positions.

    A price written for "H100-SXM" is for "NVIDIA-H100-80GB-HBM3" too: they are the same model.
    """
    for place, price in enumerate(written):
        if price.gpu_model is None:
            yield ApplicablePrice(price, place)
    for name in sorted({name for name in gpu_models_seen if name is not None}):
        known = gpu_model(name)
        names = {name.casefold(), (known.model if known else name).casefold()}
        for place, price in enumerate(written):
            if price.gpu_model is not None and price.gpu_model.casefold() in names:
                yield ApplicablePrice(price._replace(gpu_model=name), place)
        if known and known.list_usd_micro_per_hour is not None:
            listed = Price(
                time_ms=0,
                usd_micro_per_hour=known.list_usd_micro_per_hour,
                from_ms=0,
                gpu_model=name,
                source="list",
                assumed=True,
            )
            yield ApplicablePrice(listed, LISTED)
