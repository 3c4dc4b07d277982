"""Sources of settings, their precedence, and errors about invalid ones."""

from __future__ import annotations

import pytest

from pyrometer.cli.settings_files import FOLDER_FILE, read_settings
from pyrometer.model.settings import CHOICES, SettingError, Settings


@pytest.fixture
def written(tmp_path):
    """Writes the settings of the folder and a settings file. Returns the environment and the folder."""

    def write(folder_text=None, file_text=None, **variables):
        if folder_text is not None:
            (tmp_path / FOLDER_FILE).write_text(folder_text)
        if file_text is not None:
            (tmp_path / "mine.yaml").write_text(file_text)
            variables["PYROMETER_SETTINGS"] = str(tmp_path / "mine.yaml")
        return variables, tmp_path

    return write


# -- order ------------------------------------------------------------------------------------------------------------


def test_settings_without_a_file_are_the_defaults(written):
    assert read_settings(*written()) == read_settings({}) == Settings()


def test_variables_override_the_file_and_the_file_overrides_the_folder(written):
    folder = "idle_gap_ms: 1\nhang_limit_ms: 1\nfinding_min_ms: 1"
    file = "hang_limit_ms: 2\nfinding_min_ms: 2"
    settings = read_settings(*written(folder, file, PYROMETER_FINDING_MIN_MS="3"))
    assert settings == Settings(idle_gap_ms=1, hang_limit_ms=2, finding_min_ms=3)


def test_every_setting_has_a_variable(written):
    value_of_type = {
        int: ("7", 7),
        float: ("1.25", 1.25),
        str: ("Asia/Tokyo", "Asia/Tokyo"),
        tuple: ("queue, namespace", ("queue", "namespace")),
    }
    values = {name: value_of_type[type(default)] for name, default in Settings._field_defaults.items()}
    values |= {name: (words[-1], words[-1]) for name, words in CHOICES.items()}
    settings = read_settings(*written(**{f"PYROMETER_{name.upper()}": text for name, (text, _) in values.items()}))
    assert settings._asdict() == {name: value for name, (_, value) in values.items()}


def test_list_in_a_settings_file_is_read_as_a_list(written):
    assert read_settings(*written("team_rules: [queue, namespace]")).team_rules == ("queue", "namespace")


@pytest.mark.parametrize("text", ["team_rules: 7", "team_rules: [7]", "team_rules: ['']", "bill_to: anyone"])
def test_unknown_rule_or_choice_is_refused(written, text):
    with pytest.raises(SettingError, match="has value"):
        read_settings(*written(text))


def test_other_environment_variables_are_ignored(written):
    assert read_settings(*written(PYROMETER_DATA="x", PYROMETER_TEST_DATA="y", IDLE_GAP_MS="1")) == Settings()


def test_empty_settings_file_changes_nothing(written):
    assert read_settings(*written("", "# nothing yet\n")) == Settings()


def test_missing_folder_has_default_settings(tmp_path):
    assert read_settings({}, tmp_path / "missing") == Settings()


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("idle_gap: 5", "'idle_gap'"),
        ("idle_gap_ms: soon", "'soon'"),
        ("idle_gap_ms: [1]", "[1]"),
        ("idle_gap_ms:", "None"),
        ("- idle_gap_ms", "name: value"),
        ("just words", "name: value"),
        ("idle_gap_ms: [", "cannot be read"),
        ("\tidle_gap_ms: 5", "cannot be read"),
        ("timezone: 2026-13-45", "cannot be read"),
        ("idle_gap_ms: " + "9" * 90, "whole number from 0 to"),
        ("retention_days: 1000000000", "from 0 to 1,000,000"),
        ("pue: " + "9" * 90, "a number from 0 to"),
        ("pue: 0.9", "at least 1.0"),
        ("scrape_interval_s: 0", "at least 1"),
        ("scrape_interval_s: 61", "at most 60"),
        ("a: &a [x, x]\nb: &b [*a, *a]\ntimezone: [*b, *b]", "there is no setting 'a'"),
    ],
)
@pytest.mark.parametrize("place", ["folder", "file"])
def test_error_about_a_setting_names_its_file(written, text, named, place):
    given, folder = written(text) if place == "folder" else written(None, text)
    with pytest.raises(SettingError) as caught:
        read_settings(given, folder)
    error = str(caught.value)
    assert str(folder / (FOLDER_FILE if place == "folder" else "mine.yaml")) in error
    assert named in error
    assert "\n" not in error


@pytest.mark.parametrize("text", ["idle_gap_ms: -1", "idle_gap_ms: 1.5", "idle_gap_ms: true", "timezone:"])
def test_setting_outside_its_range_is_refused(written, text):
    """A negative duration, half a millisecond, a boolean, no time zone."""
    with pytest.raises(SettingError):
        read_settings(*written(text))


def test_settings_file_that_is_not_utf8_is_refused(written, tmp_path):
    (tmp_path / FOLDER_FILE).write_bytes(b"timezone: \xff\xfe")
    with pytest.raises(SettingError, match="cannot be read"):
        read_settings({}, tmp_path)


def test_error_about_a_variable_names_the_environment(written):
    with pytest.raises(SettingError, match=r"Environment.*'idle_gap_ms'.*'soon'"):
        read_settings(*written(PYROMETER_IDLE_GAP_MS="soon"))


def test_error_names_a_missing_settings_file(written, tmp_path):
    with pytest.raises(SettingError, match="PYROMETER_SETTINGS") as caught:
        read_settings({"PYROMETER_SETTINGS": str(tmp_path / "missing.yaml")}, tmp_path)
    assert "missing.yaml" in str(caught.value)


# -- through the commands ---------------------------------------------------------------------------------------------


def test_pyrometer_data_is_the_default_folder(pyrometer, recorded, monkeypatch):
    monkeypatch.setenv("PYROMETER_DATA", str(recorded))
    assert pyrometer("runs").lines == pyrometer("runs", "--data", recorded).lines
    monkeypatch.setenv("PYROMETER_DATA", "/no/such/folder")
    assert "/no/such/folder" in pyrometer("runs").failed(1)
    assert pyrometer("runs", "--data", recorded).code == 0  # the option wins


def test_timezone_of_the_option_overrides_all_settings(pyrometer, copy_of_recorded, tmp_path, monkeypatch):
    def zone(*arguments):
        answer = pyrometer("cost", "--data", copy_of_recorded, "--all", "-o", "json", *arguments).json
        return answer["window"]["from"][len("2026-11-15T06:15:00") :]

    assert zone() == "Z"
    with (copy_of_recorded / FOLDER_FILE).open("a") as stream:
        stream.write("timezone: Europe/Berlin\n")
    assert zone() == "+01:00"
    (tmp_path / "mine.yaml").write_text("timezone: Asia/Tokyo")
    monkeypatch.setenv("PYROMETER_SETTINGS", str(tmp_path / "mine.yaml"))
    assert zone() == "+09:00"
    monkeypatch.setenv("PYROMETER_TIMEZONE", "America/New_York")
    assert zone() == "-05:00"
    assert zone("--tz", "utc") == "Z"


@pytest.mark.parametrize("name", ["why", "check", "import"])
def test_invalid_setting_is_a_one_line_error_of_a_command(pyrometer, copy_of_recorded, h200, monkeypatch, name):
    arguments = {
        "why": ("--data", copy_of_recorded),
        "check": (copy_of_recorded,),
        "import": ("recording", h200, "--out", copy_of_recorded),
    }[name]
    monkeypatch.setenv("PYROMETER_HANG_LIMIT_MS", "soon")
    text = pyrometer(name, *arguments).failed(1)
    assert "Environment" in text
    assert "'soon'" in text


def test_error_names_an_unknown_timezone_setting(pyrometer, recorded, monkeypatch):
    monkeypatch.setenv("PYROMETER_TIMEZONE", "Mars/Olympus")
    result = pyrometer("why", "--data", recorded)
    assert "'Mars/Olympus'" in result.failed(result.code)
    assert result.code in (1, 2)


def test_finding_limits_decide_which_findings_are_shown(pyrometer, copy_of_recorded, monkeypatch):
    def causes():
        answer = pyrometer("why", "--data", copy_of_recorded, "--all", "-o", "json").json
        return {finding["cause"] for finding in answer["findings"]}

    assert {"hang", "lost_work", "data_stall", "idle_held"} <= causes()
    monkeypatch.setenv("PYROMETER_FINDING_MIN_MS", "30000")
    assert causes() == {"lost_work"}
    monkeypatch.setenv("PYROMETER_FINDING_MIN_MS", "1")
    monkeypatch.setenv("PYROMETER_FINDING_MIN_USD_MICRO", "1000000")
    assert causes() == set()  # the run that diverged has ended: no finding is shown, however low the limit


def test_price_book_setting_applies(pyrometer, copy_of_recorded, tmp_path, monkeypatch):
    def total():
        return pyrometer("cost", "--data", copy_of_recorded, "--all", "-o", "json").json["total"]

    book = tmp_path / "prices.yaml"
    book.write_text("prices:\n- {model: H200, usd_per_gpu_hour: 3.60}")
    monkeypatch.setenv("PYROMETER_PRICE_BOOK", str(book))
    assert total()["usd_micro"] == total()["gpu_ms"]  # one micro-dollar per millisecond
    assert "assumed" not in pyrometer("why", "--data", copy_of_recorded, "--all").out
    book.write_text("prices:\n- {model: H200, usd_per_gpu_hour: 7.20}")  # the file is read again
    assert total()["usd_micro"] == 2 * total()["gpu_ms"]
    monkeypatch.delenv("PYROMETER_PRICE_BOOK")
    assert "assumed" in pyrometer("why", "--data", copy_of_recorded, "--all").out


def test_unreadable_price_book_is_a_one_line_error(pyrometer, recorded, tmp_path, monkeypatch):
    book = tmp_path / "prices.yaml"
    monkeypatch.setenv("PYROMETER_PRICE_BOOK", str(book))
    assert str(book) in pyrometer("why", "--data", recorded).failed(1)
    book.write_text("prices:\n- {model: H200\n- x")
    assert str(book) in pyrometer("why", "--data", recorded).failed(1)
    book.write_text("prices:\n- {usd_per_gpu_hour: -1}")
    assert "entry 1" in pyrometer("why", "--data", recorded).failed(1)
