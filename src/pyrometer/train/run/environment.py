"""The environment variables of the SDK, each declared once. `pyrometer run` sets them for its command."""

from __future__ import annotations

import os

VARIABLES = {
    "PYROMETER_ENDPOINT": "Where to send telemetry: a server or an OpenTelemetry Collector (https://host:4318), or a "
    "data folder (file:///path). If unset, the SDK does nothing.",
    "PYROMETER_TOKEN": "The bearer token for that server, with the role `ingest`.",
    "PYROMETER_CA_FILE": "A file with certificate authorities to trust in addition to those of the system.",
    "PYROMETER_RUN": "The name of the run. Default: its workload in Kubernetes, else a generated name.",
    "PYROMETER_EXPERIMENT": "The experiment that the run belongs to.",
    "PYROMETER_REDACT": "What is not sent: a list of stacks, samples, exceptions, paths, separated by commas.",
    "PYROMETER_SPOOL": "The folder where telemetry waits to be sent. Default: one folder per target, in /var/tmp.",
    "PYROMETER_SPOOL_MIB": "The maximum size of that folder in MiB. Above it, the least valuable telemetry is dropped "
    "and counted. Default: 256.",
    "PYROMETER_FLUSH_S": "How many seconds the end of a run waits until all telemetry is sent. Default: 10.",
    "PYROMETER_WINDOW_S": "The length of a step window in seconds, approximately. Default: 10.",
    "PYROMETER_HANG_LIMIT_S": "The minimum time in seconds without progress after which a rank is stuck. Default: 60.",
    "PYROMETER_NODE": "The name of this machine, if the host name is another one (in a container).",
    "PYROMETER_DISABLED": "1: the SDK does nothing, whatever else is set.",
    "PYROMETER_DEBUG": "1: errors of the SDK are printed to stderr.",
}


def read_number(name: str, default: float) -> float:
    """A number from a variable. A value that is not a number must not stop a training job, so the default applies."""
    try:
        value = float(os.environ.get(name, ""))
    except ValueError:
        return default
    return value if 0 <= value < 1e9 else default


def read_words(name: str) -> frozenset[str]:
    """The words of a variable, which are separated by commas."""
    return frozenset(word.strip() for word in os.environ.get(name, "").split(",")) - {""}
