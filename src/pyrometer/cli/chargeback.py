"""What commands about money share: who pays for what nobody held, and what the books say of an answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from pyrometer.account.sharing import HOW
from pyrometer.explain.words import dollars

share_option = click.option(
    "--share-platform",
    type=click.Choice(HOW),
    help="Who pays for what nobody held: the platform, all teams alike, or each by what it held. Default: none.",
)


def to_the_second(time: str) -> str:
    """A time of an answer, in UTC, for people."""
    return f"{datetime.fromisoformat(time):%Y-%m-%dT%H:%M:%SZ}"


def shared_by(share_platform: str | None) -> dict[str, str]:
    """The parameter of a question, where the option was said."""
    return {} if share_platform is None else {"share_platform": share_platform}


def print_books(books: dict[str, Any] | None) -> None:
    """What an answer is made from, once months are closed; on stderr."""
    if books is None:
        return
    if books["basis"] == "closed":
        click.echo(
            f"{books['month']} was closed at {to_the_second(books['closed'])}: these figures do not change.", err=True
        )
    elif books["basis"] == "open" and books["adjustments"]["usd_micro"] is not None:
        ledger, adjusted = (dollars(books[part]["usd_micro"] or 0) for part in ("ledger", "adjustments"))
        click.echo(f"{books['month']}: {ledger} by the ledger, {adjusted} adjust months that are closed.", err=True)
    elif books["basis"] == "mixed":
        click.echo(
            "Some clusters have closed this month and others not: --cluster NAME says what is charged in one.", err=True
        )
    elif books["adjustments_left_out"]:
        click.echo(
            "Adjustments of closed months are not in it: they have no hour, cause, outcome, pipeline or sweep.",
            err=True,
        )
    elif books["closed_time"]:
        click.echo(
            "Months that are closed are in this time. These are the ledger's figures as they are now; --month of a "
            "closed month, by what charges are kept by and in its time zone, says what was charged.",
            err=True,
        )
