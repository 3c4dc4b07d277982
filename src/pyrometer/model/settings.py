"""The settings, declared in one table. Values come only from a YAML file or `PYROMETER_*` variables."""

from __future__ import annotations

import reprlib
from typing import NamedTuple


class Settings(NamedTuple):
    """Every setting with its default. The field's name is the YAML key; PYROMETER_<NAME> is the variable."""

    idle_gap_ms: int = 900_000
    startup_limit_ms: int = 1_800_000
    sample_reach_ms: int = 60_000
    sample_jitter_ms: int = 15_000
    hang_limit_ms: int = 60_000
    finding_min_ms: int = 60_000
    finding_min_usd_micro: int = 1_000_000
    retention_days: int = 0
    price_book: str = ""
    timezone: str = "UTC"
    cluster: str = ""
    workload_rules: str = ""
    team_rules: tuple[str, ...] = (
        "label:pyrometer.io/team",
        "annotation:pyrometer.io/team",
        "label:team",
        "annotation:team",
        "queue",
        "label:determined.ai/workspace",
        "annotation:slurmjob.slinky.slurm.net/account",
        "namespace-label:pyrometer.io/team",
        "namespace-label:team",
        "namespace",
    )
    experiment_rules: tuple[str, ...] = (
        "label:pyrometer.io/experiment",
        "annotation:pyrometer.io/experiment",
        "label:experiment",
        "annotation:experiment",
        "label:katib.kubeflow.org/experiment",
        "annotation:pipelines.kubeflow.org/run_name",
        "name",
    )
    user_rules: tuple[str, ...] = (
        "label:pyrometer.io/user",
        "annotation:pyrometer.io/user",
        "label:user",
        "annotation:user",
        "label:determined.ai/user",
        "annotation:skypilot-user",
        "label:skypilot-user",
        "label:workflows.argoproj.io/creator",
    )
    bill_to: str = "experiment"
    prometheus_token_file: str = ""
    prometheus_ca_file: str = ""
    prometheus_tenant: str = ""
    prometheus_history_hours: int = 12
    find_exporters: str = "yes"
    scrape_interval_s: int = 15
    energy_usd_per_kwh: float = 0.0
    carbon_g_per_kwh: float = 0.0
    pue: float = 1.0
    audit_log: str = "yes"
    secure_cookie: str = "no"
    proxy_addresses: tuple[str, ...] = ()
    proxy_user_header: str = ""
    proxy_team_header: str = ""
    proxy_role: str = "viewer"
    public_url: str = ""
    tell_min_usd_micro: int = 20_000_000
    webhook_url_file: str = ""
    webhook_form: str = "slack"
    alertmanager_urls: tuple[str, ...] = ()
    alertmanager_token_file: str = ""
    report_at: str = ""
    report_hours: int = 12
    report_file: str = ""
    otlp_endpoint: str = ""
    otlp_headers_file: str = ""
    otlp_interval_s: int = 60
    mlflow_tracking_uri: str = ""
    mlflow_token_file: str = ""
    mlflow_stamp: str = "no"
    wandb_stamp: str = "no"
    wandb_dir: str = ""
    lake: str = ""
    lake_cache: str = ""
    lake_cache_mib: int = 10_240


HELP: dict[str, str] = {
    "idle_gap_ms": (
        "with GPU telemetry alone: inactivity longer than this is `idle_held`, shorter inactivity is `starved`"
    ),
    "startup_limit_ms": "with GPU telemetry alone: inactivity since container start is `startup` for at most this long",
    "sample_reach_ms": "how long a GPU sample is valid; time without a valid sample is `unobserved`",
    "sample_jitter_ms": "how late the next sample may be without leaving a gap",
    "hang_limit_ms": "a run without a step for longer than this, and than ten of its slow steps, is in `hang`",
    "finding_min_ms": "minimum GPU-milliseconds of a shown finding",
    "finding_min_usd_micro": (
        "minimum cost of a shown finding (micro-dollars); unpriced findings are always shown; 0 shows all"
    ),
    "retention_days": "days that measurements and the ledger are kept; 0 keeps everything",
    "price_book": "path of a YAML price book",
    "timezone": "time zone of days, hours and months, unless --tz is set",
    "cluster": "name of the cluster in records; default: its name in the kubeconfig, else the UID of `kube-system`",
    "workload_rules": "YAML file with your own kinds of jobs, in the format of `identify/kubernetes/kinds.yaml`",
    "team_rules": (
        "rules that assign a workload to the team that pays; the first rule with a result applies and is shown"
    ),
    "experiment_rules": "rules that assign a workload to an experiment, evaluated like `team_rules`",
    "user_rules": "rules that assign a pod to a user, evaluated like `team_rules`",
    "bill_to": (
        "who pays for a labeled experiment whose teams are derived from queues or namespaces: `experiment`, the team "
        "that started it; `namespace`, each team its own part"
    ),
    "prometheus_token_file": "path of a file with the bearer token for Prometheus",
    "prometheus_ca_file": "path of a file with the CA certificate for Prometheus",
    "prometheus_tenant": "tenant to query in a multi-tenant store (Mimir: X-Scope-OrgID)",
    "prometheus_history_hours": "hours of history that a new server reads from Prometheus when it first starts",
    "find_exporters": "whether the server scrapes GPU exporters that it finds among the cluster's pods: `yes` or `no`",
    "scrape_interval_s": (
        "seconds between two scrapes of a GPU exporter, 60 at most; longer intervals use less CPU, and shorter events"
        " can be missed"
    ),
    "energy_usd_per_kwh": "price of a kilowatt-hour, for `energy_usd`, which is not part of the bill; 0: unknown",
    "carbon_g_per_kwh": "grams of CO2e emitted per kilowatt-hour, for `co2e_g`; 0: unknown",
    "pue": "power usage effectiveness of the site, applied to both of these; `kwh` is the energy of the GPUs alone",
    "audit_log": (
        "whether the server records every request and its user in `audit.log` in the data folder: `yes` or `no`"
    ),
    "secure_cookie": (
        "`yes` if browsers reach the server only over https: the session cookie is then sent only over https"
    ),
    "proxy_addresses": (
        "addresses or networks of proxies that report the user; headers from other addresses are ignored"
    ),
    "proxy_user_header": "header in which the proxy reports the user: `X-Forwarded-User`",
    "proxy_team_header": "header in which the proxy reports the user's team; the user then sees only that team's data",
    "proxy_role": "role of proxied users: `viewer` or `team_viewer`; always `team_viewer` if there is a team header",
    "public_url": "address of this server for users, used for links in messages: https://pyrometer.example.com",
    "tell_min_usd_micro": (
        "minimum cost so far of a finding that is sent (micro-dollars); hangs and divergence are sent immediately, "
        "because their cost keeps growing"
    ),
    "webhook_url_file": "path of a file with the URL that messages are sent to; the URL is a secret",
    "webhook_form": (
        "format of these messages: `slack` for its incoming webhooks; `json` with the fields of the finding"
    ),
    "alertmanager_urls": "addresses of Alertmanagers that findings are sent to as alerts: http://127.0.0.1:9093",
    "alertmanager_token_file": "path of a file with the bearer token for Alertmanager",
    "report_at": 'time of the morning report, in the time zone of `timezone`: "07:00"; off when unset',
    "report_hours": "hours before `report_at` that the report covers",
    "report_file": (
        "path of the report (HTML), relative to the data folder unless it starts with `/`: reports/%Y-%m-%d.html"
    ),
    "otlp_endpoint": (
        "endpoint that metrics and traces are pushed to over OTLP/HTTP: http://collector:4318; `/v1/metrics` and "
        "`/v1/traces` are appended"
    ),
    "otlp_headers_file": "path of a file with headers for the endpoint, one per line: `Authorization: Bearer …`",
    "otlp_interval_s": "seconds between two pushes, 5 at least",
    "mlflow_tracking_uri": "address of an MLflow tracking server whose runs are imported: http://127.0.0.1:5000",
    "mlflow_token_file": "path of a file with its credentials: a bearer token, or `USER:PASSWORD`",
    "mlflow_stamp": "whether cost and findings are written to the MLflow runs: `yes` or `no`",
    "wandb_stamp": (
        "whether cost and findings are written to the W&B runs, by its client with the server's WANDB_API_KEY: `yes` "
        "or `no`"
    ),
    "wandb_dir": "path of a `wandb` folder with offline runs, which are written to instead of those on W&B's server",
    "lake": "lake that the server copies sealed data into: a shared folder or s3://BUCKET/PREFIX; off when unset",
    "lake_cache": (
        "folder that caches files of lakes in buckets; default: `~/.cache/pyrometer/lake`, or below XDG_CACHE_HOME"
    ),
    "lake_cache_mib": "maximum size of the cache in MiB; the least recently used files are removed first",
}


CHOICES = {
    "bill_to": ("experiment", "namespace"),
    "find_exporters": ("yes", "no"),
    "audit_log": ("yes", "no"),
    "secure_cookie": ("yes", "no"),
    "proxy_role": ("viewer", "team_viewer"),
    "webhook_form": ("slack", "json"),
    "mlflow_stamp": ("yes", "no"),
    "wandb_stamp": ("yes", "no"),
}
MIN_VALUES = {"pue": 1.0, "scrape_interval_s": 1}
MAX_VALUES = {"scrape_interval_s": 60}  # a sample is not valid for longer
MAX_NUMBER = 1_000_000
MAX_SMALL_NUMBER = 10**15  # of milliseconds or micro-dollars: 30,000 years, a billion dollars


class SettingError(ValueError):
    """An unknown setting or an invalid value."""


def with_values(settings: Settings, values: dict[str, object], origin: str) -> Settings:
    """Replaces values of settings. Errors name `origin`, the source of the values."""
    changes: dict[str, object] = {}
    for name, value in values.items():
        if name not in Settings._fields:
            raise SettingError(
                f"{origin}: there is no setting {reprlib.repr(name)}. Known: {', '.join(Settings._fields)}."
            )
        problem = f"{origin}: setting {name!r} has value {reprlib.repr(value)}."
        max_value = MAX_SMALL_NUMBER if name.endswith(("_ms", "_usd_micro")) else MAX_NUMBER
        fits, what, converted = _fitting(type(Settings._field_defaults[name]), value, max_value)
        if not fits:
            raise SettingError(f"{problem} Not {what}.")
        if name in CHOICES and converted not in CHOICES[name]:
            raise SettingError(f"{problem} Known: {', '.join(CHOICES[name])}.")
        if name in MIN_VALUES and isinstance(converted, int | float) and converted < MIN_VALUES[name]:
            raise SettingError(f"{problem} It must be at least {MIN_VALUES[name]}.")
        if name in MAX_VALUES and isinstance(converted, int | float) and converted > MAX_VALUES[name]:
            raise SettingError(f"{problem} It must be at most {MAX_VALUES[name]}.")
        changes[name] = converted
    return settings._replace(**changes)  # type: ignore[arg-type]


def _fitting(kind: type, value: object, max_value: int) -> tuple[bool, str, object]:
    """Whether a value from YAML or a variable has a setting's type, the name of that type, and the converted value."""
    if kind is str:
        return isinstance(value, str), "a text: put it in quotes", value  # YAML parses 10:30 as a number
    if kind is tuple:
        listed = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        fits = isinstance(listed, list) and all(isinstance(part, str) and part for part in listed)
        return fits, "a list of texts", tuple(listed) if isinstance(listed, list) else ()
    if kind is float:
        number = _number(value)
        return number is not None, f"a number from 0 to {MAX_NUMBER:,}", number
    count = _count(value)
    return 0 <= count <= max_value, f"a whole number from 0 to {max_value:,}", count


def _number(value: object) -> float | None:
    """A value from YAML or a variable as a number from 0 to MAX_NUMBER; None if it is not one."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number <= MAX_NUMBER else None


def _count(value: object) -> int:
    """A value from YAML or a variable as a whole number; -1 if it is not one."""
    if isinstance(value, str):
        digits = value.strip()
        return int(digits) if digits.isdecimal() and len(digits) <= len(str(MAX_SMALL_NUMBER)) else -1
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
