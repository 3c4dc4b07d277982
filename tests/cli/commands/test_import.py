"""`pyrometer import` where the importers of data sets are missing: the wheel has none."""

from __future__ import annotations

import pytest

from pyrometer.cli.commands import import_

FROM_A_CHECKOUT = ("openb", "philly", "speedrun", "recording")


@pytest.fixture(autouse=True)
def _from_a_wheel(monkeypatch):
    monkeypatch.setattr(import_, "DATASETS", "pyrometer_datasets_of_no_wheel")


@pytest.mark.parametrize("form", FROM_A_CHECKOUT)
def test_error_about_a_missing_importer_names_make_setup(pyrometer, tmp_path, form):
    text = pyrometer("import", form, tmp_path, "--out", tmp_path / "data").failed(1)
    assert f"The {form} importer is only part of a source checkout" in text
    assert "make setup" in text
    assert not (tmp_path / "data").exists()


def test_help_lists_all_formats(pyrometer):
    help_ = " ".join(pyrometer("import", "--help").out.split())
    assert all(f"{name} (" in help_ for name in import_.FORMATS)
