"""`pyrometer why`: where the GPU time went, and what was wasted and why."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import click

from pyrometer.cli.command_support import ReadRequest, print_json, read_options
from pyrometer.cli.settings_files import read_settings
from pyrometer.render.why_text import plain, render_text


@click.command()
@read_options(default_last="12h", formats=("table", "json", "html"))
@click.option("--kube", is_flag=True, help="Read the cluster of the kubeconfig. Read-only; installs nothing.")
@click.option("--context", metavar="NAME", help="A context of the kubeconfig. Default: its current context.")
@click.option("--prometheus", metavar="URL", help="Read the history of this Prometheus. Read-only; installs nothing.")
@click.option(
    "--file",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the answer to this file. Default: stdout.",
)
@click.option("--send", is_flag=True, help="Also send a summary to the webhook of the settings.")
def command(
    request: ReadRequest, kube: bool, context: str | None, prometheus: str | None, path: Path | None, send: bool
) -> None:
    """Shows GPU time and dollars by state, and the findings that cost most: who, when, how much, the evidence,
    and what to do."""
    send_answer = _webhook(request) if send else None
    if kube or prometheus:
        from pyrometer.cli.live_sources import read_and_answer

        answer = read_and_answer(request, "why", prometheus=prometheus, kube=kube, context=context)
    else:
        answer = request.answer("why")
    with ExitStack() as stack:
        if path is not None:
            stack.enter_context(redirect_stdout(stack.enter_context(path.open("w", encoding="utf-8"))))
        if request.output == "json":
            print_json(answer)
        elif request.output == "html":
            from pyrometer.render.why_html import render_html

            click.echo(render_html(answer))
        else:
            click.echo(render_text(answer, click.style if sys.stdout.isatty() else plain), nl=False)
    if send_answer is not None:
        send_answer(answer)


def _webhook(request: ReadRequest) -> Callable[[dict[str, Any]], None]:
    """A function that sends an answer. A missing webhook is an error before the question is computed."""
    from pyrometer.act.notification_texts import of_night
    from pyrometer.act.notifier import context_of
    from pyrometer.act.webhook import Webhook

    folder = request.data or os.environ.get("PYROMETER_DATA")
    settings = read_settings(os.environ, Path(folder) if folder and request.server is None else None)
    if not settings.webhook_url_file:
        raise click.UsageError("--send needs a webhook: set webhook_url_file to a file with its URL.")
    webhook, place = Webhook(settings), context_of(settings)

    def send_answer(answer: dict[str, Any]) -> None:
        outcome = asyncio.run(webhook.send_patiently(of_night(answer, place, "What burned")))
        if not outcome.sent:
            raise click.ClickException(
                f"The webhook of {settings.webhook_url_file} did not receive the summary: {outcome.error}."
            )

    return send_answer
