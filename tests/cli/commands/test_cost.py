"""`pyrometer cost`: its table, and energy: a recorded counter, what it cost and emitted, and missing telemetry."""

from __future__ import annotations

import csv

import pytest

UNITS = ("energy_wh", "kwh", "energy_usd_micro", "energy_usd", "co2e_g")


@pytest.fixture(scope="session")
def counter_wh(h200) -> float:
    """The increase of the counter in the recording, in watt-hours."""
    with (h200 / "a-gpu.csv").open() as stream:
        counted = [int(row["energy_mj"]) for row in csv.DictReader(stream)]
    return (counted[-1] - counted[0]) / 3_600_000


def test_energy_equals_the_counter_of_the_recording(cached_pyrometer, recorded, counter_wh):
    for by in ("team", "experiment", "state", "cause", "hour,gpu_model"):
        answer = cached_pyrometer("cost", "--data", recorded, "--all", "--by", by, "-o", "json").json
        assert sum(row["energy_wh"] or 0 for row in answer["rows"]) == answer["total"]["energy_wh"]
        assert answer["total"]["energy_wh"] == pytest.approx(counter_wh, abs=1)
        assert answer["total"]["energy_estimated_gpu_ms"] == 0
    total = cached_pyrometer("why", "--data", recorded, "--all", "-o", "json").json["total"]
    assert total == answer["total"]
    assert total["energy_usd_micro"] is None
    assert total["co2e_g"] is None


def test_energy_cost_and_emissions_follow_the_settings(pyrometer, recorded, counter_wh, monkeypatch):
    monkeypatch.setenv("PYROMETER_ENERGY_USD_PER_KWH", "0.12")
    monkeypatch.setenv("PYROMETER_CARBON_G_PER_KWH", "380")
    monkeypatch.setenv("PYROMETER_PUE", "1.5")
    answer = pyrometer("cost", "--data", recorded, "--all", "--by", "state", "-o", "json").json
    total = answer["total"]
    assert total["energy_usd_micro"] == pytest.approx(counter_wh / 1000 * 1.5 * 120_000, rel=0.01)
    assert total["co2e_g"] == pytest.approx(counter_wh / 1000 * 1.5 * 380, abs=1)
    for unit in ("energy_wh", "energy_usd_micro", "co2e_g"):
        assert sum(row[unit] or 0 for row in answer["rows"]) == total[unit]
    headings = pyrometer("cost", "--data", recorded, "--all").out.splitlines()[0].split("  ")
    assert [name.strip() for name in headings if name][-3:] == ["kWh", "power cost", "kg CO2e"]
    energy = f"{total['kwh']:.3g} kWh, {total['co2e_g'] / 1000:.3g} kg CO2e"
    assert pyrometer("why", "--data", recorded, "--all").lines[3] == energy


def test_energy_tariff_does_not_change_the_bill(pyrometer, recorded, monkeypatch):
    def bill():
        return pyrometer("cost", "--data", recorded, "--all", "-o", "json").json["total"]["usd_micro"]

    before = bill()
    monkeypatch.setenv("PYROMETER_ENERGY_USD_PER_KWH", "100")
    assert bill() == before


def test_energy_is_absent_without_telemetry(pyrometer, autumn):
    printed = pyrometer("cost", "--data", autumn, "--all", "-o", "json").json
    for row in (*printed["rows"], printed["total"]):
        assert {row[unit] for unit in UNITS} == {None}
    assert "kWh" not in pyrometer("cost", "--data", autumn, "--all").out
    assert "kWh" not in pyrometer("why", "--data", autumn, "--all").out


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("PUE", "0.9", "It must be at least 1.0"),
        ("PUE", "much", "Not a number from 0 to 1,000,000"),
        ("CARBON_G_PER_KWH", "-1", "Not a number from 0 to 1,000,000"),
        ("ENERGY_USD_PER_KWH", "nan", "Not a number from 0 to 1,000,000"),
        ("ENERGY_USD_PER_KWH", "$0.12", "Not a number from 0 to 1,000,000"),
    ],
)
def test_invalid_energy_setting_is_an_error(pyrometer, recorded, monkeypatch, name, value, named):
    monkeypatch.setenv(f"PYROMETER_{name}", value)
    text = pyrometer("cost", "--data", recorded).failed(1)
    assert named in text
    assert repr(value) in text


def test_cost_prints_its_rows_and_their_total(cached_pyrometer, autumn):
    result = cached_pyrometer("cost", "--data", autumn, "--all", "--by", "team")
    heading, *rows, _, total = result.out.splitlines()
    assert heading.split() == ["team", "GPU-hours", "cost"]
    assert [row.split()[0] for row in rows] == ["platform", "nlp", "vision"]
    assert total.split() == ["total", "90.0", "$413"]
    assert rows[2].split()[2] == "–"  # no price is known
    assert result.err == "30.0 GPU-hours have no price. Set one per GPU-hour with --price.\n"


def test_cost_by_two_groupings_has_two_columns(cached_pyrometer, recorded):
    heading, *rows, _, total = cached_pyrometer("cost", "--data", recorded, "--all", "--by", "team,state").lines
    assert heading.split() == ["team", "state", "GPU-hours", "cost", "kWh"]
    assert {row.split()[0] for row in rows} == {"recording", "platform"}
    assert total.split()[-2] == "$0.59"


@pytest.mark.parametrize(
    ("by", "named"),
    [
        ("teem", "Did you mean 'team'?"),
        ("zzz", "Known: team"),
        ("team,team", "twice"),
        ("", "no grouping"),
        (",", "no"),
    ],
)
def test_unknown_grouping_is_a_usage_error(cached_pyrometer, recorded, by, named):
    assert named in cached_pyrometer("cost", "--data", recorded, "--by", by).failed(2)
