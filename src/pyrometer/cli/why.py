"""`pyrometer why`: what burned, and why."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import click

from pyrometer.cli.running import ReadRequest, print_json, read_options
from pyrometer.cli.settings import read_settings
from pyrometer.explain.text import plain, render_text


@click.command()
@read_options(default_last="12h", formats=("table", "json", "html"))
@click.option("--kube", is_flag=True, help="Read the cluster of the kubeconfig, read-only; nothing is installed.")
@click.option("--context", metavar="NAME", help="Another context of the kubeconfig than the current one.")
@click.option("--prometheus", metavar="URL", help="Read what this Prometheus remembers; nothing is installed.")
@click.option("--file", "path", metavar="FILE", type=click.Path(path_type=Path), help="Write the answer there.")
@click.option("--send", is_flag=True, help="Send it in short to the webhook of the settings, too.")
def command(
    asked: ReadRequest, kube: bool, context: str | None, prometheus: str | None, path: Path | None, send: bool
) -> None:
    """What burned, by state, and the findings by dollars: who, since when, how much, how we know, what to do."""
    tell = _webhook(asked) if send else None
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
    if tell is not None:
        tell(answer)


def _webhook(asked: ReadRequest) -> Callable[[dict[str, Any]], None]:
    """What sends an answer; that it cannot be sent is said before it is asked for."""
    from pyrometer.act.messages import of_night
    from pyrometer.act.teller import context_of
    from pyrometer.act.webhook import Webhook

    folder = asked.data or os.environ.get("PYROMETER_DATA")
    settings = read_settings(os.environ, Path(folder) if folder and asked.server is None else None)
    if not settings.webhook_url_file:
        raise click.UsageError("--send needs a webhook: the setting webhook_url_file names a file with its address.")
    webhook, place = Webhook(settings), context_of(settings)

    def tell(answer: dict[str, Any]) -> None:
        outcome = asyncio.run(webhook.send_patiently(of_night(answer, place, "What burned")))
        if not outcome.sent:
            raise click.ClickException(f"The webhook of {settings.webhook_url_file} was not told: {outcome.error}.")

    return tell
