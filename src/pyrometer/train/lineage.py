"""Which data a step used: the indices as the sampler hands them out, paired with the forwards that consume them.

A loader's index sampler runs in the training process, whoever loads the data. What it hands out is kept by reference,
in the order in which batches are drawn. Between two draws some micro-batches are trained: if one of a batch's own
tensors reaches the model, that decides; else the micro-batches take the batches in order, provided that there are as
many of the one as of the other, and the rest of the epoch is unknown if not: a batch was drawn and thrown away, or
somebody fetches ahead without being known for it. So nothing is said before the next draw, and no row is ever guessed.
Names of samples are looked up later, off the hot path.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from pyrometer.train.sample_names import has_row_indices, key_places, name_of

MAX_QUEUED_BATCHES = 64  # batches drawn and not used: a loader that runs further ahead is not paired
MAX_LOADERS = 16  # at a time: some programs make one for every step
MAX_USED_BATCHES = 100_000  # micro-batches that wait to be handed on
MAX_STALE_BATCHES = 4  # batches that may still come though the counts say no
MAX_FRAMES = 32  # between a loader and the loop

_SILENT = ("torch.", "torchdata.", "pyrometer.train.")  # they call each other


class DrawnBatch(NamedTuple):
    """A batch that came out of a loader."""

    loader: WatchedLoader
    epoch: int
    send_index: int
    samples: Any  # as the sampler gave them; a content hash; None: unknown
    tokens: tuple[Any, ...] = ()  # weak references to tensors of the batch


class UsedBatch(NamedTuple):
    """A micro-batch (one forward, or several, up to a backward) and what it consumed."""

    number: int  # of the step, in this process
    micro_batch: int
    at_ns: int
    drawn: DrawnBatch


Micro = tuple[int, int, int]  # the same, before that is known


class WatchedLoader:
    """One data loader through its epochs."""

    __slots__ = (
        "_astray", "_began", "_dataset", "_direct", "_doubtful", "_drawer", "_ended", "_exact", "_held", "_over",
        "_until", "_used", "_waiting", "epoch", "evaluated", "fresh", "name", "number", "places", "plain", "queue",
        "sent", "taken", "trains",
    )  # fmt: skip

    def __init__(self, number: int, dataset: Any, used: deque[UsedBatch]) -> None:
        self.number = number
        self._dataset = _weakly(dataset)  # programs that make one for every epoch must get rid of them
        self.places = key_places(dataset)
        self.name = name_of(dataset)  # now: a short program is over, and its data gone, before anybody looks
        self.plain = has_row_indices(dataset)
        self.epoch = -1
        self.sent: dict[int, Any] = {}  # asked for and not drawn yet, by number
        self.taken = 0  # batches drawn in this epoch
        self.queue: deque[DrawnBatch] = deque()  # drawn and not used yet
        self.trains = False  # it was drawn from for two micro-batches in a row, so it is no accident
        self.evaluated = False  # a forward without gradients came since the last draw
        self.fresh = False  # drawn from since the last micro-batch
        self._used = used
        self._doubtful: list[UsedBatch] = []  # until it is known to train
        self._waiting: list[Micro] = []  # micro-batches since the last draw
        self._exact: list[UsedBatch] = []  # those whose batch was recognised
        self._over = False  # there were more than could be
        self._began = self._until = -1  # rounds: when the first of them came, and the last one before
        self._held = 0  # batches that whoever draws is known to hold back
        self._ended = False  # there is no more to draw
        self._astray = False  # counts have disagreed
        self._drawer: CodeType | None = None  # the code that draws,
        self._direct: bool | None = None  # and whether that is the loop itself

    @property
    def dataset(self) -> Any:
        """What it loads; None when that is no more."""
        return self._dataset()

    # -- what happens to it -------------------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Its iterator starts anew. What was drawn and not used may be in somebody's hands, or gone."""
        self.settle()
        self._astray = len(self.queue) > self._held and self._direct is False
        while len(self.queue) > MAX_STALE_BATCHES:
            self.queue.popleft()
        self.epoch += 1
        self.taken = 0
        self.sent = {}
        self._held = 0
        self.fresh = self.evaluated = self._ended = False
        self._drawer = self._direct = None

    def draw(self, drawn: DrawnBatch) -> None:
        """A batch came out of it."""
        self.queue.append(drawn)
        if len(self.queue) > MAX_QUEUED_BATCHES:
            self.queue.popleft()
            self._astray = True
        self.taken += 1
        self.fresh = True
        self.evaluated = False

    def missed(self) -> None:
        """A batch came out of it, and another thread than the one that trains has it."""
        self.taken += 1
        self._astray = True

    def exhausted(self) -> None:
        """There is no more to draw, and so nothing to hold back."""
        if self._until < 0 and not self._held:  # a loop over it has ended, and it was not training
            self.queue.clear()
        self._held = 0
        self._ended = True

    def drawn_by(self, frame: FrameType | None) -> None:
        """Looks once an epoch who draws: some are known to fetch ahead, some to mix batches."""
        for _ in range(MAX_FRAMES):
            if frame is None:
                return
            name = frame.f_globals.get("__name__", "")
            if not name.startswith(_SILENT):
                if self._drawer is None:
                    self._drawer = frame.f_code
                held = _holds_back(name, frame)
                if held is None:
                    self._astray = True
                else:
                    self._held = max(self._held, held)
            frame = frame.f_back

    def consume(self, micro: Micro, tensors: list[Any], rounds: int, any_fresh: bool) -> None:
        """A micro-batch is trained, with these tensors."""
        if self.evaluated and not self.trains:
            return
        waiting, there = self._waiting, len(self.queue)
        if not self.fresh and len(waiting) >= there - self._held:
            self._over = self._over or not any_fresh
            return
        if self._direct is None:
            self._direct = self._draws_itself()
        if not waiting:
            self._began = rounds
        waiting.append(micro)
        self.fresh = False
        if there > 1 or self._astray:
            self.recognise(micro, tensors)

    def recognise(self, micro: Micro, tensors: list[Any]) -> None:
        """Whether one of these tensors is a batch's own. One that all batches share says nothing."""
        best, most, several = None, 0, False
        for drawn in self.queue:
            same = 0
            for token in drawn.tokens:
                tensor = token()
                if tensor is not None and any(tensor is one for one in tensors):
                    same += 1
            if same > most:
                best, most, several = drawn, same, False
            elif same and same == most:
                several = True
        if best is not None and not several and not any(one.drawn is best for one in self._exact):
            self._exact.append(UsedBatch(*micro, best))

    # -- who used what ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Another batch is asked for: by now, what was handed out before is used."""
        queue, waiting = self.queue, self._waiting
        if not waiting:
            if self.evaluated:
                self._doubtful.clear()
                while len(queue) > self._held:
                    queue.popleft()
            return
        if self.trains and len(queue) == 1 == len(waiting) and not (self._astray or self._held or self._exact):
            self._used.append(UsedBatch(*waiting[0], queue.popleft()))  # as almost always
        else:
            self._take()
        waiting.clear()
        self._until = self._began
        self._over = False

    def finish(self, *, alone: bool) -> None:
        """There is no more to come. If no other one can have been the one that trains, it was this one."""
        over = self._over
        self.settle()
        if alone and not over and not self.trains:
            self._used.extend(self._doubtful)
        self._doubtful.clear()

    def may_train(self) -> bool:
        """Whether micro-batches may have used it."""
        return bool(self.trains or self._doubtful or self._waiting)

    def is_used_up(self) -> bool:
        """Whether it was drawn from to its end, and all of that was used."""
        return self._ended and 0 < len(self._waiting) >= len(self.queue)

    def is_idle(self) -> bool:
        """Whether there is nothing more to say of what came out of it."""
        return not (self.trains or self.queue or self._waiting or self._doubtful)

    def _take(self) -> None:
        if not self.trains:
            if 0 <= self._until == self._began - 1:
                self.trains = True
                self._used.extend(self._doubtful)
            self._doubtful.clear()
        if self._exact:
            self._take_recognised()
        else:
            self._take_in_order()

    def _take_recognised(self) -> None:
        for used in self._exact:
            self._say(used)
        known = {id(used.drawn) for used in self._exact}
        named = {used[:3] for used in self._exact}
        last = max(place for place, drawn in enumerate(self.queue) if id(drawn) in known)
        passed = [self.queue.popleft() for _ in range(last + 1)]
        unknown = [drawn for drawn in passed if id(drawn) not in known and drawn.epoch == self.epoch]
        unnamed = [micro for micro in self._waiting if micro not in named]
        for micro, drawn in zip(unnamed, unknown, strict=False):
            self._say(UsedBatch(*micro, drawn._replace(samples=None)))
        self._exact.clear()

    def _take_in_order(self) -> None:
        queue, waiting = self.queue, self._waiting
        while queue and queue[0].epoch != self.epoch and not self._astray:
            queue.popleft()
        there = len(queue) - self._held
        if there > 1 and (there != len(waiting) or self._over):
            self._astray = True
        for micro in waiting[: max(there, 0)]:
            drawn = queue.popleft()
            self._say(UsedBatch(*micro, drawn._replace(samples=None) if self._astray else drawn))
        while self._astray and len(queue) > MAX_STALE_BATCHES:  # they may be recognised yet
            queue.popleft()

    def _say(self, used: UsedBatch) -> None:
        if self.trains:
            self._used.append(used)
        else:
            self._doubtful.append(used)

    def _draws_itself(self) -> bool:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code is self._drawer:
                return True
            frame = frame.f_back
        return False


def _holds_back(module: str, frame: FrameType) -> int | None:
    """How many batches the code of this frame has drawn and not handed out; None: what it hands out are others."""
    if module == "accelerate.data_loader":  # to know when the last one comes
        owner: Any = frame.f_locals.get("self")
        return None if "Dispatcher" in type(owner).__name__ and owner.state.num_processes > 1 else 1
    if module in ("lightning.pytorch.loops.fetchers", "pytorch_lightning.loops.fetchers"):
        owner = frame.f_locals.get("self")
        return getattr(owner, "prefetch_batches", 0) if getattr(owner, "length", None) is None else 0
    if module == "ray.train.torch.train_loop_utils":  # moves the next one to the device meanwhile; on a CPU, too
        return 1
    if module == "webdataset.pipeline":  # shuffles and batches anew what loaders bring
        stages = getattr(frame.f_locals.get("self"), "pipeline", ())
        return None if len(stages) > 1 else 0
    return 0


def _weakly(thing: Any) -> Callable[[], Any]:
    """A reference that does not hold it, where there can be one."""
    try:
        return weakref.ref(thing)
    except TypeError:  # a list
        return lambda: thing


class Lineage:
    """All loaders of a process, and what became of their batches."""

    def __init__(self) -> None:
        self.loaders: list[WatchedLoader] = []  # of which there is something to say
        self.used: deque[UsedBatch] = deque(maxlen=MAX_USED_BATCHES)
        self.last: WatchedLoader | None = None  # the one that was drawn from last
        self._count = 0
        self._number = -1
        self._micro_batch = 0
        self._micro: Micro = (0, 0, 0)
        self._rounds = 0  # micro-batches before which something was drawn
        self._open = False  # a forward came, and neither a backward nor another batch since
        self.sees_forwards = False  # the model is known

    def loader(self, dataset: Any) -> WatchedLoader:
        """A loader that was not seen before."""
        self._count += 1
        return WatchedLoader(self._count - 1, dataset, self.used)

    def ask(self, loader: WatchedLoader) -> None:
        """A loader is asked for a batch."""
        for other in self.loaders:
            if other is loader or other.is_used_up():
                other.settle()

    def drawn(self, loader: WatchedLoader, send_index: int, samples: Any, tokens: tuple[Any, ...]) -> None:
        """A batch came out of a loader."""
        if loader is not self.last and not any(loader is other for other in self.loaders):
            kept = [other for other in self.loaders if not other.is_idle()]
            self.loaders = [*kept[1 - MAX_LOADERS :], loader]
        loader.draw(DrawnBatch(loader, loader.epoch, send_index, samples, tokens))
        self.last = loader
        self._open = False

    def forward(self, number: int, at_ns: int, tensors: list[Any], *, gradients: bool) -> None:
        """A root module is called. The first call since the last backward or draw begins a micro-batch."""
        if not gradients:
            if self.last is not None and self.last.queue:
                self.last.evaluated = True
            return
        self.sees_forwards = True
        if self._open:
            for loader in self.loaders:
                if len(loader.queue) > 1:
                    loader.recognise(self._micro, tensors)
            return
        self._open = True
        self._begin(number, at_ns, tensors)

    def backward(self, number: int, at_ns: int) -> None:
        """The micro-batch is done. Until the model is known, this is the only sign of it."""
        if not self._open and not self.sees_forwards:
            self._begin(number, at_ns, [])
        self._open = False

    def finish(self) -> None:
        """The program has ended."""
        possible = [loader for loader in self.loaders if loader.may_train()]
        for loader in possible:
            loader.finish(alone=len(possible) == 1)

    def _begin(self, number: int, at_ns: int, tensors: list[Any]) -> None:
        if number != self._number:
            self._number, self._micro_batch = number, 0
        self._micro = micro = (number, self._micro_batch, at_ns)
        self._micro_batch += 1
        fresh = False
        for loader in self.loaders:
            if loader.fresh:
                fresh = True
        if fresh:
            self._rounds += 1
        for loader in self.loaders:
            if loader.queue:
                loader.consume(micro, tensors, self._rounds, fresh)
