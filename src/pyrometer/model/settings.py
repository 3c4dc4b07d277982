"""The settings: one declared table. Values come from a YAML file or `PYROMETER_*` variables, and from nowhere else."""

from __future__ import annotations

from typing import NamedTuple


class Settings(NamedTuple):
    """Every setting with its default. The field's name is the YAML key; PYROMETER_<NAME> is the variable."""

    idle_gap_ms: int = 900_000
    startup_limit_ms: int = 1_800_000
    sample_reach_ms: int = 60_000
    sample_jitter_ms: int = 15_000
    hang_limit_ms: int = 60_000
    finding_min_ms: int = 60_000
    finding_min_usd_micro: int = 1_000_000
    retention_days: int = 0
    price_book: str = ""
    timezone: str = "UTC"


HELP: dict[str, str] = {
    "idle_gap_ms": "GPU telemetry alone: no activity for longer than this is `idle_held`, shorter is `starved`",
    "startup_limit_ms": (
        "GPU telemetry alone: no activity since container start counts as `startup` for at most this long"
    ),
    "sample_reach_ms": "a GPU sample speaks for this long after it was taken; beyond is `unobserved`",
    "sample_jitter_ms": "a next sample that is late by up to this much leaves no gap",
    "hang_limit_ms": "no step for longer than this, and than ten of the run's slow steps, is a `hang`",
    "finding_min_ms": "findings that claim fewer GPU-milliseconds are not shown",
    "finding_min_usd_micro": "findings that cost less (micro-dollars) are not shown; unpriced ones always are",
    "retention_days": "measurements and ledger older than this many days are dropped; 0 keeps everything",
    "price_book": "path of a YAML price book",
    "timezone": "time zone of days, hours and months, unless --tz says otherwise",
}


class SettingError(ValueError):
    """A setting that does not exist or whose value does not fit."""


def with_values(settings: Settings, values: dict[str, object], origin: str) -> Settings:
    """The settings with some values replaced; `origin` says in errors where they came from."""
    changes: dict[str, object] = {}
    for name, value in values.items():
        if name not in Settings._fields:
            raise SettingError(f"{origin}: there is no setting {name!r}. Known: {', '.join(Settings._fields)}.")
        kind = type(Settings._field_defaults[name])
        fits = isinstance(value, str) if kind is str else _is_count(value)
        if not fits:
            what = "a text" if kind is str else "a whole number from 0 on"
            raise SettingError(f"{origin}: setting {name!r} has value {value!r}. Not {what}.")
        changes[name] = kind(value)
    return settings._replace(**changes)  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    """Whether a value, as YAML or a variable has it, is a whole number from 0 on."""
    if isinstance(value, str):
        return value.strip().isdecimal()
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
