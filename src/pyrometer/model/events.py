"""The kinds of events that accounting and explanations read. Sources may bring others: they are kept and shown."""

from typing import NamedTuple

# A checkpoint of `step` holds the updates of the steps before it: an attempt that loads it goes on with that step.
CHECKPOINT_SAVED = "checkpoint_saved"  # of `step`; `duration_ms` while it blocked
STUCK = "stuck"  # no progress of `rank` since `time_ms`: `reason` is its phase, `message` its stack
UNSTUCK = "unstuck"
NONFINITE_LOSS = "nonfinite_loss"  # the loss became NaN or infinite at `step`
FINITE_LOSS = "finite_loss"
LOOP_ENDED = "loop_ended"  # the program left its training loop and still holds its devices
LOOP_RESUMED = "loop_resumed"
ALIVE = "alive"  # nothing else is to be told of the ranks of a node, and they are there
CONFIGURED = "configured"  # what the run was told to do: `reason` is the digest of configuration, data set and seed
RENDEZVOUS = "rendezvous"  # the ranks have found each other; `duration_ms` it took, ending at `time_ms`
COMPILED = "compiled"  # the model was compiled; `duration_ms` it took, ending at `time_ms`
RESTORED = "restored"  # a checkpoint of `step` was loaded; `duration_ms` it took, ending at `time_ms`
MLFLOW_RUN = "mlflow_run"  # the program has a run of that tracker: `reason` is its id, `message` where it is
WANDB_RUN = "wandb_run"  # likewise; its id is entity/project/id
EXCEPTION = "exception"  # ended `rank`: `reason` is its type; `message` type and text in one line, then its traceback
EXIT = "exit"  # `rank` failed without an exception: `reason` is the exit code of its process, in words
SDK_ERROR = "sdk_error"  # an error of the SDK, like `exception`: it no longer watches `rank`

# Of Kubernetes: about a pod, with its node once it has one.
IMAGE_PULLED = "image_pulled"  # `duration_ms` it took, ending at `time_ms`
FAILED_SCHEDULING = "failed_scheduling"  # `message`: "0/40 nodes are available: 3 Insufficient nvidia.com/gpu."
PREEMPTED = "preempted"  # the pod was killed to make room, or its spot node was taken back; `message` says for what
CONTAINER_RESTARTED = (
    "container_restarted"  # ended, to be started again in its pod; `reason` (OOMKilled, Error), `message` its exit code
)
CONTAINER_STARTED = "container_started"  # it runs again
OOM_KILLED = "oom_killed"  # the kernel of the node killed a process of the pod

# Of Kueue: about a workload.
ADMITTED = "admitted"  # it may start; `duration_ms` it waited in its queue
EVICTED = "evicted"  # it had to give its quota back; `reason` says why

# Of GPU telemetry: about a device.
XID_ERROR = "xid_error"  # the driver reported an error: `reason` is its code, `message` what it means, where known

# Of the collector itself: about a cluster.
WATCHED = "watched"  # everything was seen up to here
WATCH_GAP = "watch_gap"  # for `duration_ms` from `time_ms` on nobody watched: who came and went was not seen


class RestatingEvents(NamedTuple):
    """A pair of events between which a slot was in another state than it looked."""

    opens: str
    closes: str
    state: str
    whole_run: bool  # one rank speaks for all: they share one model


RESTATING = (
    RestatingEvents(STUCK, UNSTUCK, "hang", whole_run=False),
    RestatingEvents(NONFINITE_LOSS, FINITE_LOSS, "diverged", whole_run=True),
    RestatingEvents(LOOP_ENDED, LOOP_RESUMED, "idle_held", whole_run=False),
)
