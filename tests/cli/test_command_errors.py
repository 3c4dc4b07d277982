"""Exit codes of commands, and errors as one line on stderr."""

from __future__ import annotations

import click
import pytest

from pyrometer.cli.command_errors import fail, finish


def command_that(action):
    return click.Command("test", callback=action)


def raising(error):
    def action():
        raise error

    return command_that(action)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (click.UsageError("Pass --data."), 2, "Error: Pass --data.\n"),
        (click.ClickException("No."), 1, "Error: No.\n"),
        (click.Abort(), 130, "Error: Interrupted.\n"),
        (KeyboardInterrupt(), 130, "\nError: Interrupted.\n"),  # click ends the line on which ^C was echoed
        (FileNotFoundError(2, "No such file", "/x"), 1, "Error: /x cannot be read or written: No such file.\n"),
        (OSError(28, "No space left"), 1, "Error: A file cannot be read or written: No space left.\n"),
    ],
)
def test_finish_turns_errors_into_one_line_and_an_exit_code(capsys, error, code, text):
    assert finish(raising(error), "test", []) == code
    assert tuple(capsys.readouterr()) == ("", text)


def test_finish_returns_the_exit_code_of_the_command():
    assert finish(command_that(lambda: 3), "test", []) == 3
    assert finish(command_that(lambda: None), "test", []) == 0
    assert finish(command_that(lambda: "text"), "test", []) == 0


def test_finish_passes_other_errors_on():
    with pytest.raises(ZeroDivisionError):
        finish(raising(ZeroDivisionError()), "test", [])


def test_finish_names_the_command_in_its_help(capsys):
    assert finish(command_that(lambda: None), "cost", ["--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: pyrometer cost [OPTIONS]")


def test_fail_joins_lines(capsys):
    assert fail("One\n  two.\n", 5) == 5
    assert capsys.readouterr().err == "Error: One two.\n"
