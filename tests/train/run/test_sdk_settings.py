"""Settings of the SDK, from variables and `pyrometer.init`."""

from __future__ import annotations

import pytest

from pyrometer.train.run.sdk_settings import WINDOW_S, load_settings


@pytest.fixture(autouse=True)
def _defaults(monkeypatch):
    for variable in ("PYROMETER_WINDOW_S", "PYROMETER_HANG_LIMIT_S"):
        monkeypatch.delenv(variable, raising=False)


def test_load_settings_without_a_target_is_none():
    assert load_settings({}, {"run": "sft"}) is None


def test_load_settings_reads_the_spool_and_defaults(tmp_path):
    settings = load_settings({"PYROMETER_SPOOL": str(tmp_path)}, {})
    assert settings is not None
    assert (settings.spool, settings.endpoint, settings.identity) == (tmp_path, None, {})
    assert (settings.first_step, settings.window_s, settings.flops_per_sample) == (None, WINDOW_S, 0.0)


def test_arguments_of_init_override_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("PYROMETER_WINDOW_S", "2.5")
    settings = load_settings(
        {"PYROMETER_SPOOL": str(tmp_path), "PYROMETER_ENDPOINT": "http://a:1"},
        {"endpoint": "http://b:2", "run": "sft", "experiment": None, "step": 40, "flops_per_sample": 1e9},
    )
    assert settings is not None
    assert (settings.endpoint, settings.identity, settings.first_step) == ("http://b:2", {"run": "sft"}, 40)
    assert (settings.window_s, settings.flops_per_sample) == (2.5, 1e9)


def test_window_of_zero_seconds_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("PYROMETER_WINDOW_S", "0")
    settings = load_settings({"PYROMETER_SPOOL": str(tmp_path)}, {})
    assert settings is not None
    assert settings.window_s == WINDOW_S
