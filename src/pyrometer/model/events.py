"""The kinds of events that accounting and explanations read. Sources may bring others: they are kept and shown."""

from typing import NamedTuple

CHECKPOINT_SAVED = "checkpoint_saved"  # of `step`; `duration_ms` while it blocked
STUCK = "stuck"  # no progress of `rank` since `time_ms`: `reason` is its phase, `message` its stack
UNSTUCK = "unstuck"
NONFINITE_LOSS = "nonfinite_loss"  # the loss became NaN or infinite at `step`
FINITE_LOSS = "finite_loss"
LOOP_ENDED = "loop_ended"  # the program left its training loop and still holds its devices
LOOP_RESUMED = "loop_resumed"


class Restating(NamedTuple):
    """A pair of events between which a slot was in another state than it looked."""

    opens: str
    closes: str
    state: str
    whole_run: bool  # one rank speaks for all: they share one model


RESTATING = (
    Restating(STUCK, UNSTUCK, "hang", whole_run=False),
    Restating(NONFINITE_LOSS, FINITE_LOSS, "diverged", whole_run=True),
    Restating(LOOP_ENDED, LOOP_RESUMED, "idle_held", whole_run=False),
)
