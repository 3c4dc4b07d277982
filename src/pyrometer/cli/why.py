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
@click.option("--kube", is_flag=True, help="Read the cluster of the kubeconfig, read-only; nothing is installed.")
@click.option("--context", metavar="NAME", help="Another context of the kubeconfig than the current one.")
@click.option("--prometheus", metavar="URL", help="Read what this Prometheus remembers; nothing is installed.")
@click.option("--file", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write the answer there.")
def command(asked: Asked, kube: bool, context: str | None, prometheus: str | None, path: Path | None) -> None:
    """What burned, by state, and the findings by dollars: who, since when, how much, how we know, what to do."""
    if kube or prometheus:
        from pyrometer.cli.reading import read_and_answer

        answer = read_and_answer(asked, "why", prometheus=prometheus, kube=kube, context=context)
    else:
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
