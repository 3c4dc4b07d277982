"""What an answer can be grouped by."""

from __future__ import annotations

KUBEFLOW_GROUPINGS = (
    "pipeline",
    "pipeline_run",
    "pipeline_step",
    "sweep",
    "trial",
)  # null outside of pipelines and sweeps
# Columns of `ledger_named`, by what they describe.
HOLDER_GROUPINGS = (
    "team",
    "experiment",
    "workload",
    "namespace",
    "user",
    "queue",
    "pod",
    "outcome",
    *KUBEFLOW_GROUPINGS,
)
SLOT_GROUPINGS = ("node", "pool", "gpu_model", "cluster")
ROW_GROUPINGS = ("state", "cause")
TIME_GROUPINGS = ("hour", "day", "month")
GROUPINGS = (*HOLDER_GROUPINGS, *SLOT_GROUPINGS, *ROW_GROUPINGS, *TIME_GROUPINGS)
PRICE = "usd_micro_per_hour"
HELD = "held"  # whether a pod held the slot: a team may call itself `platform`
PLATFORM = "platform"  # the team that pays for slots that no pod held
