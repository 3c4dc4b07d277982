"""The kinds of events that accounting and findings read. Other kinds from sources are stored and shown."""

from typing import NamedTuple

# A checkpoint of `step` contains the updates of all earlier steps. An attempt that loads it continues with `step`.
CHECKPOINT_SAVED = "checkpoint_saved"  # of `step`; training was blocked for `duration_ms`
STUCK = "stuck"  # no progress of `rank` since `time_ms`: `reason` is its phase, `message` its stack
UNSTUCK = "unstuck"
NONFINITE_LOSS = "nonfinite_loss"  # the loss became NaN or infinite at `step`
FINITE_LOSS = "finite_loss"
LOOP_ENDED = "loop_ended"  # the program left its training loop and keeps its devices
LOOP_RESUMED = "loop_resumed"
ALIVE = "alive"  # the ranks of a node are alive and have nothing else to report
CONFIGURED = "configured"  # `reason` is the digest of the run's configuration, data set and seed
RENDEZVOUS = "rendezvous"  # the ranks have connected; it took `duration_ms` and ended at `time_ms`
COMPILED = "compiled"  # the model was compiled; it took `duration_ms` and ended at `time_ms`
RESTORED = "restored"  # a checkpoint of `step` was loaded; it took `duration_ms` and ended at `time_ms`
MLFLOW_RUN = "mlflow_run"  # the program has an MLflow run: `reason` is its id, `message` its location
WANDB_RUN = "wandb_run"  # the same for W&B; the id is entity/project/id
EXCEPTION = (
    "exception"  # it ended `rank`: `reason` is its type, `message` its type and text in one line, then the traceback
)
EXIT = "exit"  # `rank` failed without an exception: `reason` describes the exit code of its process
SDK_ERROR = "sdk_error"  # an error of the SDK, with fields like `exception`: the SDK no longer watches `rank`

# From Kubernetes, about a pod. The node is set once the pod has one.
IMAGE_PULLED = "image_pulled"  # it took `duration_ms` and ended at `time_ms`
FAILED_SCHEDULING = "failed_scheduling"  # `message`: "0/40 nodes are available: 3 Insufficient nvidia.com/gpu."
PREEMPTED = "preempted"  # the pod was killed to make room, or its spot node was reclaimed; `message` gives the reason
CONTAINER_RESTARTED = (
    "container_restarted"  # it ended and will be restarted; `reason`: OOMKilled, Error; `message`: its exit code
)
CONTAINER_STARTED = "container_started"  # it runs after a restart
OOM_KILLED = "oom_killed"  # the kernel of the node killed a process of the pod

# From Kueue, about a workload.
ADMITTED = "admitted"  # it may start; it waited in its queue for `duration_ms`
EVICTED = "evicted"  # it lost its quota; `reason` says why

# From GPU telemetry, about a device.
XID_ERROR = "xid_error"  # the driver reported an error: `reason` is its code, `message` its meaning, if known

# From the collector, about a cluster.
WATCHED = "watched"  # everything was observed up to here
WATCH_GAP = "watch_gap"  # the cluster was not watched for `duration_ms` from `time_ms`: changes were missed


class RestatingEvents(NamedTuple):
    """A pair of events. Between them a slot was in `state`, whatever the ledger had assumed before."""

    opens: str
    closes: str
    state: str
    whole_run: bool  # an event of one rank applies to all: they share one model


RESTATING = (
    RestatingEvents(STUCK, UNSTUCK, "hang", whole_run=False),
    RestatingEvents(NONFINITE_LOSS, FINITE_LOSS, "diverged", whole_run=True),
    RestatingEvents(LOOP_ENDED, LOOP_RESUMED, "idle_held", whole_run=False),
)
