"""Exit codes, and errors as one sentence. The agent uses it, so it imports nothing heavy."""

from __future__ import annotations

import os
import sys

import click


def finish(command: click.Command, name: str, arguments: list[str]) -> int:
    """Runs a click command and returns its exit code. Errors that only heavier commands raise pass through."""
    try:
        result = command.main(arguments, prog_name=f"pyrometer {name}", standalone_mode=False)
    except click.UsageError as error:
        return fail(error.format_message(), 2)
    except click.ClickException as error:
        return fail(error.format_message(), 1)
    except (click.Abort, KeyboardInterrupt):
        return fail("Interrupted.", 130)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return fail(f"{error.filename or 'A file'} cannot be read or written: {error.strerror}.", 1)
    return result if isinstance(result, int) else 0


def fail(text: str, code: int) -> int:
    """Prints an error on one line of stderr, and returns the exit code."""
    click.echo(f"Error: {' '.join(line.strip() for line in text.splitlines())}", err=True)
    return code
