"""`pyrometer doctor`: what Pyrometer can read, and what missing evidence costs."""

from __future__ import annotations

import asyncio
import os
import textwrap
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pyrometer.cli.command_support import print_json
from pyrometer.cli.progress_bar import waiting
from pyrometer.cli.settings_files import read_settings
from pyrometer.identify.kubernetes.workload_kinds import known_kinds
from pyrometer.model.settings import Settings
from pyrometer.render.tables import print_table

if TYPE_CHECKING:
    from pyrometer.collect.kubernetes.doctor import ResourceCheck
    from pyrometer.collect.prometheus.doctor import SeriesCount

WIDTH = 80


class Diagnosis(NamedTuple):
    """The result of all checks."""

    server: str | None
    checked: list[ResourceCheck]
    gpu_pods: int | None  # None: pods cannot be read
    exporters: int | None  # pods that are GPU exporters
    prometheus: str | None
    series: list[SeriesCount]
    telling: list[str]  # receivers of findings
    lake: list[str]  # what is in the lake, and how old it is

    @property
    def bad(self) -> list[ResourceCheck]:
        """The checks that failed."""
        return [one for one in self.checked if not one.well]

    @property
    def rules(self) -> list[dict[str, list[str]]]:
        """The rules of a ClusterRole that are missing."""
        verbs: dict[tuple[str, str], list[str]] = {}
        for one in self.checked:
            if one.state == "denied":
                verbs.setdefault((one.group, one.plural), []).append(one.verb)
        resources: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for (group, plural), denied in sorted(verbs.items()):
            resources.setdefault((group, tuple(denied)), []).append(plural)
        return [
            {"apiGroups": [group], "resources": plurals, "verbs": list(denied)}
            for (group, denied), plurals in resources.items()
        ]


@click.command()
@click.option("--context", metavar="NAME", help="A context of the kubeconfig. Default: its current context.")
@click.option("--prometheus", metavar="URL", help="Also check the metrics of this Prometheus.")
@click.option("--no-kube", is_flag=True, help="Do not check Kubernetes.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="Output format.")
def command(context: str | None, prometheus: str | None, no_kube: bool, output: str) -> int:
    """Checks what Pyrometer can read, including the owners of all GPU pods. Exits 1 if a permission is missing."""
    if no_kube and not prometheus:
        raise click.UsageError("Nothing to check: pass --prometheus URL, or drop --no-kube.")
    with waiting("Checking"):
        found = asyncio.run(_examine(context, prometheus, no_kube))
    if output == "json":
        print_json(_json(found))
    else:
        _print(found)
    return 1 if found.bad else 0


async def _examine(context: str | None, prometheus: str | None, no_kube: bool) -> Diagnosis:
    from pyrometer.act.notifier import receivers
    from pyrometer.collect.kubernetes import snapshot
    from pyrometer.collect.kubernetes.api import connect
    from pyrometer.collect.kubernetes.doctor import examine
    from pyrometer.collect.prometheus import doctor
    from pyrometer.collect.prometheus.api import Prometheus
    from pyrometer.identify.gpus import gpu_requests
    from pyrometer.serve.tasks.otlp_push_task import receiver

    settings = read_settings(os.environ)
    pushed = receiver(settings)
    found = Diagnosis(
        server=None,
        checked=[],
        gpu_pods=None,
        exporters=None,
        prometheus=None,
        series=[],
        telling=[*receivers(settings), *([pushed] if pushed else [])],
        lake=_lake(settings),
    )
    if not no_kube:
        api = connect(context)
        try:
            owners = list(known_kinds(settings.workload_rules).by_owner)
            examined = await examine(api, owners, gpu_requests.may_request_gpus)
            found = found._replace(
                server=api.server,
                checked=examined.checked,
                gpu_pods=examined.gpu_pods,
                exporters=await snapshot.exporters(api),
            )
        finally:
            await api.close()
    if prometheus:
        prometheus_api = Prometheus(prometheus, settings)
        try:
            found = found._replace(prometheus=prometheus_api.url, series=await doctor.examine(prometheus_api))
        finally:
            await prometheus_api.close()
    return found


def _lake(settings: Settings) -> list[str]:
    """One line per cluster of the lake, or what is wrong with the lake."""
    if not settings.lake:
        return []
    from pyrometer.model.human import duration
    from pyrometer.store.lake import LakeError, LakeStorage, manifests

    try:
        place = LakeStorage(settings.lake)
        now_ms = time.time_ns() // 1_000_000
        return [
            f"{one.cluster} in the lake {place.url}: copied {duration(max(0, now_ms - one.written_ms))} ago"
            for one in manifests(place)
        ]
    except LakeError as error:
        return [str(error).rstrip(".")]


def _json(found: Diagnosis) -> dict[str, Any]:
    return {
        "server": found.server,
        "ok": not found.bad,
        "checks": [one._asdict() for one in found.checked],
        "rules": found.rules,
        "gpu_pods": found.gpu_pods,
        "exporters": found.exporters,
        "prometheus": found.prometheus,
        "series": [one._asdict() for one in found.series],
        "telling": found.telling,
        "lake": found.lake,
    }


def _print(found: Diagnosis) -> None:
    if found.server is not None:
        _print_kubernetes(found)
    if found.prometheus is not None:
        click.echo(("\n" if found.server else "") + f"Prometheus at {found.prometheus}")
        print_table(
            ["evidence", "unknown without it", "series"],
            [[one.what, "" if one.series else one.costs, f"{one.series:,}"] for one in found.series],
            figures=1,
        )
    if found.telling or found.lake:
        click.echo()
    for line in (*found.telling, *found.lake):
        click.echo(line)


def _print_kubernetes(found: Diagnosis) -> None:
    from pyrometer.model.human import counted

    click.echo(f"Kubernetes at {found.server}")
    read = sorted({one.resource for one in found.checked if one.state == "ok"} - {one.resource for one in found.bad})
    if read:
        click.echo(f"{len(read)} kinds of objects can be read:")
        click.echo(textwrap.fill(", ".join(read), WIDTH, initial_indent="  ", subsequent_indent="  "))
    else:
        click.echo("No kind of object can be read.")
    absent = sorted({one.resource for one in found.checked if one.state == "absent" and not one.pods})
    if absent:
        click.echo(f"{len(absent)} kinds do not exist in this cluster, and nothing is missing without them.")
    unknown = [one for one in found.checked if one.state == "absent" and one.pods]
    for one in unknown:
        click.echo(
            f"{counted(one.pods, 'GPU pod')} below {counted(one.objects, 'object')} of the kind {one.resource}, which "
            "no longer exists in this cluster: each object counts as a workload."
        )
    if found.gpu_pods and not unknown and not any(one.pods for one in found.bad):
        click.echo(f"All owners of {counted(found.gpu_pods, 'GPU pod')} can be read.")
    if found.exporters:
        click.echo(f"{counted(found.exporters, 'GPU exporter')} running.")
    elif found.exporters == 0 and found.prometheus is None:
        click.echo(
            "No GPU exporter is running, so GPU activity is unknown. Deploy dcgm-exporter or the Pyrometer agent."
        )
    if found.bad:
        click.echo()
        print_table(
            ["missing", "verb", "reason", "unknown without it"],
            [
                [
                    one.resource,
                    one.verb,
                    "not allowed" if one.state == "denied" else one.detail,
                    "" if before is not None and before.resource == one.resource else one.costs,
                ]
                for before, one in zip([None, *found.bad], found.bad, strict=False)
            ],
            figures=0,
        )
        _print_rules(found)


def _print_rules(found: Diagnosis) -> None:
    if not found.rules:
        return
    click.echo("\nAdd these rules to the ClusterRole (deploy/base/rbac.yaml has the rules for all supported kinds):")
    for rule in found.rules:
        groups = ", ".join(group or '""' for group in rule["apiGroups"])
        click.echo(f"  - apiGroups: [{groups}]")
        click.echo(f"    resources: [{', '.join(rule['resources'])}]")
        click.echo(f"    verbs: [{', '.join(rule['verbs'])}]")
    if any(one.pods for one in found.bad):
        click.echo("Then run `pyrometer doctor` again: the owners of these kinds may need rules too.")
