"""The settings: one declared table. Values come from a YAML file or `PYROMETER_*` variables, and from nowhere else."""

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
    "idle_gap_ms": "GPU telemetry alone: no activity for longer than this is `idle_held`, shorter is `starved`",
    "startup_limit_ms": (
        "GPU telemetry alone: no activity since container start counts as `startup` for at most this long"
    ),
    "sample_reach_ms": "a GPU sample speaks for this long after it was taken; beyond is `unobserved`",
    "sample_jitter_ms": "a next sample that is late by up to this much leaves no gap",
    "hang_limit_ms": "no step for longer than this, and than ten of the run's slow steps, is a `hang`",
    "finding_min_ms": "findings that claim fewer GPU-milliseconds are not shown",
    "finding_min_usd_micro": (
        "findings that cost less (micro-dollars) are not shown; unpriced ones always are, and all with 0"
    ),
    "retention_days": "measurements and ledger older than this many days are dropped; 0 keeps everything",
    "price_book": "path of a YAML price book",
    "timezone": "time zone of days, hours and months, unless --tz says otherwise",
    "cluster": "the cluster's name in records; without it, that of the kubeconfig, or the identity of `kube-system`",
    "workload_rules": "path of a YAML file with kinds of jobs of your own, in the form of `identify/kinds.yaml`",
    "team_rules": "who pays for a workload: the first rule with an answer, and the answer says which",
    "experiment_rules": "which experiment a workload belongs to, in the same way",
    "user_rules": "whose pod it is, in the same way",
    "bill_to": (
        "who pays when a labelled experiment spans teams that only queues or namespaces name: `experiment`, the team "
        "that began it; `namespace`, each its own"
    ),
    "prometheus_token_file": "path of a file with the bearer token for Prometheus",
    "prometheus_ca_file": "path of a file with the authority that signed Prometheus' certificate",
    "prometheus_tenant": "whose data to ask for, where a store has several tenants (Mimir: X-Scope-OrgID)",
    "prometheus_history_hours": "how much of a Prometheus' past a new server reads when it first starts",
    "find_exporters": "whether a server scrapes GPU exporters that it finds among the cluster's pods: `yes` or `no`",
    "scrape_interval_s": (
        "how many seconds lie between two scrapes of a GPU exporter, 60 at most: the more, the less CPU; what is "
        "shorter is seen by chance"
    ),
    "energy_usd_per_kwh": "what a kilowatt-hour costs, for `energy_usd` beside the bill; 0 is not known",
    "carbon_g_per_kwh": "grams of CO2e that a kilowatt-hour emits, for `co2e_g`; 0 is not known",
    "pue": "what the site draws for each watt of its machines, in both of these; not in `kwh`, which is the GPUs' own",
    "audit_log": "whether a server writes who asked what into `audit.log` of its data folder: `yes` or `no`",
    "secure_cookie": (
        "`yes` where browsers reach the server over https only: a page's session is never sent over anything else"
    ),
    "proxy_addresses": "addresses or networks of proxies that say who asks; without any, nobody else's word counts",
    "proxy_user_header": "the header in which such a proxy says who asks: `X-Forwarded-User`",
    "proxy_team_header": "the header in which it says their team, whose data alone they see",
    "proxy_role": "what who comes by a proxy is: `viewer`, or `team_viewer`, as with a team header always",
    "public_url": "where people reach this server, for links in messages: https://pyrometer.example.com",
    "tell_min_usd_micro": (
        "findings that cost less (micro-dollars) so far are not told; what hangs or has diverged is told at once, and "
        "goes on costing"
    ),
    "webhook_url_file": "path of a file with the address that messages are sent to, which is a secret",
    "webhook_form": "what is sent there: `slack`, as its incoming webhooks take it; `json`, the finding's fields too",
    "alertmanager_urls": "addresses of Alertmanagers that findings are sent to as alerts: http://127.0.0.1:9093",
    "alertmanager_token_file": "path of a file with the bearer token for them",
    "report_at": 'when the morning report is made, in the settings\' time zone: "07:00"; without it there is none',
    "report_hours": "how many hours before that it is about",
    "report_file": "where it is written as HTML, in the data folder unless it begins with `/`: reports/%Y-%m-%d.html",
    "otlp_endpoint": (
        "where metrics and traces are pushed over OTLP/HTTP: http://collector:4318; `/v1/metrics` and `/v1/traces` are "
        "added"
    ),
    "otlp_headers_file": "path of a file with headers for it, one a line: `Authorization: Bearer …`",
    "otlp_interval_s": "how many seconds lie between two pushes, 5 at least",
    "mlflow_tracking_uri": "address of an MLflow tracking server whose runs are read as curves: http://127.0.0.1:5000",
    "mlflow_token_file": "path of a file with what it asks for: a bearer token, or `USER:PASSWORD`",
    "mlflow_stamp": "whether its runs are told what they cost and what was found: `yes` or `no`",
    "wandb_stamp": (
        "whether runs of W&B are told what they cost and what was found, by its client with the server's "
        "WANDB_API_KEY: `yes` or `no`"
    ),
    "wandb_dir": "path of a folder `wandb` with offline runs, which are told then in place of those on W&B's server",
    "lake": (
        "where a server copies what it has sealed, beside other clusters: a folder that others see, or "
        "s3://BUCKET/PREFIX; without it, nowhere"
    ),
    "lake_cache": (
        "folder for files of lakes in buckets, where they are read; without it, `~/.cache/pyrometer/lake`, or that of "
        "XDG_CACHE_HOME"
    ),
    "lake_cache_mib": "how large it may grow, in MiB: what was not used for longest goes first",
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
MAX_VALUES = {"scrape_interval_s": 60}  # a sample speaks for that long
MAX_NUMBER = 1_000_000
MAX_SMALL_NUMBER = 10**15  # of what is counted in milliseconds or micro-dollars: 30,000 years, a billion dollars


class SettingError(ValueError):
    """A setting that does not exist or whose value does not fit."""


def with_values(settings: Settings, values: dict[str, object], origin: str) -> Settings:
    """The settings with some values replaced; `origin` says in errors where they came from."""
    changes: dict[str, object] = {}
    for name, value in values.items():
        if name not in Settings._fields:
            raise SettingError(
                f"{origin}: there is no setting {reprlib.repr(name)}. Known: {', '.join(Settings._fields)}."
            )
        said = f"{origin}: setting {name!r} has value {reprlib.repr(value)}."
        most = MAX_SMALL_NUMBER if name.endswith(("_ms", "_usd_micro")) else MAX_NUMBER
        fits, what, converted = _fitting(type(Settings._field_defaults[name]), value, most)
        if not fits:
            raise SettingError(f"{said} Not {what}.")
        if name in CHOICES and converted not in CHOICES[name]:
            raise SettingError(f"{said} Known: {', '.join(CHOICES[name])}.")
        if name in MIN_VALUES and isinstance(converted, int | float) and converted < MIN_VALUES[name]:
            raise SettingError(f"{said} It is {MIN_VALUES[name]} at least.")
        if name in MAX_VALUES and isinstance(converted, int | float) and converted > MAX_VALUES[name]:
            raise SettingError(f"{said} It is {MAX_VALUES[name]} at most.")
        changes[name] = converted
    return settings._replace(**changes)  # type: ignore[arg-type]


def _fitting(kind: type, value: object, most: int) -> tuple[bool, str, object]:
    """Whether a value, as YAML or a variable has it, is of a setting's kind; what that is; and the value as such."""
    if kind is str:
        return isinstance(value, str), "a text: put it in quotes", value  # YAML takes 10:30 for a number
    if kind is tuple:
        listed = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        fits = isinstance(listed, list) and all(isinstance(part, str) and part for part in listed)
        return fits, "a list of texts", tuple(listed) if isinstance(listed, list) else ()
    if kind is float:
        number = _number(value)
        return number is not None, f"a number from 0 to {MAX_NUMBER:,}", number
    count = _count(value)
    return 0 <= count <= most, f"a whole number from 0 to {most:,}", count


def _number(value: object) -> float | None:
    """A value, as YAML or a variable has it, as a number that is neither negative nor absurd; None when it is none."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number <= MAX_NUMBER else None


def _count(value: object) -> int:
    """A value, as YAML or a variable has it, as a whole number; below 0 when it is none."""
    if isinstance(value, str):
        digits = value.strip()
        return int(digits) if digits.isdecimal() and len(digits) <= len(str(MAX_SMALL_NUMBER)) else -1
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
