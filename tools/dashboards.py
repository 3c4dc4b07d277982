"""Writes Grafana's dashboards and the PrometheusRule under deploy/: `python tools/dashboards.py deploy`.

Every query is a plain PromQL expression over `pyrometer_…` metrics. Counters grow once per minute, so rates cover
ten minutes at any scrape interval.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from grafana_panels import BAD, GOOD, WARN, Json, Query, Row, dashboard, over_time, stat, steps, table, variable

from pyrometer.model.states import STATES

# -- expressions ------------------------------------------------------------------------------------------------------


def _of(metric: str, **labels: str) -> str:
    """A metric with label matchers. A value may begin with its operator: `=~x`, `!~x`, `!=x`."""
    chosen = {"instance": "=~$instance", **labels}
    matchers = [
        f'{name}{value[:2]}"{value[2:]}"' if value[:2] in ("=~", "!~", "!=") else f'{name}="{value}"'
        for name, value in chosen.items()
    ]
    return f"pyrometer_{metric}{{{', '.join(matchers)}}}"


def _of_team(metric: str, **labels: str) -> str:
    return _of(metric, team="=~$team", **labels)


def _of_run(metric: str, **labels: str) -> str:
    return _of(f"run_{metric}", team="=~$team", experiment="=~$experiment", run="=~$run", **labels)


def _rate(metric: str) -> str:
    return f"rate({metric}[10m])"


def _in_family(family: str, summed: str) -> str:
    """An expression by state, for the states of a family, or for all states if the family is empty."""
    matched = f'{{family="{family}"}}' if family else ""
    return f"{summed} * on (state) group_left (family) max by (state, family) (pyrometer_state_info{matched})"


GPUS = _rate(_of_team("gpu_seconds_total"))
USD = _rate(_of_team("cost_usd_total"))
PLATFORM_STATES = "|".join(state.name for state in STATES if state.family == "platform")
HELD = f"sum({_rate(_of_team('gpu_seconds_total', state='!~' + PLATFORM_STATES))})"


# -- dashboards -------------------------------------------------------------------------------------------------------


INSTANCE = variable("instance", "pyrometer_build_info", "Server, if Prometheus scrapes several")
TEAM = variable("team", 'pyrometer_gpu_seconds_total{instance=~"$instance"}', "Team that the GPU time is charged to")


def burn() -> Json:
    """What the cluster costs, for which teams, and how much is wasted."""
    waste = _in_family("waste", f"sum by (state) ({USD})")
    wasted = _in_family("waste", f"sum by (team, state) ({GPUS})")
    lost = _in_family("waste", f"sum by (state) (increase({_of_team('cost_usd_total')}[$__range]))")
    share = _in_family("waste", f"sum by (state) ({GPUS})")
    limits = steps((0.15, WARN), (0.3, BAD))
    return dashboard(
        "pyrometer-burn",
        "Pyrometer / Cluster burn",
        "What the cluster costs, for which teams, and how much is wasted. Data is ten minutes behind; the API is exact.",
        (INSTANCE, TEAM),
        (
            Row(
                "Now",
                4,
                (
                    (
                        4,
                        stat(
                            "Dollars per hour",
                            "All GPUs, used or not, at the prices of the price book",
                            f"3600 * sum({USD})",
                            "currencyUSD",
                        ),
                    ),
                    (
                        4,
                        stat(
                            "Wasted dollars per hour",
                            "The part in states of the waste family",
                            f"3600 * sum({waste})",
                            "currencyUSD",
                        ),
                    ),
                    (
                        4,
                        stat(
                            "Waste", "Share of the allocated GPU time", f"sum({share}) / {HELD}", "percentunit", limits
                        ),
                    ),
                    (
                        4,
                        stat(
                            "Goodput",
                            "Share of `train` in the allocated GPU time",
                            f"sum({_rate(_of_team('gpu_seconds_total', state='train'))}) / {HELD}",
                            "percentunit",
                            steps((0.5, WARN), (0.7, GOOD), first=BAD),
                        ),
                    ),
                    (4, stat("GPUs", "All GPUs, in any state", f"sum({GPUS})", "short")),
                    (
                        4,
                        stat(
                            "Wasted in this time",
                            "Dollars, over the selected time range",
                            f"sum({lost})",
                            "currencyUSD",
                        ),
                    ),
                ),
            ),
            Row(
                "Where the GPU time goes",
                11,
                (
                    (
                        24,
                        over_time(
                            "GPUs by state",
                            "GPU-seconds per second, in the colors of the report",
                            Query(f"sum by (state) ({GPUS})", "{{state}}"),
                            unit="short",
                            stacked=True,
                            colored=True,
                        ),
                    ),
                ),
            ),
            Row(
                "Money",
                9,
                (
                    (
                        12,
                        over_time(
                            "Dollars per hour by team",
                            "`platform` is unallocated time",
                            Query(f"3600 * sum by (team) ({USD})", "{{team}}"),
                            unit="currencyUSD",
                            stacked=True,
                        ),
                    ),
                    (
                        12,
                        over_time(
                            "Wasted dollars per hour by state",
                            "Only states of the waste family",
                            Query(f"3600 * {waste}", "{{state}}"),
                            unit="currencyUSD",
                            stacked=True,
                            colored=True,
                        ),
                    ),
                ),
            ),
            Row(
                "Teams",
                9,
                (
                    (
                        12,
                        over_time(
                            "Waste by team",
                            "Share of the GPU time allocated to each team",
                            Query(f"sum by (team) ({wasted}) / sum by (team) ({GPUS})", "{{team}}"),
                            unit="percentunit",
                            most=1,
                            limits=steps((0.3, BAD), first="transparent"),
                        ),
                    ),
                    (
                        12,
                        table(
                            "Most expensive workloads",
                            "Dollars over the selected time range",
                            Query(
                                "topk(25, sum by (team, experiment, workload) "
                                f"(increase({_of_team('cost_usd_total', workload='!=')}[$__range])))",
                                instant=True,
                            ),
                            unit="currencyUSD",
                            columns={"Value": ("dollars", "currencyUSD")},
                        ),
                    ),
                ),
            ),
            Row(
                "Findings",
                10,
                (
                    (
                        16,
                        table(
                            "Findings by cost",
                            "Dollars by cause and workload in the last twelve hours",
                            Query(
                                f"sum by (cause, team, experiment, workload) ({_of_team('finding_usd')})", instant=True
                            ),
                            unit="currencyUSD",
                            columns={"Value": ("dollars", "currencyUSD")},
                        ),
                    ),
                    (
                        8,
                        over_time(
                            "Restated",
                            "GPUs whose past minutes were moved to another state by later evidence",
                            Query(
                                f"sum by (from_state, to_state) ({_rate(_of('restated_gpu_seconds_total'))})",
                                "{{from_state}} → {{to_state}}",
                            ),
                            unit="short",
                        ),
                    ),
                ),
            ),
        ),
    )


def training() -> Json:
    """Progress and cost of training runs."""
    run = "{{run}}"
    on = "on (run, experiment, team, instance)"
    running = f"{on} ({_of_run('outcome', outcome='running')} == 1)"
    figures = {
        "step": (_of_run("step"), "short"),
        "goodput": (_of_run("goodput_ratio"), "percentunit"),
        "MFU": (_of_run("mfu_ratio"), "percentunit"),
        "tokens/s": (_of_run("tokens_per_second"), "short"),
        "checkpoint age": (f"time() - {_of_run('last_checkpoint_timestamp_seconds')}", "s"),
        "ranks": (_of_run("ranks"), "short"),
        "attempt": (_of_run("attempt"), "short"),
        "": (f"max by (run, experiment, team, workload, framework) ({_of_run('info')})", "short"),
    }
    listed = table(
        "Runs",
        "Runs that are running, or ended within the last hour",
        *(
            Query(f"max by (run, experiment, team) ({expr})" if name else expr, instant=True)
            for name, (expr, _) in figures.items()
        ),
        unit="short",
        columns={f"Value #{chr(ord('A') + n)}": (name, unit) for n, (name, (_, unit)) in enumerate(figures.items())},
    )

    def line(title: str, meaning: str, metric: str, unit: str, **more: Any) -> Json:
        return over_time(title, meaning, Query(_of_run(metric), run), unit=unit, **more)

    return dashboard(
        "pyrometer-training",
        "Pyrometer / Training runs",
        "Health and cost of training runs.",
        (
            INSTANCE,
            TEAM,
            variable("experiment", 'pyrometer_run_info{team=~"$team"}', "Name of the experiment"),
            variable("run", 'pyrometer_run_info{team=~"$team", experiment=~"$experiment"}', "Name of the run"),
            variable(
                "metric", 'pyrometer_run_metric{run=~"$run"}', "A metric that runs report", label="name", chosen="loss"
            ),
        ),
        (
            Row(
                "Now",
                4,
                (
                    (
                        6,
                        stat(
                            "Running", "Runs without an end", f"sum({_of_run('outcome', outcome='running')})", "short"
                        ),
                    ),
                    (
                        6,
                        stat(
                            "Stuck ranks",
                            "Ranks that report no progress",
                            f"sum({_of_run('stuck_ranks')})",
                            "short",
                            steps((1, BAD)),
                        ),
                    ),
                    (
                        6,
                        stat(
                            "Loss is NaN or infinite",
                            "Runs that continue with a loss that is NaN or infinite",
                            f"sum({_of_run('nonfinite_loss')})",
                            "short",
                            steps((1, BAD)),
                        ),
                    ),
                    (
                        6,
                        stat(
                            "Oldest checkpoint",
                            "Of running runs: the work that would be lost in a crash now",
                            f"max((time() - {_of_run('last_checkpoint_timestamp_seconds')}) and {running})",
                            "s",
                            steps((3600, WARN), (3 * 3600, BAD)),
                        ),
                    ),
                ),
            ),
            Row("Runs", 9, ((24, listed),)),
            Row(
                "Progress",
                9,
                (
                    (
                        12,
                        over_time(
                            "Metrics",
                            "As reported by the program; select them above",
                            Query(_of_run("metric", name="=~$metric"), "{{run}} {{name}}"),
                            unit="short",
                            least=None,
                        ),
                    ),
                    (12, line("Step", "Completed optimizer steps", "step", "short", least=None)),
                ),
            ),
            Row(
                "Speed",
                9,
                (
                    (8, line("Tokens per second", "All ranks together", "tokens_per_second", "short")),
                    (8, line("Samples per second", "All ranks together", "samples_per_second", "short")),
                    (
                        8,
                        over_time(
                            "Step",
                            "Step time: median and 99th percentile",
                            Query(_of_run("step_seconds", percentile="50"), "{{run}} median"),
                            Query(_of_run("step_seconds", percentile="99"), "{{run}} p99"),
                            unit="s",
                        ),
                    ),
                ),
            ),
            Row(
                "GPU use",
                9,
                (
                    (
                        8,
                        line("MFU", "FLOPs as a share of what the GPUs can do in bfloat16", "mfu_ratio", "percentunit"),
                    ),
                    (8, line("FLOP/s", "All ranks together", "flops_per_second", "short")),
                    (
                        8,
                        line(
                            "Goodput",
                            "Share of `train` in the allocated GPU time, over the last settled hour",
                            "goodput_ratio",
                            "percentunit",
                            most=1,
                        ),
                    ),
                ),
            ),
            Row(
                "Where the time goes",
                9,
                (
                    (
                        8,
                        over_time(
                            "Phases",
                            "Average over all ranks of the selected runs",
                            Query(f"avg by (phase) ({_of_run('phase_ratio')})", "{{phase}}"),
                            unit="percentunit",
                            stacked=True,
                            most=1,
                        ),
                    ),
                    (
                        8,
                        over_time(
                            "Age of the last checkpoint",
                            "While the run is running",
                            Query(f"(time() - {_of_run('last_checkpoint_timestamp_seconds')}) and {running}", run),
                            unit="s",
                            limits=steps((3 * 3600, BAD), first="transparent"),
                        ),
                    ),
                    (8, line("CUDA memory", "Maximum allocated by any rank", "memory_peak_bytes", "bytes")),
                ),
            ),
            Row(
                "Money",
                8,
                (
                    (
                        24,
                        over_time(
                            "Dollars per hour",
                            "By experiment, ten minutes behind",
                            Query(
                                "3600 * sum by (experiment) "
                                f"({_rate(_of_team('cost_usd_total', experiment='=~$experiment'))})",
                                "{{experiment}}",
                            ),
                            unit="currencyUSD",
                            stacked=True,
                        ),
                    ),
                ),
            ),
        ),
    )


def itself() -> Json:
    """Health of the Pyrometer server."""
    who = "{{instance}}"

    def by_server(title: str, meaning: str, expr: str, unit: str, **more: Any) -> Json:
        return over_time(title, meaning, Query(expr, who), unit=unit, **more)

    late = steps((300, WARN), (900, BAD))
    return dashboard(
        "pyrometer-itself",
        "Pyrometer / Itself",
        "Whether Pyrometer accepts its input, and accounts for it in time.",
        (INSTANCE,),
        (
            Row(
                "Now",
                4,
                (
                    (
                        4,
                        stat(
                            "Ready",
                            "All objects that existed at the start have been read",
                            f"min({_of('ready')})",
                            "bool_yes_no",
                            steps((1, GOOD), first=BAD),
                        ),
                    ),
                    (
                        4,
                        stat(
                            "Newest fact",
                            "Age of the newest accounted minute",
                            f"time() - min({_of('ledger_end_timestamp_seconds')})",
                            "s",
                            late,
                        ),
                    ),
                    (
                        4,
                        stat(
                            "Last accounted",
                            "Time since the last update of the ledger",
                            f"time() - min({_of('accounted_timestamp_seconds')})",
                            "s",
                            late,
                        ),
                    ),
                    (
                        4,
                        stat(
                            "Unreadable sources",
                            "/readyz names them",
                            f"sum({_of('shortcomings')})",
                            "short",
                            steps((1, BAD)),
                        ),
                    ),
                    (
                        4,
                        stat(
                            "Omitted series",
                            "Workloads, runs and findings without their own series",
                            f"sum({_of('workloads_left_out')}) + sum({_of('runs_left_out')}) "
                            f"+ sum({_of('findings_left_out')})",
                            "short",
                            steps((1, WARN)),
                        ),
                    ),
                    (
                        4,
                        stat(
                            "Version",
                            "Of the servers",
                            f"max by (version) ({_of('build_info')})",
                            "short",
                            legend="{{version}}",
                        ),
                    ),
                ),
            ),
            Row(
                "Input",
                9,
                (
                    (
                        8,
                        by_server(
                            "Records stored", "Per second, from all sources", _rate(_of("records_stored_total")), "ops"
                        ),
                    ),
                    (
                        8,
                        over_time(
                            "OTLP",
                            "Records sent by training processes, by outcome",
                            Query(
                                f"sum by (signal, outcome) ({_rate(_of('otlp_records_total'))})",
                                "{{signal}} {{outcome}}",
                            ),
                            unit="ops",
                        ),
                    ),
                    (
                        8,
                        over_time(
                            "Remote write",
                            "Samples that a Prometheus sends, by what became of them",
                            Query(f"sum by (outcome) ({_rate(_of('remote_write_samples_total'))})", "{{outcome}}"),
                            unit="ops",
                        ),
                    ),
                ),
            ),
            Row(
                "Accounting",
                9,
                (
                    (
                        8,
                        by_server(
                            "Behind",
                            "Now, less the newest accounted minute",
                            f"time() - {_of('ledger_end_timestamp_seconds')}",
                            "s",
                            limits=steps((900, BAD), first="transparent"),
                        ),
                    ),
                    (
                        8,
                        by_server(
                            "Exported",
                            "Now, less the newest minute in the counters: ten minutes and a little",
                            f"time() - {_of('exported_through_timestamp_seconds')}",
                            "s",
                        ),
                    ),
                    (8, by_server("Takes", "To bring the ledger up to date", _of("accounting_seconds"), "s")),
                ),
            ),
            Row(
                "The process",
                9,
                (
                    (
                        8,
                        by_server(
                            "Memory",
                            "Resident",
                            'process_resident_memory_bytes{instance=~"$instance"} '
                            "and on (instance) pyrometer_build_info",
                            "bytes",
                        ),
                    ),
                    (
                        8,
                        by_server(
                            "CPU",
                            "Cores",
                            'rate(process_cpu_seconds_total{instance=~"$instance"}[5m]) '
                            "and on (instance) pyrometer_build_info",
                            "short",
                        ),
                    ),
                    (
                        8,
                        over_time(
                            "Kubernetes",
                            "Kinds of objects that are followed: 1, or 0 where they may not be read",
                            Query(f"min by (resource) ({_of('watch_synced')})", "{{resource}}"),
                            unit="short",
                            most=1,
                        ),
                    ),
                ),
            ),
        ),
    )


DASHBOARDS = {"cluster-burn": burn, "training-runs": training, "itself": itself}


def text(made: Json) -> str:
    """As it is written to a file."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def prometheus_rule(rules: str) -> str:
    """A rule file as the object that the Prometheus operator takes."""
    header = """\
# Made of rules.yaml by `make dashboards`: change that one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: pyrometer
  namespace: pyrometer
  labels: {app.kubernetes.io/name: pyrometer}
spec:
"""
    lines = rules[rules.index("groups:") :].splitlines()
    return header + "".join(f"  {line}\n" if line else "\n" for line in lines)


def write(deploy: Path) -> None:
    """Writes everything that is made into a folder of manifests."""
    for name, make in DASHBOARDS.items():
        (deploy / "grafana" / f"{name}.json").write_text(text(make()), encoding="utf-8")
    rules = (deploy / "prometheus" / "rules.yaml").read_text(encoding="utf-8")
    (deploy / "prometheus" / "prometheusrule.yaml").write_text(prometheus_rule(rules), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
