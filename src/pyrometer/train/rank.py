"""One rank: everything of this process that is handed on, and the one thread that does it.

The training thread writes numbers and short tuples; this thread folds them, watches whether the rank comes forward, and
puts what there is to say into the spool, from where the sender of the node takes it.
"""

from __future__ import annotations

import atexit
import faulthandler
import math
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from statistics import median
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, TypeGuard

from pyrometer.train import exits, fold, identity, loop, ring
from pyrometer.train.configuration import BATCHES, Configuration
from pyrometer.train.device import CudaTimer
from pyrometer.train.environment import read_number
from pyrometer.train.lineage import BatchNamer
from pyrometer.train.meeting import Meeting
from pyrometer.train.metrics import Metrics, Steps
from pyrometer.train.recorder import Recorder, cost_of_marks_ns
from pyrometer.train.sender import FLUSH_S, start_beside
from pyrometer.train.spool import Spool
from pyrometer.train.stall_limits import stall_limits_s

if TYPE_CHECKING:
    from pyrometer.train.hooks import Hooks
    from pyrometer.train.settings import SdkSettings

BEAT_S = 1.0
HAND_ON_EVERY_S = 5.0
SENDER_EVERY_S = 60.0
LAUNCH_WAIT_S = 60.0  # for rank 0 to say what this launch is called
LAST_WAIT_S = 5.0
LAST_WAIT_FOR_STORE_S = 60.0
MOST_STACK = 16_384
FAR_ON = 10  # steps: less is a habit of counting
MOST_EVENTS = 10_000
BUDGET_NS = 18_000  # a step, on average, for the marks on the host: with some room below the 20 µs
BUDGET_SHARE = 0.015  # and the 2 % of a step that are promised;
NOT_FELT = 0.001  # but as long as it is less than this of a step, all are marked
LIGHT_SHARE = 1 / 4  # of the cost of a marked step has one that is not
SLOWLY = 4  # the newest measurement of that cost counts for one part in as many
ENOUGH = 32  # steps, to know how long they are
MOST_BETWEEN = 64  # steps from one that is marked to the next
_UNITS = {"samples": ring.SAMPLES, "tokens": ring.TOKENS}
SAVES_TOGETHER_NS = 5_000_000_000  # files that are saved one after the other are one checkpoint


class TrainingRank:
    """This process, as long as it trains."""

    def __init__(self, hooks: Hooks, told: SdkSettings, torch: Any) -> None:
        self._hooks = hooks
        self._told = told
        self._torch = torch
        self.spool = Spool(told.spool).make()
        self.spool.set_aside(os.getpid())
        self.identity: dict[str, Any] = {**identity.identify(), **told.identity}
        self.ring = ring.Ring.create(self.spool.ranks / f"{os.getpid()}.ring")
        self.ring.view[ring.FIRST_STEP] = told.first_step or 0
        self._step_told = self._step_known = told.first_step is not None
        self.recorder = Recorder(self.ring)
        self.lineage = hooks.lineage
        self.metrics = Metrics(lambda: self.recorder.count, self._judged, self._trained)
        self.recorder.on_close = self.metrics.step_closed
        self._namer = BatchNamer()
        self._meeting = Meeting(torch, told.window_s)
        self._met = self.identity["ranks"] == 1
        self._waiting: deque[fold.Message] = deque(maxlen=MOST_EVENTS)
        self._loops: list[loop.Loop] = []  # that may be the training loop, the nearest first
        self.flops = told.flops_per_sample  # a sample; by token where there are any
        self._flops_by = "samples"
        self._first_step_told = False
        self._saves: list[tuple[int, str, int, int, int]] = []  # when, path, nanoseconds, bytes, of which step
        self._restored_from: tuple[str, int | None] | None = None
        self._gpu: int | None = None
        self._cost_ns = self._least_cost_ns = 0  # of the marks of a step: roughly, then as measured
        self._memory_peak = 0
        self._p99_s = 0.0
        self._slowest_s: deque[float] = deque([0.0] * 4, maxlen=5)  # steps of the last windows
        self._configuration: Configuration | None = None  # until it was told
        self._configured_ms = 0
        self._first_batches: list[dict[str, Any]] = []
        self._loop_ended = 0
        self._left: tuple[int, BaseException | None] | None = None  # at which step, and with which exception
        self._handed_ns = 0
        self._wake = threading.Event()
        self._ended = False
        self._lock = threading.Lock()
        self._stack: IO[str] | None = None
        self._faulthandler_taken = False
        self._alone_since_s: float | None = None  # training, and not knowing what this launch is called
        self.say_run()
        for (kind, named), words in hooks.tracked.items():  # it may have begun before the training did
            self.event(kind, reason=named, message=words)
        if self._met:
            self._register()  # its process may be gone at any moment
        self._sender_due_s = 0.0
        self._have_sender()
        self._thread = threading.Thread(target=self._keep, name="pyrometer", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        if multiprocessing.parent_process() is not None:  # such a process has an end of its own
            Finalize(None, self._child_ends, exitpriority=0)

    # -- what the hooks tell ------------------------------------------------------------------------------------------

    def met(self, took_ns: int) -> None:
        """The ranks have found each other."""
        distributed = self._torch.distributed
        self.identity |= {"rank": distributed.get_rank(), "ranks": distributed.get_world_size()}
        self.event("rendezvous", duration_ms=took_ns // 1_000_000)
        if self.identity["rank"] == 0:
            self._say_if_restarted()
        self._meeting.join(
            self.identity["rank"], self.identity["ranks"], self.identity["launch"], self.identity.get("restart_of")
        )
        self._met = False
        self._wake.set()  # so that the watcher knows it from its first step on
        self.recorder.last_ns = self.recorder.begin_ns = time.perf_counter_ns()

    def _say_if_restarted(self) -> None:
        """The launcher began again after a death, or with other ranks: this is another attempt at what it launched."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return
        first = self.spool.first_launch(self.identity["launch"])
        if first != self.identity["launch"]:
            self.identity["restart_of"] = first

    def first_step(self, optimizer: Any, parameters: list[Any]) -> None:
        """The first step is over: the model is complete, on its device, and the loop is known."""
        libraries = (Path(self._torch.__file__).parent, Path(__file__).parent)
        self._loops = loop.enclosing_loops(sys._getframe(), [f"{folder}{os.sep}" for folder in libraries])
        self._cost_ns = cost_of_marks_ns()
        self._least_cost_ns = self._cost_ns // 2
        if self.identity["rank"] == 0:
            self._configuration = Configuration(self._torch, optimizer, self.identity["ranks"])
            self._configured_ms = time.time_ns() // 1_000_000
        on_gpu = next((parameter for parameter in parameters[:64] if parameter.is_cuda), None)
        if on_gpu is not None:
            self._gpu = on_gpu.device.index  # a thread's own current device says nothing of another's
            self.recorder.device = CudaTimer(self._torch)
            self._watch_memory()

    def still_in_loop(self, frame: FrameType) -> None:
        """Data is fetched, a backward begins: a loop that does not go on here is only a part of the training loop."""
        if len(self._loops) > 1:
            self._loops = [loop for loop in self._loops if loop.contains(frame)] or self._loops

    def counted(self, operations: int) -> None:
        """The step, as far as it has come, took so many operations."""
        samples, tokens = (self.recorder.row[column] for column in _UNITS.values())
        self._flops_by = "tokens" if tokens else "samples"
        if operations and (tokens or samples):
            self.flops = operations / (tokens or samples)

    def compiled(self) -> None:
        """A graph was compiled."""
        marks = self.recorder.marks
        if marks:
            _, from_ns, to_ns = marks[-1]
            self.event("compiled", duration_ms=(to_ns - from_ns) // 1_000_000)

    def saved(self, path: str, took_ns: int) -> None:
        """A file was saved."""
        if not self.recorder.count and not self.recorder.closable:
            return
        size = _size(Path(path), self.identity["rank"]) if path else 0
        self._saves.append((time.time_ns(), path, took_ns, size, self.recorder.count))

    def framework(self, name: str, step: int | None) -> None:
        """A framework begins to train, with this step: it knows better than the state of an optimizer."""
        self.identity["framework"] = name
        if step is not None and step != self.step(0) and not self._step_told and not self.recorder.count:
            self.begin_at(step)

    def restored(self, path: str, took_ms: int, step: int | None) -> None:
        """An optimizer got its state back, before the first step."""
        if self.recorder.count:
            return
        if step is not None and not self._step_known:
            self.begin_at(step)
        if (path, step) == self._restored_from:
            return  # another optimizer, from the same checkpoint
        self._restored_from = (path, step)
        self.event("restored", duration_ms=took_ms, step=step, message=path)

    def begin_at(self, step: int) -> None:
        """The number of the first step of this process."""
        self._step_known = True
        self.ring.view[ring.FIRST_STEP] = step
        if step:
            self.say_run(resumed_step=step)
            self._wake.set()  # a life that ends at once has still resumed

    def broken(self, error: BaseException) -> None:
        """An error of ours. It is told once; the program goes on without us."""
        self.event("sdk_error", reason=type(error).__name__, message=exits.describe(error))
        self._wake.set()

    def excepted(self, error: BaseException) -> None:
        """An exception ended what this rank does; its process goes on, for a framework."""
        self._waiting.append(_exception(error))
        self.close("failed")

    def _watch_memory(self) -> None:
        """Tells of a GPU that has no memory left, also where the program catches the error and goes on."""
        attach = getattr(self._torch._C, "_cuda_attach_out_of_memory_observer", None)

        def ran_out(device: int, asked: int, held: int, free: int) -> None:
            rank = self._hooks.rank
            if rank is not None:
                wanted = f"{asked >> 20} MiB asked for on device {device}, {held >> 20} held, {free >> 20} free"
                rank.event("out_of_memory", step=rank.step(rank.recorder.count), message=wanted)

        if attach is not None and not self._hooks.observes_memory:
            self._hooks.observes_memory = True
            attach(ran_out)

    def leaving(self, code: Any, caught: BaseException | None) -> None:
        """The program calls `sys.exit`, perhaps because of an exception that it caught."""
        failed = code not in (None, 0)
        if failed and not _is_failure(caught):
            caught = SystemExit(code)
        self._left = (self.recorder.count, caught) if failed else None
        self.ring.view[ring.LEFT_NS] = time.perf_counter_ns() if failed else 0

    def leaving_at_once(self, code: Any, caught: BaseException | None) -> None:
        """The program calls `os._exit`. Nothing here may take long, so only an exception is handed on."""
        self.ring.view[ring.BEAT_NS] = self.ring.view[ring.LEFT_NS] = time.perf_counter_ns()
        error = exits.uncaught() or caught
        if code and self._met and _is_failure(error):
            self.spool.put(self.identity, [self._explained(error)], urgent=True)

    def _child_ends(self) -> None:
        """The end of a process of `multiprocessing`, which handles the exception itself, after this."""
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            self.leaving(error.code, error.__context__)
        elif error is not None:
            self._left = self.recorder.count, error
        self.close()

    def log(self, values: Mapping[str, Any], step: int | None, goals: Mapping[str, str] | None) -> None:
        """What the program logs itself."""
        try:
            counted = {name: values[name] for name in _UNITS if isinstance(values.get(name), int)}
            reported = self.recorder.work.reported
            for name, read_number in counted.items():
                before = self.recorder.row[_UNITS[name]] if name in reported else 0  # what we counted ourselves
                self.recorder.row[_UNITS[name]] = before + read_number
                reported.add(name)
            others = {name: value for name, value in values.items() if name not in counted}
            self.metrics.log(others, step=step, goals=goals, device=self.recorder.device)
        except Exception as error:
            self._hooks.broken(error)

    def log_received(
        self, values: Mapping[str, Any], step: int | None, source: str, of_training: bool | None = None
    ) -> None:
        """What the program gives to somebody else: a tracker, a framework."""
        try:
            self.metrics.log(values, step=step, device=self.recorder.device, source=source, of_training=of_training)
        except Exception as error:
            self._hooks.broken(error)

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

    def _judged(self, kind: str, count: int, value: float) -> None:
        self.event(kind, step=self.step(count), reason=str(value))
        self._wake.set()

    # -- messages -----------------------------------------------------------------------------------------------------

    def step(self, count: int) -> int:
        """The global number of a step."""
        return self.ring.view[ring.FIRST_STEP] + count

    def event(self, kind: str, *, at_ms: int | None = None, **more: Any) -> None:
        """Something happened."""
        told = {name: value for name, value in more.items() if value is not None}
        self._waiting.append(("event", {"time_ms": at_ms or time.time_ns() // 1_000_000, "kind": kind, **told}))

    def say_run(self, **news: Any) -> None:
        """News about this rank."""
        self._waiting.append(("run", {"time_ms": time.time_ns() // 1_000_000, **news}))

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        try:
            while not self._ended:
                self._wake.wait(BEAT_S)
                told_now = self._wake.is_set()
                self._wake.clear()
                with self._lock:
                    if self._ended:
                        return
                    self._beat()
                    if told_now or time.perf_counter_ns() - self._handed_ns > HAND_ON_EVERY_S * 1e9:
                        self.hand_on(urgent=told_now)
        except Exception as error:
            self._hooks.broken(error)

    def _beat(self) -> None:
        view = self.ring.view
        now_ns = time.perf_counter_ns()
        view[ring.BEAT_NS] = now_ns
        self.metrics.refill()
        self._have_sender()
        self._agree()
        self._watch(now_ns)
        if self._fold():
            self.hand_on(urgent=True)  # those of the other ranks are there at the same time, or nearly so

    def _have_sender(self) -> None:
        """The first rank of a node sees to it that somebody sends: `pyrometer run`, or a process that it starts."""
        if self._told.endpoint and self.identity["local_rank"] == 0 and time.monotonic() >= self._sender_due_s:
            self._sender_due_s = time.monotonic() + SENDER_EVERY_S
            start_beside(self.spool.folder, self._told.endpoint)

    def _agree(self) -> None:
        """What this launch is called, and where windows end: the same on all ranks."""
        if not self._met:
            launch = self._learn_launch()
            if self._alone_since_s is None and self.recorder.count:  # how long a rendezvous takes is not ours to limit
                self._alone_since_s = time.monotonic()
            waited_s = time.monotonic() - self._alone_since_s if self._alone_since_s is not None else 0.0
            self._met = launch is not None or waited_s > LAUNCH_WAIT_S
            if self._met:
                self._register()

    def _learn_launch(self) -> str | None:
        """What this launch is called, if rank 0 has said it."""
        launch = self._meeting.launch()
        if launch is not None:
            self.identity["launch"] = launch
            if self._meeting.restart_of is not None:
                self.identity["restart_of"] = self._meeting.restart_of
        return launch

    def _register(self) -> None:
        """Leaves word for the process that watches this one."""
        self.spool.register(self.identity, self._limits())

    def _limits(self) -> dict[str, float]:
        return stall_limits_s(self._told.hang_limit_s, self._p99_s)

    def _fold(self) -> bool:
        """Closes windows that are over."""
        view = self.ring.view
        count = view[ring.COUNT]
        if count and not self._first_step_told:
            self._first_step_told = True
            self._first(view)
        folded = max(view[ring.FOLDED], 1)
        if folded == 1 and not self._step_known:
            self._hear_step()
        if folded == 1 and count > ENOUGH:  # before the first window is over
            self._keep_budget(fold.median_step_ns(self.ring, count - ENOUGH, count))
        closed = False
        while True:
            after = self._meeting.window_end(folded, count, self._steps_s)
            if after is None or after > count:
                break
            self._window(folded, after)
            folded = after
            closed = True
        if self._meeting.size:
            boundary = (count // self._meeting.size + 1) * self._meeting.size
            if self.recorder.whole_at > boundary or self.recorder.whole_at < count:
                self.recorder.whole_at = boundary
        return closed

    def _hear_step(self) -> None:
        """A program that resumed without telling numbers its metrics further on than we count: always as far."""
        offsets = {step - count for count, step in self.metrics.steps}
        if len(self.metrics.steps) >= 3 and len(offsets) == 1 and min(offsets) >= FAR_ON:
            self.begin_at(offsets.pop())

    def _first(self, view: memoryview) -> None:
        self.identity |= identity.device(self._torch, self._gpu)
        self._register()
        end_ns = self.ring.column(ring.END_NS, 0, 1)[0] if self.recorder.count < self.ring.rows else view[ring.MOVED_NS]
        self.say_run(first_step_ms=self.ring.wall_ns(end_ns) // 1_000_000)

    def _steps_s(self, first: int, after: int) -> float:
        """How long steps took, from the first to the last."""
        (begin_ns,) = self.ring.column(ring.BEGIN_NS, first, first + 1)
        (end_ns,) = self.ring.column(ring.END_NS, after - 1, after)
        return (end_ns - begin_ns) / 1e9

    def _window(self, first: int, after: int) -> None:
        device = self.recorder.device
        found = fold.window(self.ring, first, after, list(device.resolved) if device is not None else ())
        self.ring.view[ring.FOLDED] = after
        if found is None:
            return
        if device is not None:
            while device.resolved and device.resolved[0].number < after:
                device.resolved.popleft()
            found |= self._memory()
        if self.flops and found.get(self._flops_by):
            found["flops"] = int(self.flops * found[self._flops_by])
        self._waiting.append(("window", found))
        slow_s = found["step_max_us"] / 1e6
        self._slowest_s.append(slow_s)
        if slow_s > self._limits()["default"]:  # it hung, which says nothing of others; unless those are as slow
            slow_s = median(self._slowest_s)
        self._p99_s = max(slow_s, 0.9 * self._p99_s)
        self.recorder.slow_ns = 2 * found["step_p50_us"] * 1000
        cost_ns = fold.cost_of_marks_ns(self.ring, first, after)
        if cost_ns is not None:
            self._cost_ns = max(self._cost_ns + (cost_ns - self._cost_ns) // SLOWLY, self._least_cost_ns)
        self._keep_budget(found["step_p50_us"] * 1000)

    def _keep_budget(self, step_ns: int) -> None:
        """Where marks would be felt, only some steps are marked. With several ranks all of them are, since it matters
        in which phase one waits for another; and with a loader, since all its batches are paired."""
        alone = self.identity["ranks"] == 1 and not self.lineage.loaders
        budget_ns = max(min(BUDGET_NS, BUDGET_SHARE * step_ns), NOT_FELT * step_ns)
        left_ns = max(budget_ns - LIGHT_SHARE * self._cost_ns, 1)
        fits = self._cost_ns <= budget_ns or not alone
        self.recorder.every = 1 if fits else min(math.ceil(self._cost_ns / left_ns), MOST_BETWEEN)

    def _memory(self) -> dict[str, int]:
        """What the allocator holds. Its peak is never reset: the program may be reading it."""
        stats = self._torch.cuda.memory_stats(self._gpu)
        peak = stats.get("allocated_bytes.all.peak", 0)
        shown = peak if peak > self._memory_peak else stats.get("allocated_bytes.all.current", 0)
        self._memory_peak = peak
        return {
            "memory_peak_mib": shown >> 20,
            "memory_reserved_mib": stats.get("reserved_bytes.all.current", 0) >> 20,
        }

    def hand_on(self, *, urgent: bool = False) -> None:
        """Puts everything that there is to say into the spool."""
        self._handed_ns = time.perf_counter_ns()
        if not self._met:
            return
        self._together()
        messages: list[fold.Message] = []
        while self._waiting:
            messages.append(self._waiting.popleft())
        kept = [self.recorder.kept.popleft() for _ in range(len(self.recorder.kept))]
        used = [self.lineage.used.popleft() for _ in range(len(self.lineage.used))]
        for whole in kept:
            messages += fold.spans(self.ring, whole, used, self.identity["launch"], self.identity["rank"])
        for one in used:
            batch = self._namer.batch(one, self.step(one.number), self.ring.wall_ns(one.at_ns))
            messages.append(("batch", batch))
            if len(self._first_batches) < BATCHES:
                self._first_batches.append(batch)
        self._say_configured(messages)
        while self.metrics.waiting:
            value = self.metrics.waiting.popleft()
            step = value.step if value.step is not None else self.step(value.number)
            metric = {"time_ms": value.at_ns // 1_000_000, "name": value.name, "value": value.value, "step": step}
            metric["source"] = value.source
            if value.goal:
                metric["goal"] = value.goal
            if value.covers is not None:
                metric["first_step"], metric["last_step"] = map(self.step, value.covers)
            messages.append(("metric", metric))
        if messages:
            self.spool.put(self.identity, messages, urgent=urgent)

    def _say_configured(self, messages: list[fold.Message]) -> None:
        """What this run was told to do, once its first batches are known, or are not going to be."""
        told = self._configuration
        batches = self._first_batches
        without = not batches and self.ring.view[ring.FOLDED] > 1
        if told is not None and (len(batches) == BATCHES or without or self._ended):
            self._configuration = None
            said = {"kind": "configured", "reason": told.digest(batches), "message": told.text(batches)}
            messages.append(("event", {"time_ms": self._configured_ms, **said}))

    def _together(self) -> None:
        """Files that were saved one after the other, as one checkpoint."""
        while self._saves:
            read_number = self._saves[0][4]
            saves = [save for save in self._saves if save[4] == read_number]
            fresh = time.time_ns() - saves[-1][0] < SAVES_TOGETHER_NS
            if fresh and read_number == self.recorder.count and not self._ended:
                return
            self._saves = self._saves[len(saves) :]
            self._say_saved(saves)

    def _say_saved(self, saves: list[tuple[int, str, int, int, int]]) -> None:
        paths = [save[1] for save in saves if save[1]]
        place = _common(paths)
        took_ns, size = sum(save[2] for save in saves), sum(save[3] for save in saves)
        self.event(
            "checkpoint_saved", at_ms=saves[-1][0] // 1_000_000, duration_ms=took_ns // 1_000_000,
            step=self.step(saves[-1][4]), reason=str(size) if size else None, message=place,
        )  # fmt: skip

    # -- does it come forward -----------------------------------------------------------------------------------------

    def _watch(self, now_ns: int) -> None:
        view = self.ring.view
        moved_ns, phase = view[ring.MOVED_NS], ring.PHASES[view[ring.PHASE]]
        if view[ring.STUCK_NS] and moved_ns != view[ring.STUCK_NS]:  # said here, or by the watcher
            self._moves_again(moved_ns)
        limits = self._limits()
        limit_s = limits.get(phase, limits["default"]) if self.recorder.count else limits["startup"]
        trains = bool(self.recorder.expected) or self.recorder.count > 0
        still_ns = now_ns - moved_ns
        if trains and not view[ring.STUCK_NS] and still_ns > limits["default"] * 1e9:
            frame = sys._current_frames().get(self.recorder.thread)
            # who has left the loop is not in the middle of a long evaluation or checkpoint of it
            left = bool(self._loops) and not self.recorder.inside and not self._loops[0].contains(frame)
            if left or still_ns > limit_s * 1e9:
                self._stands_still(moved_ns, phase, frame, left=left)
        self._arm(limit_s)

    def _stands_still(self, moved_ns: int, phase: str, frame: FrameType | None, *, left: bool) -> None:
        self.ring.view[ring.STUCK_NS] = moved_ns
        at_ms, step = self.ring.wall_ns(moved_ns) // 1_000_000, self.step(self.recorder.count)
        if left:
            self._loop_ended = moved_ns
            self.event("loop_ended", at_ms=at_ms, step=step)
        else:
            stack = "".join(traceback.format_stack(frame))[-MOST_STACK:] if frame else ""
            self.event("stuck", at_ms=at_ms, step=step, reason=phase, message=stack)
        self.event("alive")  # how long it has stood still is told with it
        self._wake.set()

    def _moves_again(self, moved_ns: int) -> None:
        kind = "loop_resumed" if self._loop_ended else "unstuck"
        self._loop_ended = 0
        self.ring.view[ring.STUCK_NS] = 0
        self.event(kind, at_ms=self.ring.wall_ns(moved_ns) // 1_000_000, step=self.step(self.recorder.count))
        self._wake.set()

    def _arm(self, limit_s: float) -> None:
        """If this thread does not come back in time, C holds the interpreter: then the stack is written without it."""
        if self._faulthandler_taken or self._hooks.faulthandler_taken:
            return
        try:
            if self._stack is None:
                self._stack = (self.spool.ranks / f"{os.getpid()}.stack").open("w")
            with self._hooks.arming:
                self._hooks.dump_traceback_later(limit_s + 1, file=self._stack)
        except (OSError, ValueError, RuntimeError):
            self._faulthandler_taken = True

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self, outcome: str | None = None) -> None:
        """The last words. What is in the spool is sent by another process, which also reads the exit code."""
        if self._ended or os.getpid() != self.identity["pid"]:
            return
        if outcome is not None:
            self.ring.view[ring.EXIT] = 0  # it has ended, whatever its process exits with
        else:
            outcome = self._ends()
        if not self._lock.acquire(timeout=LAST_WAIT_S) and not (
            # A thread that comes back from C++ when Python has ended is thrown out of it, and takes the process along.
            self._meeting.is_calling and self._lock.acquire(timeout=LAST_WAIT_FOR_STORE_S)
        ):
            return  # our thread waits for a dead disk: the program does not, and the watcher has the ring
        try:
            self._close(outcome)
        except Exception as error:
            self._hooks.broken(error)
        finally:
            self._lock.release()

    def _ends(self) -> str | None:
        """With this process the rank ends: by which exception. The outcome, unless the watcher reads the exit code."""
        left = self._left if self._left is not None and self._left[0] == self.recorder.count else None
        error = exits.uncaught() or (left[1] if left is not None else None)  # with more steps it changed its mind
        if left is None or not self.ring.view[ring.LEFT_NS]:
            self.ring.view[ring.LEFT_NS] = time.perf_counter_ns()
        if _is_failure(error):
            self._waiting.append(self._explained(error))
        if self.ring.stores_exit():
            return None
        if left is None and isinstance(error, KeyboardInterrupt):
            return "killed"
        return "succeeded" if left is None and error is None else "failed"

    def _explained(self, error: BaseException) -> fold.Message:
        """The exception that explains the exit code, as of when the program began to exit."""
        view = self.ring.view
        view[ring.EXPLAINED] = 1
        kind, words = _exception(error)
        return kind, {**words, "time_ms": self.ring.wall_ns(view[ring.LEFT_NS]) // 1_000_000}

    def _close(self, outcome: str | None) -> None:
        self.recorder.finish()
        self.metrics.finish(self.recorder.device)
        self.lineage.finish()
        self._ended = True
        self._hooks.let_go()
        if not self._hooks.faulthandler_taken and self._stack is not None:
            faulthandler.cancel_dump_traceback_later()
        if not self._met:
            self._learn_launch()
            self._met = True
        self._fold()
        folded = max(self.ring.view[ring.FOLDED], 1)
        if folded < self.ring.view[ring.COUNT]:
            self._window(folded, self.ring.view[ring.COUNT])
        if "device" not in self.identity:
            self.identity |= identity.device(self._torch, self._gpu)
        if outcome is not None:
            self.say_run(ended_ms=time.time_ns() // 1_000_000, outcome=outcome)
        self.hand_on()
        self._register()
        self.ring.view[ring.BEAT_NS] = time.perf_counter_ns()
        self.ring.view[ring.ENDED] = 1
        self._wake.set()
        if os.getpid() == 1:  # with this process the container ends, and the sender in it
            self.spool.wait_sent(read_number("PYROMETER_FLUSH_S", FLUSH_S))


def _exception(error: BaseException) -> fold.Message:
    words = {"kind": "exception", "reason": type(error).__name__, "message": exits.describe(error)}
    return "event", {"time_ms": time.time_ns() // 1_000_000, **words}


def _is_failure(error: BaseException | None) -> TypeGuard[BaseException]:
    """Whether an exception explains a failure: of those that end a program as it wants it, only one with a message."""
    if isinstance(error, SystemExit):
        return not isinstance(error.code, int | None)
    return error is not None and not isinstance(error, KeyboardInterrupt)


def _size(path: Path, rank: int) -> int:
    """How large a checkpoint is; of a folder that all ranks write to, this rank's part, where names tell."""
    try:
        if not path.is_dir():
            return path.stat().st_size
        files = [file for file in path.iterdir() if file.is_file()]
        own = [file for file in files if file.name.startswith(f"__{rank}_")]
        return sum(file.stat().st_size for file in own or files)
    except OSError:
        return 0


def _common(paths: list[str]) -> str:
    """The file, or the folder of several."""
    if len(set(paths)) <= 1:
        return paths[0] if paths else ""
    try:
        return os.path.commonpath(paths)
    except ValueError:  # relative and absolute ones
        return paths[-1]
