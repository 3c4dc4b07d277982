"""The environment variables of the SDK, each declared once. `pyrometer run` sets them for its command."""

from __future__ import annotations

import os

VARIABLES = {
    "PYROMETER_ENDPOINT": "Where to send: a server or an OpenTelemetry Collector (https://host:4318), or a data folder "
    "(file:///path). Without it nothing happens.",
    "PYROMETER_TOKEN": "The bearer token of that server, with the role `ingest`.",
    "PYROMETER_CA_FILE": "Certificates of authorities to trust besides the system's.",
    "PYROMETER_RUN": "The name of the run. Default: its workload in Kubernetes, else one of its own.",
    "PYROMETER_EXPERIMENT": "The experiment that the run belongs to.",
    "PYROMETER_REDACT": "What is not sent, of: stacks, samples, exceptions, paths.",
    "PYROMETER_SPOOL": "The folder where telemetry waits to be sent. Default: one for each target, in /var/tmp.",
    "PYROMETER_SPOOL_MIB": "How large it may become; then what is worth least goes, and is counted. Default: 256.",
    "PYROMETER_FLUSH_S": "How long the end of a run waits for what is not sent yet. Default: 10.",
    "PYROMETER_WINDOW_S": "Steps of about so many seconds are folded into one window. Default: 10.",
    "PYROMETER_HANG_LIMIT_S": "After how many seconds without progress a rank is stuck, at least. Default: 60.",
    "PYROMETER_NODE": "The name of this machine, where it is not the host's own name (in a container).",
    "PYROMETER_DISABLED": "1: nothing is watched, whatever else is set.",
    "PYROMETER_DEBUG": "1: errors of the SDK are said on stderr.",
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
