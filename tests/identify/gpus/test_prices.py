"""Which prices apply to which GPU models."""

from __future__ import annotations

from pyrometer.identify.gpus.prices import applicable_prices
from pyrometer.model.records import Price

H100 = "NVIDIA-H100-80GB-HBM3"
UNKNOWN = "Contoso X1"
LIST_H100 = 6_880_000


def prices_for(models, written):
    """The prices that apply to these models."""
    return [applying.price for applying in applicable_prices(models, written)]


def test_price_for_the_short_name_applies_to_the_product_name():
    written = Price(0, 2_000_000, 0, gpu_model="h100-sxm")
    assert written._replace(gpu_model=H100) in prices_for([H100], [written])
    assert written._replace(gpu_model=f"{H100}-SHARED") in prices_for([f"{H100}-SHARED"], [written])


def test_price_for_the_product_name_applies():
    written = Price(0, 2_000_000, 0, gpu_model=H100)
    assert written in prices_for([H100], [written])


def test_price_for_another_model_does_not_apply():
    written = Price(0, 2_000_000, 0, gpu_model="H100-PCIE")
    assert [price.source for price in prices_for([H100], [written])] == ["list"]


def test_price_for_an_unknown_model_applies_by_its_name():
    written = Price(0, 2_000_000, 0, gpu_model="contoso x1")
    assert prices_for([UNKNOWN], [written]) == [written._replace(gpu_model=UNKNOWN)]


def test_price_for_any_model_is_listed_once():
    written = Price(0, 2_000_000, 0)
    applying = prices_for([H100, UNKNOWN, None], [written])
    assert applying.count(written) == 1
    assert [price for price in applying if price.source != "list"] == [written]


def test_list_prices_are_marked_as_assumed():
    assert prices_for([H100], []) == [Price(0, LIST_H100, 0, gpu_model=H100, source="list", assumed=True)]


def test_unknown_model_has_no_list_price():
    assert prices_for([UNKNOWN, None, "NVIDIA H20"], []) == []  # the table knows the H20, but no public price
