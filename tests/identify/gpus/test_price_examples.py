"""The books that docs/prices.md shows are books, and its arithmetic is ours."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import yaml

from pyrometer.account.query.energy import EnergyUse, energy_total, tariff_of
from pyrometer.identify.gpus.price_book import Entry, read_entries
from pyrometer.model.settings import Settings, with_values

PAGE = (Path(__file__).parents[3] / "docs" / "prices.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def entries_of(example: str, folder: Path) -> list[Entry]:
    path = folder / "prices.yaml"
    path.write_text(example)
    return read_entries(path)


def test_every_example_book_of_the_page_is_valid(tmp_path):
    books = [entries_of(example, tmp_path) for example in EXAMPLES if example.startswith("prices:")]
    assert [len(book) for book in books] == [5, 2, 1]
    general, spot, own = books
    assert general[3].price.usd_micro_per_hour // 8 == 6_880_000
    assert [entry.price.usd_micro_per_hour / 8 for entry in spot] == [2_712_500, 3_015_000]
    assert [f"{entry.price.usd_micro_per_hour / 1e6:.6f}" in PAGE for entry in own] == [True]
    for step in re.findall(r"= \$([\d.]+)", own[0].arithmetic):
        assert step in PAGE
    assert f"${own[0].price.usd_micro_per_hour / 8e6:.6f} per GPU-hour" in PAGE


def test_carbon_example_of_the_page_matches_the_answer():
    (example,) = (one for one in EXAMPLES if one.startswith("# settings.yaml"))
    settings = with_values(Settings(), yaml.safe_load(example), "docs/prices.md")
    total = energy_total(EnergyUse(412 * 3_600_000_000, 1), tariff_of(settings))
    assert (total["kwh"], total["energy_usd"], total["co2e_g"]) == (412.0, 64.27, 203_528)
    assert tariff_of(settings).pue == Fraction("1.3")
    assert "$64.27" in PAGE
    assert "203,528 g" in PAGE
