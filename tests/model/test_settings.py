"""Settings: values are converted by type, and errors name the source, the setting and the value."""

from __future__ import annotations

import pytest

from pyrometer.model.settings import CHOICES, MAX_VALUES, MIN_VALUES, SettingError, Settings, with_values


def test_with_values_replaces_only_given_settings():
    changed = with_values(Settings(), {"pue": "1.25", "public_url": "https://p.example.com"}, "pyrometer.yaml")
    assert changed == Settings()._replace(pue=1.25, public_url="https://p.example.com")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"colr": 1}, "pyrometer.yaml: there is no setting 'colr'."),
        ({"pue": "warm"}, "setting 'pue' has value 'warm'. Not a number"),
        ({"pue": True}, "Not a number"),
        ({"pue": 0.5}, "It must be at least 1.0"),
        ({"scrape_interval_s": 61}, "It must be at most 60"),
        ({"scrape_interval_s": -1}, "Not a whole number"),
        ({"scrape_interval_s": "1.5"}, "Not a whole number"),
        ({"mlflow_stamp": "maybe"}, "Known: yes, no."),
        ({"public_url": 80}, "Not a text: put it in quotes"),
    ],
)
def test_with_values_rejects_unknown_settings_and_invalid_values(values, message):
    with pytest.raises(SettingError) as raised:
        with_values(Settings(), values, "pyrometer.yaml")
    assert message in str(raised.value)
    assert str(raised.value).startswith("pyrometer.yaml: ")


def test_limits_and_choices_belong_to_settings_and_allow_the_defaults():
    defaults = Settings()._asdict()
    assert {*CHOICES, *MIN_VALUES, *MAX_VALUES} <= set(defaults)
    assert all(defaults[name] in choices for name, choices in CHOICES.items())
    assert all(defaults[name] >= limit for name, limit in MIN_VALUES.items())
    assert all(defaults[name] <= limit for name, limit in MAX_VALUES.items())
