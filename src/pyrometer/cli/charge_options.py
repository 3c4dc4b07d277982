"""What commands about charges share: the option --share-platform, and notes about closed months."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from pyrometer.account.query.sharing import HOW
from pyrometer.model.human import dollars

share_option = click.option(
    "--share-platform",
    type=click.Choice(HOW),
    help="Who pays for GPU time that no pod held: the platform (none), all teams equally (even), or all teams in "
    "proportion to their usage (proportional). Default: none.",
)


def to_the_second(time: str) -> str:
    """A time of an answer, in UTC, to the second."""
    return f"{datetime.fromisoformat(time):%Y-%m-%dT%H:%M:%SZ}"


def shared_by(share_platform: str | None) -> dict[str, str]:
    """The parameter of a question, if the option was passed."""
    return {} if share_platform is None else {"share_platform": share_platform}


def print_books(books: dict[str, Any] | None) -> None:
    """Prints on stderr how closed months affect the answer."""
    if books is None:
        return
    if books["basis"] == "closed":
        click.echo(
            f"{books['month']} was closed at {to_the_second(books['closed'])}: these figures do not change.", err=True
        )
    elif books["basis"] == "open" and books["adjustments"]["usd_micro"] is not None:
        ledger, adjusted = (dollars(books[part]["usd_micro"] or 0) for part in ("ledger", "adjustments"))
        click.echo(f"{books['month']}: {ledger} from the ledger, {adjusted} of adjustments to closed months.", err=True)
    elif books["basis"] == "mixed":
        click.echo(
            "Some clusters have closed this month, others have not. --cluster NAME shows the charges of one.", err=True
        )
    elif books["adjustments_left_out"]:
        click.echo(
            "Adjustments to closed months are not included: they have no hour, cause, outcome, pipeline or sweep.",
            err=True,
        )
    elif books["closed_time"]:
        click.echo(
            "This time range includes closed months, and these are the current figures of the ledger. For what was "
            "charged, pass --month of a closed month, in its time zone and with a grouping that charges have.",
            err=True,
        )
