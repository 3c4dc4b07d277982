"""Promises of the repository: frozen names, light imports, and a small base install."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import click
import pytest

from pyrometer import __version__
from pyrometer.account.query.groupings import GROUPINGS
from pyrometer.agent.dcgm_text import OWN_METRICS
from pyrometer.causes.registry import DETECTORS
from pyrometer.cli import COMMANDS
from pyrometer.export.workload_metrics import GAUGES
from pyrometer.model.settings import HELP, Settings
from pyrometer.model.states import CAUSES, FAMILIES, INTERVAL_STATES, STATES
from pyrometer.train.run.environment import VARIABLES

REPOSITORY = Path(__file__).parent.parent
SOURCES = REPOSITORY / "src" / "pyrometer"

# -- frozen: a change here is a change for users, and belongs in CHANGELOG.md -----------------------------------------

COMMAND_LINES = """\
demo --out --seed --no-serve --live
why --data --server --lake --cluster --last --since --until --month --all --tz --price --team --experiment \
-o|--output=table|json|html --kube --context --prometheus --file --send
cost --by --share-platform=none|even|proportional --data --server --lake --cluster --engine=local|ray --address --last \
--since --until --month --all --tz --price --team --experiment -o|--output=table|json
export FORMAT=csv|focus|mlflow|wandb|lake --by --out --tracking-uri --wandb-dir --run \
--share-platform=none|even|proportional --data --server --lake --cluster --engine=local|ray --address --last --since \
--until --month --all --tz --price --team --experiment
close [YYYY-MM] --list --data --server --tz -o|--output=table|json
rebuild --month --data --server --tz -o|--output=table|json
reconcile BILL.csv --data --server --tz --map --columns --price --tolerance -o|--output=table|json
top --every --once --limit --data --server --last --since --until --month --all --tz --price --team --experiment \
-o|--output=table|json
prices --data --book --starter -o|--output=table|json
runs --data --server --lake --cluster --last --since --until --month --all --tz --price --team --experiment \
-o|--output=table|json
show RUN --data --server --lake --cluster --last --since --until --month --all --tz --price --team --experiment \
-o|--output=table|json
worth [EXPERIMENT] --metric --target --by=dollars|gpu-hours|time|step --data --server --lake --cluster --last --since \
--until --month --all --tz --price --team --experiment -o|--output=table|json|chart
run --server --data --run --experiment --redact --no-gpus CMD
trace RUN --step --sample --attempt --data --server --lake --cluster --last --since --until --month --all --tz --price \
--team --experiment -o|--output=table|json|perfetto|otlp --file
lineage RUN --step --sample --checkpoint --spikes --metric --attempt --limit --offset --data --server --lake --cluster \
--last --since --until --month --all --tz --price --team --experiment -o|--output=table|json
import FORMAT=openb|philly|speedrun|recording|mlflow|wandb PATH --out --without-steps
simulate SCENARIO=overnight|quiet|gpu_only|kube_only|scale|kubeflow|{causes}|list --seed --gpus --hours --out
score DIR -o|--output=table|json
serve --data --listen --kube --context --scrape --prometheus --open
agent --listen --every --pod-resources --proc
doctor --context --prometheus --no-kube -o|--output=table|json
token create|list|revoke
backup --out --data --server --keep -o|--output=table|json
restore BACKUP --out --at --tz --list -o|--output=table|json
check DIR --repair
completion SHELL=bash|zsh|fish
"""

SETTINGS = """\
idle_gap_ms = 900000
startup_limit_ms = 1800000
sample_reach_ms = 60000
sample_jitter_ms = 15000
hang_limit_ms = 60000
finding_min_ms = 60000
finding_min_usd_micro = 1000000
retention_days = 0
price_book = ''
timezone = 'UTC'
cluster = ''
workload_rules = ''
team_rules = label:pyrometer.io/team annotation:pyrometer.io/team label:team annotation:team queue \
label:determined.ai/workspace annotation:slurmjob.slinky.slurm.net/account namespace-label:pyrometer.io/team \
namespace-label:team namespace
experiment_rules = label:pyrometer.io/experiment annotation:pyrometer.io/experiment label:experiment \
annotation:experiment label:katib.kubeflow.org/experiment annotation:pipelines.kubeflow.org/run_name name
user_rules = label:pyrometer.io/user annotation:pyrometer.io/user label:user annotation:user label:determined.ai/user \
annotation:skypilot-user label:skypilot-user label:workflows.argoproj.io/creator
bill_to = 'experiment'
prometheus_token_file = ''
prometheus_ca_file = ''
prometheus_tenant = ''
prometheus_history_hours = 12
find_exporters = 'yes'
scrape_interval_s = 15
energy_usd_per_kwh = 0.0
carbon_g_per_kwh = 0.0
pue = 1.0
audit_log = 'yes'
secure_cookie = 'no'
proxy_addresses =
proxy_user_header = ''
proxy_team_header = ''
proxy_role = 'viewer'
public_url = ''
tell_min_usd_micro = 20000000
webhook_url_file = ''
webhook_form = 'slack'
alertmanager_urls =
alertmanager_token_file = ''
report_at = ''
report_hours = 12
report_file = ''
otlp_endpoint = ''
otlp_headers_file = ''
otlp_interval_s = 60
mlflow_tracking_uri = ''
mlflow_token_file = ''
mlflow_stamp = 'no'
wandb_stamp = 'no'
wandb_dir = ''
lake = ''
lake_cache = ''
lake_cache_mib = 10240
"""

SDK_VARIABLES = (
    "PYROMETER_ENDPOINT",
    "PYROMETER_TOKEN",
    "PYROMETER_CA_FILE",
    "PYROMETER_RUN",
    "PYROMETER_EXPERIMENT",
    "PYROMETER_REDACT",
    "PYROMETER_SPOOL",
    "PYROMETER_SPOOL_MIB",
    "PYROMETER_FLUSH_S",
    "PYROMETER_WINDOW_S",
    "PYROMETER_HANG_LIMIT_S",
    "PYROMETER_NODE",
    "PYROMETER_DISABLED",
    "PYROMETER_DEBUG",
)

LEDGER_STATES = {
    "useful": ("train", "evaluate", "infer", "active"),
    "overhead": ("startup", "checkpoint"),
    "waste": (
        "gang_wait",
        "data_stall",
        "straggler_wait",
        "comm_stall",
        "starved",
        "hang",
        "lost_work",
        "diverged",
        "idle_held",
        "unused_device",
    ),
    "platform": ("free", "unhealthy"),
    "unknown": ("unobserved",),
}

FILLED_BY_INTERVAL = (
    "unhealthy",
    "free",
    "gang_wait",
    "startup",
    "hang",
    "idle_held",
    "unused_device",
    "diverged",
    "lost_work",
)

CAUSES_IN_THE_ORDER_IN_WHICH_THEY_CLAIM = (
    "hardware_failure",
    "out_of_memory",
    "crash_loop",
    "hang",
    "preempted",
    "lost_work",
    "diverged",
    "diverged_suspected",
    "gang_wait",
    "slow_start",
    "straggler",
    "data_stall",
    "comm_stall",
    "slow_checkpoint",
    "unused_device",
    "idle_held",
    "starved",
    "throttled",
    "plateau",
    "duplicate_run",
    "stranded",
    "telemetry_lost",
)


def parameters_of(name: str) -> list[click.Parameter] | list[argparse.Action]:
    """The options of a command. Commands of the base install do not use click."""
    module = importlib.import_module(f"pyrometer.cli.commands.{COMMANDS[name].module}")
    if COMMANDS[name].extra:
        return module.command.params
    return [action for action in module.parser()._actions if action.dest != "help"]


def spelled(parameter: click.Parameter | argparse.Action) -> str:
    if isinstance(parameter, argparse.Action):
        return "|".join(parameter.option_strings) or parameter.metavar
    name = "|".join(parameter.opts) if isinstance(parameter, click.Option) else parameter.human_readable_name
    return f"{name}={'|'.join(parameter.type.choices)}" if isinstance(parameter.type, click.Choice) else name


def below(name: str) -> list[str]:
    command = importlib.import_module(f"pyrometer.cli.commands.{COMMANDS[name].module}").command
    return ["|".join(sorted(command.commands))] if isinstance(command, click.Group) else []


def test_commands_and_options_are_frozen():
    lines = [" ".join([name, *map(spelled, parameters_of(name)), *below(name)]) for name in COMMANDS]
    scenarios_of_causes = "|".join(CAUSES_IN_THE_ORDER_IN_WHICH_THEY_CLAIM)
    assert "\n".join(lines) + "\n" == COMMAND_LINES.format(causes=scenarios_of_causes)


def test_settings_are_frozen():
    lines = [
        f"{name} = {' '.join(default) if isinstance(default, tuple) else repr(default)}".rstrip()
        for name, default in Settings._field_defaults.items()
    ]
    assert "\n".join(lines) + "\n" == SETTINGS


def test_the_sdk_s_variables_are_frozen_and_each_has_help():
    assert tuple(VARIABLES) == SDK_VARIABLES
    assert all(text.endswith(".") for text in VARIABLES.values())


def test_the_sdk_reads_no_variable_that_is_not_declared():
    sources = "".join(path.read_text() for path in (SOURCES / "train").rglob("*.py"))
    assert set(re.findall(r"\bPYROMETER_[A-Z_]+[A-Z]\b", sources)) <= {*VARIABLES, "PYROMETER_DATA"}


def test_states_are_frozen():
    assert tuple(LEDGER_STATES) == FAMILIES
    assert {family: tuple(s.name for s in STATES if s.family == family) for family in FAMILIES} == LEDGER_STATES
    assert INTERVAL_STATES == FILLED_BY_INTERVAL
    assert all(state.meaning for state in STATES)


def test_causes_are_frozen():
    assert CAUSES == CAUSES_IN_THE_ORDER_IN_WHICH_THEY_CLAIM


AGENT_METRICS = (
    "pyrometer_gpu_lost",
    "pyrometer_gpu_allocation_info",
    "pyrometer_gpu_processes",
    "pyrometer_agent_pod_resources_up",
    "pyrometer_agent_reading_interval_seconds",
    "pyrometer_agent_info",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
)


WORKLOAD_METRICS = (
    "pyrometer_workload_phase",
    "pyrometer_workload_pods",
    "pyrometer_workload_created_timestamp_seconds",
    "pyrometer_workload_ended_timestamp_seconds",
    "pyrometer_workload_queued_seconds",
    "pyrometer_workload_scheduled_seconds",
    "pyrometer_workload_all_running_seconds",
    "pyrometer_workload_first_step_seconds",
    "pyrometer_workload_attempts",
    "pyrometer_workload_container_restarts",
    "pyrometer_workload_lost_work_gpu_seconds",
    "pyrometer_workload_last_progress_timestamp_seconds",
    "pyrometer_workload_progress_ratio",
    "pyrometer_workload_remaining_seconds",
)


def test_the_metrics_of_workloads_are_frozen():
    assert tuple(gauge.name for gauge in GAUGES) == WORKLOAD_METRICS


GROUPED_BY = (
    "team",
    "experiment",
    "workload",
    "namespace",
    "user",
    "queue",
    "pod",
    "outcome",
    "pipeline",
    "pipeline_run",
    "pipeline_step",
    "sweep",
    "trial",
    "node",
    "pool",
    "gpu_model",
    "cluster",
    "state",
    "cause",
    "hour",
    "day",
    "month",
)


def test_groupings_of_cost_are_frozen():
    assert GROUPINGS == GROUPED_BY


def test_the_agent_s_own_metrics_are_frozen():
    assert tuple(OWN_METRICS) == AGENT_METRICS


# -- what is listed is there ------------------------------------------------------------------------------------------


def test_every_setting_has_help():
    assert list(HELP) == list(Settings._fields)
    assert all(HELP.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_module_with_help(name):
    module = importlib.import_module(f"pyrometer.cli.commands.{COMMANDS[name].module}")
    assert f"`pyrometer {name}" in module.__doc__
    assert COMMANDS[name].help
    if COMMANDS[name].extra:
        assert isinstance(module.command, click.Command)
        assert module.command.help.endswith(".")
    else:
        assert module.parser().description.endswith(".")
    for parameter in parameters_of(name):
        if isinstance(parameter, click.Option | argparse.Action):
            assert parameter.help.endswith("."), parameter


def test_every_command_module_is_listed():
    modules = {
        path.stem
        for path in (SOURCES / "cli" / "commands").glob("*.py")
        if re.search(r"^(@click\.|def command\()", path.read_text(), re.MULTILINE)
    }
    assert modules == {listed.module for listed in COMMANDS.values()}


def test_every_detector_belongs_to_a_cause_and_its_module():
    places = [CAUSES.index(sys.modules[detector.__module__].__name__.rsplit(".", 1)[1]) for detector in DETECTORS]
    assert places == sorted(places)
    assert len(places) == len(set(places))


def test_package_has_one_version():
    from importlib.metadata import version

    assert version("pyrometer") == __version__


# -- what must be light is light --------------------------------------------------------------------------------------

IMPORTED = """
import contextlib, io, json, sys
before = set(sys.modules)
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    {statement}
print(json.dumps(sorted({{name.split(".")[0] for name in set(sys.modules) - before}})))
"""


def imported_by(statement: str) -> set[str]:
    """The packages that a statement imports in a fresh Python."""
    script = IMPORTED.format(statement=statement)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    return set(json.loads(result.stdout))


def test_import_pyrometer_imports_nothing_outside_the_standard_library():
    assert imported_by("import pyrometer") - set(sys.stdlib_module_names) == {"pyrometer"}


def test_running_a_command_imports_nothing_outside_the_standard_library():
    assert imported_by("import pyrometer.cli.commands.run") - set(sys.stdlib_module_names) == {"pyrometer"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["nonsense"], ["run", "--help"]])
def test_help_imports_nothing_outside_the_standard_library(arguments):
    statement = f"from pyrometer.cli import main; sys.stderr = io.StringIO(); main({arguments!r})"
    assert imported_by(statement) - set(sys.stdlib_module_names) == {"pyrometer"}


@pytest.mark.parametrize(
    "name", ["why", "cost", "export", "close", "reconcile", "top", "runs", "show", "worth", "trace", "lineage"]
)
def test_folder_query_imports_nothing_for_clusters_or_servers(name):
    assert not imported_by(f"import pyrometer.cli.commands.{name}") & {"lightkube", "httpx2", "starlette", "uvicorn"}


def test_import_layers_are_kept():
    pytest.importorskip("importlinter", reason="needs import-linter: pip install 'pyrometer[dev]'")
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY / 'datasets'}"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


# -- the base install -------------------------------------------------------------------------------------------------


def quietly(*command, more: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYROMETER_"))}
    environment.update(more or {})
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, **options)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    if importlib.util.find_spec("hatchling"):
        command = ("build", "--wheel", "--no-isolation", "--outdir", folder, REPOSITORY)
    else:
        command = ("pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", folder, REPOSITORY)
    result = quietly(sys.executable, "-m", *command)
    if result.returncode and "hatchling" in result.stderr and "No matching distribution" in result.stderr:
        pytest.skip("needs hatchling, or a package index to get it from: pip install hatchling")
    assert result.returncode == 0, result.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def base_install(wheel, tmp_path_factory) -> Path:
    """The `bin` of an environment with the wheel only, installed without a network."""
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    result = quietly(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", wheel
    )
    assert result.returncode == 0, result.stderr
    return folder / "bin"


@pytest.mark.heavy
def test_wheel_has_data_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    wanted = {
        f"pyrometer/{path.relative_to(SOURCES)}"
        for path in SOURCES.rglob("*")
        if path.suffix in (".py", ".sql", ".css", ".csv", ".yaml")
    }
    assert {Path(name).suffix for name in wanted} == {".py", ".sql", ".css", ".csv", ".yaml"}
    assert wanted <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "demo"))]
    assert all("extra ==" in need for need in headers.get_all("Requires-Dist"))  # the base install has no dependencies
    assert {listed.extra for listed in COMMANDS.values()} <= {"", *headers.get_all("Provides-Extra")}
    assert {"pyrometer.pth", "pyrometer/py.typed"} <= names


@pytest.mark.heavy
def test_the_base_install_is_enough_for_a_training_script(base_install):
    result = quietly(base_install / "python", "-c", "import pyrometer; print(pyrometer.__version__)", cwd="/")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{__version__}\n", "")


@pytest.mark.heavy
def test_the_base_install_answers_help_and_version(base_install):
    result = quietly(base_install / "pyrometer", "--help", cwd="/")
    assert (result.returncode, result.stderr) == (0, "")
    assert all(f"  {name} " in result.stdout for name in COMMANDS)
    result = quietly(base_install / "pyrometer", "--version", cwd="/")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"pyrometer {__version__}\n", "")


@pytest.mark.heavy
def test_the_base_install_runs_a_command(base_install, tmp_path):
    command = [base_install / "pyrometer", "run", "--data", tmp_path, "--", base_install / "python", "-c", "exit(3)"]
    result = quietly(*command, cwd="/")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == f"pyrometer: no PyTorch training was detected in {base_install / 'python'}.\n"


# Where lib64 is a link to lib, Python reads every `.pth` twice.
ONCE = """
begun = []
def start():
    begun or print("started")
    begun.append(1)
"""


@pytest.mark.heavy
def test_sdk_starts_only_with_a_configured_endpoint(base_install):
    (site,) = base_install.parent.glob("lib/python*/site-packages")
    boot = site / "pyrometer" / "train" / "run" / "boot.py"
    started = boot.read_text() if boot.exists() else None
    there = {"PYROMETER_ENDPOINT": "http://127.0.0.1:1"}
    show = "import sys; print('pyrometer' in sys.modules)"
    try:
        for text, output in ((ONCE, "started\nTrue\n"), ("nonsense(", "True\n")):
            boot.write_text(text)
            assert quietly(base_install / "python", "-c", show, cwd="/").stdout == "False\n"
            with_endpoint = quietly(base_install / "python", "-c", show, cwd="/", more=there)
            assert (with_endpoint.returncode, with_endpoint.stdout, with_endpoint.stderr) == (0, output, "")
    finally:
        boot.unlink() if started is None else boot.write_text(started)


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name].extra])
def test_base_install_names_the_missing_extra(base_install, name):
    result = quietly(base_install / "pyrometer", name, cwd="/")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: `pyrometer {name}` needs more than the base install: pip install 'pyrometer[{COMMANDS[name].extra}]'\n"
    )
