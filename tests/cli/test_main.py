"""The main command: help, version, and errors as one line on stderr with an exit code."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from pyrometer import __version__
from pyrometer.cli import COMMANDS

READ_COMMANDS = {"why": (), "cost": (), "runs": (), "show": ("recording-a",)}


# -- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command(pyrometer, arguments):
    result = pyrometer(*arguments)
    assert (result.code, result.err) == (0, "")
    for name, listed in COMMANDS.items():
        assert any(line.split()[:1] == [name] and line.endswith(listed.help) for line in result.out.splitlines())


def test_help_fits_a_terminal(pyrometer):
    assert max(map(len, pyrometer("--help").lines)) <= 100


@pytest.mark.parametrize("argument", ["--version", "-V", "version"])
def test_version_is_printed(pyrometer, argument):
    assert pyrometer(argument).lines == [f"pyrometer {__version__}"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(pyrometer, name):
    result = pyrometer(name, "--help")
    assert result.lines[0].startswith(f"Usage: pyrometer {name}")
    assert len(result.out) > 150
    assert max(map(len, result.lines)) <= 80


def test_python_m_pyrometer_runs_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "pyrometer", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"pyrometer {__version__}\n"


# -- usage errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"), [("wyh", "why"), ("costs", "cost"), ("shwo", "show"), ("rnus", "runs"), ("imports", "import")]
)
def test_unknown_command_gets_a_suggestion(pyrometer, typed, meant):
    text = pyrometer(typed).failed(2)
    assert repr(typed) in text
    assert f"Did you mean `pyrometer {meant}`?" in text


def test_unknown_command_without_a_match_names_help(pyrometer):
    assert "`pyrometer --help`" in pyrometer("zzzzzz").failed(2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("why", "--nonsense"), "--nonsense"),
        (("why", "--dta", "x"), "--data"),
        (("why", "extra"), "extra"),
        (("why", "--last"), "--last"),
        (("why", "-o", "xml"), "'xml'"),
        (("cost", "-o", "html"), "'html'"),
        (("show",), "RUN"),
        (("check",), "DIR"),
        (("import",), "FORMAT"),
        (("import", "recording"), "PATH"),
        (("import", "nonsense", ".", "--out", "x"), "'nonsense'"),
        (("import", "recording", "."), "--out"),
        (("import", "recording", "/no/such/folder", "--out", "x"), "/no/such/folder"),
        (("import", "openb", ".", "--out", "x", "--without-steps"), "--without-steps"),
    ],
)
def test_usage_error_is_one_line_that_names_the_argument(pyrometer, arguments, named):
    assert named in pyrometer(*arguments).failed(2)


@pytest.mark.parametrize("name", READ_COMMANDS)
def test_error_without_a_data_folder_names_the_option_and_the_variable(pyrometer, name):
    text = pyrometer(name, *READ_COMMANDS[name]).failed(2)
    assert "--data" in text
    assert "PYROMETER_DATA" in text


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*READ_COMMANDS, "check"])
def test_error_names_a_missing_data_folder(pyrometer, tmp_path, name):
    folder = tmp_path / "missing"
    at = (folder,) if name == "check" else ("--data", folder)
    text = pyrometer(name, *READ_COMMANDS.get(name, ()), *at).failed(1)
    assert str(folder) in text
    assert "--data" in text
    assert not folder.exists()  # a query does not create it


def test_file_as_data_folder_is_an_error(pyrometer, tmp_path, h200):
    path = tmp_path / "file"
    path.write_text("words")
    assert str(path) in pyrometer("why", "--data", path).failed(1)
    assert str(path) in pyrometer("import", "recording", h200, "--out", path).failed(1)


def test_error_names_a_file_that_is_not_a_database(pyrometer, tmp_path):
    (tmp_path / "pyrometer.duckdb").write_text("this is not a database, it only has its name" * 100)
    assert str(tmp_path) in pyrometer("why", "--data", tmp_path).failed(1)


@pytest.mark.parametrize("name", READ_COMMANDS)
def test_empty_folder_has_nothing_to_account_for(pyrometer, nothing, name):
    text = pyrometer(name, *READ_COMMANDS[name], "--data", nothing).failed(1)
    assert str(nothing) in text
    assert "nothing to account for" in text


def test_check_accepts_an_empty_folder(pyrometer, nothing):
    result = pyrometer("check", nothing)
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("typed", "hint"), [("recording-b", "Did you mean 'recording-a'?"), ("zzz", "`pyrometer runs`")]
)
def test_unknown_run_gets_a_suggestion(pyrometer, recorded, typed, hint):
    text = pyrometer("show", typed, "--data", recorded).failed(1)
    assert repr(typed) in text
    assert hint in text


@pytest.mark.parametrize("name", ["why", "check", "import"])
def test_error_names_the_process_that_uses_the_folder(pyrometer, copy_of_recorded, h200, monkeypatch, name):
    for module in ("command_support", "commands.import_"):
        monkeypatch.setattr(f"pyrometer.cli.{module}.WAIT_FOR_FOLDER_S", 0.2)
    arguments = {
        "why": ("--data", copy_of_recorded),
        "check": (copy_of_recorded,),
        "import": ("recording", h200, "--out", copy_of_recorded),
    }[name]
    hold = "import sys; from pyrometer.store import Store; s = Store(sys.argv[1]); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(copy_of_recorded)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        text = pyrometer(name, *arguments).failed(1)
        assert str(copy_of_recorded) in text
        assert str(holder.pid) in text
        holder.communicate(b"\n")
    assert pyrometer(name, *arguments).code == 0  # it is no longer in use


@pytest.mark.parametrize(("kind", "name"), [("gpu_sample", "why"), ("metric", "runs"), ("pod", "cost")])
@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_error_about_a_broken_part_names_check(pyrometer, copy_of_recorded, kind, name, harm):
    (part,) = (copy_of_recorded / "parts" / kind).rglob("*.parquet")
    if harm == "gone":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[:100])
    text = pyrometer(name, "--data", copy_of_recorded).failed(1)
    assert part.name in text
    assert "pyrometer check" in text


def test_folder_of_a_newer_schema_is_refused(pyrometer, copy_of_recorded):
    import duckdb

    with duckdb.connect(str(copy_of_recorded / "pyrometer.duckdb")) as connection:
        connection.execute("UPDATE meta SET value = '999' WHERE name = 'schema_version'")
    assert "newer Pyrometer" in pyrometer("why", "--data", copy_of_recorded).failed(1)


def test_closed_pipe_is_not_an_error(recorded):
    if shutil.which("head") is None:
        pytest.skip("needs head")
    command = f"'{sys.executable}' -m pyrometer show recording-a --data '{recorded}' -o json | head -c 10"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
