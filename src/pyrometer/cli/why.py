"""`pyrometer why`: what burned, and why."""

from __future__ import annotations

import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

import click

from pyrometer.cli.running import Asked, print_json, read_options
from pyrometer.explain.text import plain, render_text


@click.command()
@read_options(default_last="12h", formats=("table", "json", "html"))
@click.option("--file", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write the answer there.")
def command(asked: Asked, path: Path | None) -> None:
    """What burned, by state, and the findings by dollars: who, since when, how much, how we know, what to do."""
    answer = asked.answer("why")
    with ExitStack() as stack:
        if path is not None:
            stack.enter_context(redirect_stdout(stack.enter_context(path.open("w", encoding="utf-8"))))
        if asked.output == "json":
            print_json(answer)
        elif asked.output == "html":
            from pyrometer.explain.html import render_html

            click.echo(render_html(answer))
        else:
            click.echo(render_text(answer, click.style if sys.stdout.isatty() else plain), nl=False)
