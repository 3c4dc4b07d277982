"""Reads settings: defaults, overridden by `settings.yaml` of the data folder, by PYROMETER_SETTINGS, by variables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyrometer.model.settings import SettingError, Settings, with_values

FOLDER_FILE = "settings.yaml"


def read_settings(
    environment: Mapping[str, str], folder: Path | None = None, defaults: Settings | None = None
) -> Settings:
    """The settings that apply to a data folder."""
    settings = defaults or Settings()
    if folder is not None and (folder / FOLDER_FILE).exists():
        settings = _from_file(settings, folder / FOLDER_FILE)
    if environment.get("PYROMETER_SETTINGS"):
        path = Path(environment["PYROMETER_SETTINGS"])
        if not path.exists():
            raise SettingError(f"PYROMETER_SETTINGS names {path}, which does not exist.")
        settings = _from_file(settings, path)
    variables: dict[str, object] = {
        name.removeprefix("PYROMETER_").lower(): value
        for name, value in environment.items()
        if name.startswith("PYROMETER_") and name.removeprefix("PYROMETER_").lower() in Settings._fields
    }
    return with_values(settings, variables, "Environment")


def _from_file(settings: Settings, path: Path) -> Settings:
    from pyrometer.identify.yaml_text import YamlError, parsed

    try:
        values = parsed(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, YamlError) as error:
        raise SettingError(f"Settings file {path} cannot be read: {error}.") from None
    if not isinstance(values, dict):
        raise SettingError(f"Settings file {path} is not a list of `name: value`.")
    return with_values(settings, values, f"Settings file {path}")
