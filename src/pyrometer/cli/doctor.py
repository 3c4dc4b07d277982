"""`pyrometer doctor`: what is connected, and what missing evidence costs."""

from __future__ import annotations

import asyncio
import os

import click

from pyrometer.cli.progress import waiting
from pyrometer.cli.running import print_json
from pyrometer.cli.settings import read_settings
from pyrometer.cli.tables import print_table
from pyrometer.identify.kinds import known_kinds


@click.command()
@click.option("--context", metavar="NAME", help="Another context of the kubeconfig than the current one.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="The form of the answer.")
def command(context: str | None, output: str) -> int:
    """Tries to read everything of the cluster that Pyrometer reads; exit code 1 when something may not be read."""
    from pyrometer.collect.kubernetes.api import connect
    from pyrometer.collect.kubernetes.doctor import Checked, examine

    kinds = known_kinds(read_settings(os.environ).workload_rules)
    owners = [(group, kind) for group, kind in kinds.by_owner]

    async def ask() -> tuple[str, list[Checked]]:
        api = connect(context)
        try:
            return api.server, await examine(api, owners)
        finally:
            await api.close()

    with waiting("Asking the cluster"):
        server, checked = asyncio.run(ask())
    bad = [one for one in checked if not one.well]
    if output == "json":
        print_json({"server": server, "ok": not bad, "checks": [one._asdict() for one in checked]})
        return 1 if bad else 0
    click.echo(f"Kubernetes at {server}")
    read = sorted({one.resource for one in checked if one.state == "ok"} - {one.resource for one in bad})
    click.echo(f"{len(read)} kinds of objects can be read: {', '.join(read)}" if read else "Nothing can be read.")
    absent = sorted({one.resource for one in checked if one.state == "absent"})
    if absent:
        click.echo(f"{len(absent)} kinds are not in this cluster, and nothing is missing without them.")
    if not bad:
        return 0
    click.echo()
    print_table(
        ["missing", "verb", "why", "what is not known without it"],
        [[one.resource, one.verb, "not allowed" if one.state == "denied" else one.detail, one.costs] for one in bad],
        figures=0,
    )
    click.echo("\nGrant the verbs to its service account: deploy/base/rbac.yaml has all of them.")
    return 1
