"""One rank: its identity, its parts, and the one thread that watches it and writes its telemetry.

The training thread writes numbers and short tuples. The rank's own thread folds them into windows, judges progress, and
puts messages into the spool, from where the sender of the node takes them.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import threading
import time
from collections.abc import Mapping
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from pyrometer.train.run import exits, identity
from pyrometer.train.run.checkpoints import CheckpointReports
from pyrometer.train.run.configuration import Configuration
from pyrometer.train.run.ending import Ending
from pyrometer.train.run.environment import read_number
from pyrometer.train.run.meeting import Meeting
from pyrometer.train.run.outbox import Outbox
from pyrometer.train.run.publisher import Publisher
from pyrometer.train.run.stall_detection import ProgressMonitor
from pyrometer.train.run.step_numbers import StepNumbers
from pyrometer.train.ship.sender import FLUSH_S, start_beside
from pyrometer.train.ship.spool import Spool
from pyrometer.train.steps import ring
from pyrometer.train.steps.gpu_memory import GpuMemory, report_out_of_memory
from pyrometer.train.steps.gpu_time import CudaTimer
from pyrometer.train.steps.metrics import Metrics, Steps
from pyrometer.train.steps.recorder import Recorder
from pyrometer.train.steps.step_windows import WORK_COLUMNS, StepWindows

if TYPE_CHECKING:
    from pyrometer.train.hooks.hook_installer import Hooks
    from pyrometer.train.run.sdk_settings import SdkSettings

BEAT_S = 1.0
PUBLISH_EVERY_S = 5.0
SENDER_EVERY_S = 60.0  # how often it is checked that the node has a sender
LAUNCH_WAIT_S = 60.0  # for rank 0 to publish the name of this launch
CLOSE_WAIT_S = 5.0
CLOSE_WAIT_FOR_STORE_S = 60.0
MAX_GPU_CANDIDATES = 64  # parameters that are searched for one on a GPU


class TrainingRank:
    """This process while it trains."""

    def __init__(self, hooks: Hooks, settings: SdkSettings, torch: Any) -> None:
        self._hooks = hooks
        self._settings = settings
        self._torch = torch
        self.spool = Spool(settings.spool).make()
        self.spool.set_aside(os.getpid())
        self.identity: dict[str, Any] = {**identity.identify(), **settings.identity}
        self.ring = ring.Ring.create(self.spool.ranks / f"{os.getpid()}.ring")
        self.outbox = Outbox()
        self.steps = StepNumbers(self.ring, self.outbox, settings.first_step)
        self.recorder = Recorder(self.ring)
        self.lineage = hooks.lineage
        self.metrics = Metrics(lambda: self.recorder.count, self._report_finite, self._trained)
        self.recorder.on_close = self.metrics.step_closed
        self.checkpoints = CheckpointReports(self.recorder, self.outbox, self.steps, self.identity)
        self.ending = Ending(self.recorder, self.outbox)
        self.progress = ProgressMonitor(
            self.recorder, self.outbox, self.steps, hooks.stack_timer, settings.hang_limit_s
        )
        self._meeting = Meeting(torch, settings.window_s)
        self.windows = StepWindows(
            self.recorder,
            self.outbox,
            self._meeting,
            self.progress,
            self.lineage,
            self.identity,
            settings.flops_per_sample,
        )
        self._publisher = Publisher(
            self.spool, self.identity, self.recorder, self.outbox, self.steps, self.lineage, self.metrics
        )
        self._knows_launch = self.identity["ranks"] == 1
        self._launch_wanted_since_s: float | None = None  # the rank trains, and does not know the name of its launch
        self._reported_first_step = False
        self._gpu_index: int | None = None
        self._published_ns = 0
        self._sender_due_s = 0.0
        self._has_ended = False
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self.outbox.run()
        for (kind, name), message in self._hooks.tracked.items():  # tracker runs that began before the training
            self.outbox.event(kind, reason=name, message=message)
        if self._knows_launch:
            self._register()  # now: the process may die at any moment
        self._ensure_sender()
        threading.Thread(target=self._run, name="pyrometer", daemon=True).start()
        atexit.register(self.close)
        if multiprocessing.parent_process() is not None:  # such a process ends without `atexit`
            Finalize(None, self._child_exits, exitpriority=0)

    # -- called by the hooks ------------------------------------------------------------------------------------------

    def joined_group(self, duration_ns: int) -> None:
        """The process group is complete: the number of this rank and of all ranks are known."""
        distributed = self._torch.distributed
        self.identity.update(rank=distributed.get_rank(), ranks=distributed.get_world_size())
        self.outbox.event("rendezvous", duration_ms=duration_ns // 1_000_000)
        if self.identity["rank"] == 0:
            self._detect_restart()
        self._meeting.join(
            self.identity["rank"], self.identity["ranks"], self.identity["launch"], self.identity.get("restart_of")
        )
        self._knows_launch = False
        self.outbox.urgent.set()  # so that the watcher knows the rank from its first step on
        self.recorder.last_ns = self.recorder.begin_ns = time.perf_counter_ns()

    def _detect_restart(self) -> None:
        """A launcher that starts its processes again, after a death or with other ranks, makes another attempt."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return
        first = self.spool.first_launch(self.identity["launch"])
        if first != self.identity["launch"]:
            self.identity["restart_of"] = first

    def first_step_done(self, optimizer: Any, parameters: list[Any]) -> None:
        """The first step is done: the model is complete and on its device, and the training loop is on the stack."""
        self.progress.find_loops(self._torch)
        self.windows.budget.estimate()
        if self.identity["rank"] == 0:
            self._publisher.configure(Configuration(self._torch, optimizer, self.identity["ranks"]))
        on_gpu = next((parameter for parameter in parameters[:MAX_GPU_CANDIDATES] if parameter.is_cuda), None)
        if on_gpu is not None:
            self._gpu_index = on_gpu.device.index  # each thread has a current device of its own
            self.recorder.device = CudaTimer(self._torch)
            self.windows.memory = GpuMemory(self._torch, self._gpu_index)
            report_out_of_memory(self._torch, self._hooks)

    def compiled(self) -> None:
        """A graph was compiled: the newest mark tells how long it took."""
        marks = self.recorder.marks
        if marks:
            _, from_ns, to_ns = marks[-1]
            self.outbox.event("compiled", duration_ms=(to_ns - from_ns) // 1_000_000)

    def framework_begins(self, name: str, step: int | None) -> None:
        """A framework begins to train, with this step."""
        self.identity["framework"] = name
        if step is not None and not self.recorder.count:
            self.steps.take_from_framework(step)

    def sdk_failed(self, error: BaseException) -> None:
        """Reports an error of the SDK, once. The program continues without the SDK."""
        self.outbox.event("sdk_error", urgent=True, reason=type(error).__name__, message=exits.describe(error))

    # -- values that the program logs ---------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any], step: int | None, goals: Mapping[str, str] | None) -> None:
        """Records the values of `pyrometer.log`."""
        try:
            counted = {name: values[name] for name in WORK_COLUMNS if isinstance(values.get(name), int)}
            reported = self.recorder.work.reported
            for name, number in counted.items():
                # The first report of the program replaces what the SDK counted itself.
                before = self.recorder.row[WORK_COLUMNS[name]] if name in reported else 0
                self.recorder.row[WORK_COLUMNS[name]] = before + number
                reported.add(name)
            others = {name: value for name, value in values.items() if name not in counted}
            self.metrics.log(others, step=step, goals=goals, device=self.recorder.device)
        except Exception as error:
            self._hooks.disable(error)

    def log_received(
        self, values: Mapping[str, Any], step: int | None, source: str, of_training: bool | None = None
    ) -> None:
        """Records values that the program logs to a tracker or a framework."""
        try:
            self.metrics.log(values, step=step, device=self.recorder.device, source=source, of_training=of_training)
        except Exception as error:
            self._hooks.disable(error)

    def _trained(self) -> Steps | None:
        """The step that is being trained, or that was trained last while the next one has only loaded its data.

        Where the forward of the model is not seen, the next step may have begun or not: then it is one of two. None
        before the first step, and for another thread than the one that trains, which may report a value at any later
        time.
        """
        recorder = self.recorder
        count = recorder.count
        if threading.get_ident() != recorder.thread:
            return None
        if recorder.has_begun():
            return count, count
        if not count:
            return None
        return count - 1, count - 1 if self.lineage.sees_forwards else count

    def _report_finite(self, kind: str, count: int, value: float) -> None:
        self.outbox.event(kind, urgent=True, step=self.steps.number(count), reason=str(value))

    # -- the rank's own thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._has_ended:
                self.outbox.urgent.wait(BEAT_S)
                urgent = self.outbox.urgent.is_set()
                self.outbox.urgent.clear()
                with self._lock:
                    if self._has_ended:
                        return
                    self._beat()
                    if urgent or time.perf_counter_ns() - self._published_ns > PUBLISH_EVERY_S * 1e9:
                        self.publish(urgent=urgent)
        except Exception as error:
            self._hooks.disable(error)

    def _beat(self) -> None:
        now_ns = time.perf_counter_ns()
        self.ring.view[ring.BEAT_NS] = now_ns
        self.metrics.refill()
        self._ensure_sender()
        self._await_launch()
        self.progress.check(now_ns)
        if self._fold():
            self.publish(urgent=True)  # the windows of the other ranks arrive at nearly the same time

    def _fold(self) -> bool:
        """Reports the first step, and closes windows that are complete. Returns whether there was one."""
        view = self.ring.view
        if view[ring.COUNT] and not self._reported_first_step:
            self._reported_first_step = True
            self._report_first_step()
        if view[ring.FOLDED] <= 1:
            self.steps.take_from_logs(self.metrics.steps)
        return self.windows.close_complete()

    def _report_first_step(self) -> None:
        self.identity.update(identity.device(self._torch, self._gpu_index))
        self._register()
        overwritten = self.recorder.count >= self.ring.rows
        end_ns = self.ring.view[ring.MOVED_NS] if overwritten else self.ring.column(ring.END_NS, 0, 1)[0]
        self.outbox.run(first_step_ms=self.ring.wall_ns(end_ns) // 1_000_000)

    def publish(self, *, urgent: bool = False) -> None:
        """Writes what is new into the spool, once it is known which launch it belongs to."""
        self._published_ns = time.perf_counter_ns()
        if self._knows_launch:
            self.checkpoints.report(final=self._has_ended)
            self._publisher.publish(urgent=urgent, final=self._has_ended)

    def _ensure_sender(self) -> None:
        """The first rank of a node starts a sender, unless `pyrometer run` or another process sends already."""
        if self._settings.endpoint and self.identity["local_rank"] == 0 and time.monotonic() >= self._sender_due_s:
            self._sender_due_s = time.monotonic() + SENDER_EVERY_S
            start_beside(self.spool.folder, self._settings.endpoint)

    def _await_launch(self) -> None:
        """Registers the rank once rank 0 has published the name of the launch, or after a limit without it."""
        if self._knows_launch:
            return
        launch = self._learn_launch()
        if self._launch_wanted_since_s is None and self.recorder.count:  # a rendezvous has no time limit
            self._launch_wanted_since_s = time.monotonic()
        since_s = self._launch_wanted_since_s
        waited_s = time.monotonic() - since_s if since_s is not None else 0.0
        self._knows_launch = launch is not None or waited_s > LAUNCH_WAIT_S
        if self._knows_launch:
            self._register()

    def _learn_launch(self) -> str | None:
        launch = self._meeting.launch()
        if launch is not None:
            self.identity["launch"] = launch
            if self._meeting.restart_of is not None:
                self.identity["restart_of"] = self._meeting.restart_of
        return launch

    def _register(self) -> None:
        """Tells the watcher of the node who this rank is, and how long it may make no progress."""
        self.spool.register(self.identity, self.progress.limits_s())

    # -- the end ------------------------------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> None:
        """An exception ended the training. Its process continues, for a framework."""
        self.ending.failed(error)
        self.close("failed")

    def exiting_at_once(self, code: Any, caught: BaseException | None) -> None:
        """The program calls `os._exit`. This must be quick, so only an exception is written to the spool."""
        explanation = self.ending.exiting_at_once(code, caught, can_report=self._knows_launch)
        if explanation is not None:
            self.spool.put(self.identity, [explanation], urgent=True)

    def _child_exits(self) -> None:
        self.ending.child_exiting()
        self.close()

    def close(self, outcome: str | None = None) -> None:
        """Writes the last messages. The sender, another process, sends them and reads the exit code."""
        if self._has_ended or os.getpid() != self.identity["pid"]:
            return
        if outcome is not None:
            self.ring.view[ring.EXIT] = 0  # the rank has ended, whatever the exit code of its process
        else:
            outcome = self.ending.conclude()
        if not self._lock.acquire(timeout=CLOSE_WAIT_S) and not (
            # A thread that returns from C++ after Python has ended is unwound, and takes the process with it.
            self._meeting.is_calling and self._lock.acquire(timeout=CLOSE_WAIT_FOR_STORE_S)
        ):
            return  # the rank's thread waits for a dead disk: the program does not, and the watcher has the ring
        try:
            self._close(outcome)
        except Exception as error:
            self._hooks.disable(error)
        finally:
            self._lock.release()

    def _close(self, outcome: str | None) -> None:
        self.recorder.finish()
        self.metrics.finish(self.recorder.device)
        self.lineage.finish()
        self._has_ended = True
        self._hooks.detach()
        self.progress.close()
        if not self._knows_launch:
            self._learn_launch()
            self._knows_launch = True
        self._fold()
        self.windows.close_last()
        if "device" not in self.identity:
            self.identity.update(identity.device(self._torch, self._gpu_index))
        if outcome is not None:
            self.outbox.run(ended_ms=time.time_ns() // 1_000_000, outcome=outcome)
        self.publish()
        self._register()
        self.ring.view[ring.BEAT_NS] = time.perf_counter_ns()
        self.ring.view[ring.ENDED] = 1
        self.outbox.urgent.set()
        if os.getpid() == 1:  # the container ends with this process, and the sender with it
            self.spool.wait_sent(read_number("PYROMETER_FLUSH_S", FLUSH_S))
