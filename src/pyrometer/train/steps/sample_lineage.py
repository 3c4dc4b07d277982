"""Which samples were used in a step: the indices that a sampler returns, paired with the forwards that consume them.

The index sampler of a loader runs in the training process, whichever process loads the data. Its indices are kept by
reference, in the order in which batches are drawn. Some micro-batches are trained between two draws. If a tensor of a
batch reaches the model, that decides which batch was used. Otherwise the micro-batches take the batches in order, but
only if there are equally many of both. If not, a batch was discarded or unknown code prefetches, and the rest of the
epoch is unknown. So a pair is recorded at the next draw, and a row is never guessed. Names of samples are looked up
later, off the hot path.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from pyrometer.train.steps.sample_names import has_row_indices, key_places, name_of

MAX_QUEUED_BATCHES = 64  # batches that were drawn and not used; a loader that runs further ahead is not paired
MAX_LOADERS = 16  # at the same time; some programs create one for every step
MAX_USED_BATCHES = 100_000  # micro-batches that wait to be published
MAX_STALE_BATCHES = 4  # batches that may still be used although the counts disagree
MAX_FRAMES = 32  # between a loader and the training loop

_LOADER_MODULES = ("torch.", "torchdata.", "pyrometer.train.")  # packages of loaders, whose functions call each other


class DrawnBatch(NamedTuple):
    """A batch that a loader returned."""

    loader: WatchedLoader
    epoch: int
    send_index: int
    samples: Any  # as the sampler returned them, or a hash of the content; None: unknown
    tokens: tuple[Any, ...] = ()  # weak references to tensors of the batch


class UsedBatch(NamedTuple):
    """A micro-batch (the forwards up to a backward) and the batch it consumed."""

    number: int  # of the step, in this process
    micro_batch: int
    at_ns: int
    drawn: DrawnBatch


Micro = tuple[int, int, int]  # the first three fields of UsedBatch, before the batch is known


class WatchedLoader:
    """One data loader through its epochs."""

    __slots__ = (
        "_began_round",
        "_dataset",
        "_direct",
        "_drawer",
        "_ended",
        "_has_surplus",
        "_is_unreliable",
        "_last_round",
        "_prefetched",
        "_provisional",
        "_recognized",
        "_used",
        "_waiting",
        "drawn_count",
        "epoch",
        "evaluated",
        "fresh",
        "indices_are_rows",
        "name",
        "number",
        "places",
        "queue",
        "sent",
        "trains",
    )

    def __init__(self, number: int, dataset: Any, used: deque[UsedBatch]) -> None:
        self.number = number
        self._dataset = _weakly(dataset)  # weak, because some programs create a data set for every epoch
        self.places = key_places(dataset)
        # looked up now, because a short program may free its data before the batches are published
        self.name = name_of(dataset)
        self.indices_are_rows = has_row_indices(dataset)
        self.epoch = -1
        self.sent: dict[int, Any] = {}  # by number: indices that were requested and not drawn yet
        self.drawn_count = 0  # batches drawn in this epoch
        self.queue: deque[DrawnBatch] = deque()  # drawn and not used yet
        self.trains = False  # it was drawn from before two micro-batches in a row, so it is a training loader
        self.evaluated = False  # a forward without gradients ran since the last draw
        self.fresh = False  # drawn from since the last micro-batch
        self._used = used
        self._provisional: list[UsedBatch] = []  # pairs that count only if it turns out to be a training loader
        self._waiting: list[Micro] = []  # micro-batches since the last draw
        self._recognized: list[UsedBatch] = []  # pairs in which a tensor of the batch was recognized
        self._has_surplus = False  # there were more micro-batches than batches
        # rounds: of the first waiting micro-batch, and of the one before the last draw
        self._began_round = self._last_round = -1
        self._prefetched = 0  # batches that the code that draws is known to prefetch
        self._ended = False  # it is exhausted
        self._is_unreliable = False  # counts have disagreed in this epoch
        self._drawer: CodeType | None = None  # the code that draws
        self._direct: bool | None = None  # whether that code is the training loop itself

    @property
    def dataset(self) -> Any:
        """The data set; None if the program has freed it."""
        return self._dataset()

    # -- Events --------------------------------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """A new iterator starts. Batches that were drawn and not used may still be used, or are discarded."""
        self.settle()
        self._is_unreliable = len(self.queue) > self._prefetched and self._direct is False
        while len(self.queue) > MAX_STALE_BATCHES:
            self.queue.popleft()
        self.epoch += 1
        self.drawn_count = 0
        self.sent = {}
        self._prefetched = 0
        self.fresh = self.evaluated = self._ended = False
        self._drawer = self._direct = None

    def draw(self, drawn: DrawnBatch) -> None:
        """The loader returned a batch."""
        self.queue.append(drawn)
        if len(self.queue) > MAX_QUEUED_BATCHES:
            self.queue.popleft()
            self._is_unreliable = True
        self.drawn_count += 1
        self.fresh = True
        self.evaluated = False

    def missed(self) -> None:
        """The loader returned a batch to another thread than the training thread."""
        self.drawn_count += 1
        self._is_unreliable = True

    def exhausted(self) -> None:
        """The loader is exhausted, so nothing is prefetched any more."""
        if self._last_round < 0 and not self._prefetched:  # a loop over it has ended, and it was not a training loop
            self.queue.clear()
        self._prefetched = 0
        self._ended = True

    def drawn_by(self, frame: FrameType | None) -> None:
        """Looks at the calling code once per epoch: some libraries prefetch batches, some mix them."""
        for _ in range(MAX_FRAMES):
            if frame is None:
                return
            name = frame.f_globals.get("__name__", "")
            if not name.startswith(_LOADER_MODULES):
                if self._drawer is None:
                    self._drawer = frame.f_code
                prefetched = _prefetch_count(name, frame)
                if prefetched is None:
                    self._is_unreliable = True
                else:
                    self._prefetched = max(self._prefetched, prefetched)
            frame = frame.f_back

    def consume(self, micro: Micro, tensors: list[Any], rounds: int, any_fresh: bool) -> None:
        """A micro-batch is trained with these tensors."""
        if self.evaluated and not self.trains:
            return
        waiting, available = self._waiting, len(self.queue)
        if not self.fresh and len(waiting) >= available - self._prefetched:
            self._has_surplus = self._has_surplus or not any_fresh
            return
        if self._direct is None:
            self._direct = self._draws_itself()
        if not waiting:
            self._began_round = rounds
        waiting.append(micro)
        self.fresh = False
        if available > 1 or self._is_unreliable:
            self.recognize(micro, tensors)

    def recognize(self, micro: Micro, tensors: list[Any]) -> None:
        """Pairs a micro-batch with the batch that one of these tensors is from. A tensor in several batches decides
        nothing."""
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
        if best is not None and not several and not any(one.drawn is best for one in self._recognized):
            self._recognized.append(UsedBatch(*micro, best))

    # -- Pairing -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """The next batch is requested: by now, the batches before it are used."""
        queue, waiting = self.queue, self._waiting
        if not waiting:
            if self.evaluated:
                self._provisional.clear()
                while len(queue) > self._prefetched:
                    queue.popleft()
            return
        if (
            self.trains
            and len(queue) == 1 == len(waiting)
            and not (self._is_unreliable or self._prefetched or self._recognized)
        ):
            self._used.append(UsedBatch(*waiting[0], queue.popleft()))  # the usual case
        else:
            self._pair()
        waiting.clear()
        self._last_round = self._began_round
        self._has_surplus = False

    def finish(self, *, alone: bool) -> None:
        """No more batches will come. If no other loader can be the training loader, this one is."""
        had_surplus = self._has_surplus
        self.settle()
        if alone and not had_surplus and not self.trains:
            self._used.extend(self._provisional)
        self._provisional.clear()

    def may_train(self) -> bool:
        """Whether micro-batches may have used its batches."""
        return bool(self.trains or self._provisional or self._waiting)

    def is_used_up(self) -> bool:
        """Whether it is exhausted and all of its batches are used."""
        return self._ended and 0 < len(self._waiting) >= len(self.queue)

    def is_idle(self) -> bool:
        """Whether nothing can be recorded about its batches any more."""
        return not (self.trains or self.queue or self._waiting or self._provisional)

    def _pair(self) -> None:
        if not self.trains:
            if 0 <= self._last_round == self._began_round - 1:
                self.trains = True
                self._used.extend(self._provisional)
            self._provisional.clear()
        if self._recognized:
            self._pair_recognized()
        else:
            self._pair_in_order()

    def _pair_recognized(self) -> None:
        for used in self._recognized:
            self._record(used)
        recognized = {id(used.drawn) for used in self._recognized}
        paired_micro_batches = {used[:3] for used in self._recognized}
        last = max(place for place, drawn in enumerate(self.queue) if id(drawn) in recognized)
        dequeued = [self.queue.popleft() for _ in range(last + 1)]
        unrecognized = [drawn for drawn in dequeued if id(drawn) not in recognized and drawn.epoch == self.epoch]
        unpaired = [micro for micro in self._waiting if micro not in paired_micro_batches]
        for micro, drawn in zip(unpaired, unrecognized, strict=False):
            self._record(UsedBatch(*micro, drawn._replace(samples=None)))
        self._recognized.clear()

    def _pair_in_order(self) -> None:
        queue, waiting = self.queue, self._waiting
        while queue and queue[0].epoch != self.epoch and not self._is_unreliable:
            queue.popleft()
        available = len(queue) - self._prefetched
        if available > 1 and (available != len(waiting) or self._has_surplus):
            self._is_unreliable = True
        for micro in waiting[: max(available, 0)]:
            drawn = queue.popleft()
            self._record(UsedBatch(*micro, drawn._replace(samples=None) if self._is_unreliable else drawn))
        while self._is_unreliable and len(queue) > MAX_STALE_BATCHES:  # these may still be recognized
            queue.popleft()

    def _record(self, used: UsedBatch) -> None:
        if self.trains:
            self._used.append(used)
        else:
            self._provisional.append(used)

    def _draws_itself(self) -> bool:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code is self._drawer:
                return True
            frame = frame.f_back
        return False


def _prefetch_count(module: str, frame: FrameType) -> int | None:
    """How many batches the code of this frame prefetches; None if it makes new batches from those it draws."""
    if module == "accelerate.data_loader":  # to know which batch is the last
        owner: Any = frame.f_locals.get("self")
        return None if "Dispatcher" in type(owner).__name__ and owner.state.num_processes > 1 else 1
    if module in ("lightning.pytorch.loops.fetchers", "pytorch_lightning.loops.fetchers"):
        owner = frame.f_locals.get("self")
        return getattr(owner, "prefetch_batches", 0) if getattr(owner, "length", None) is None else 0
    if module == "ray.train.torch.train_loop_utils":  # moves the next batch to the device ahead of time, on a CPU too
        return 1
    if module == "webdataset.pipeline":  # shuffles and rebatches what loaders return
        stages = getattr(frame.f_locals.get("self"), "pipeline", ())
        return None if len(stages) > 1 else 0
    return 0


def _weakly(thing: Any) -> Callable[[], Any]:
    """A weak reference where the type allows one, else a strong one."""
    try:
        return weakref.ref(thing)
    except TypeError:  # a list
        return lambda: thing


class Lineage:
    """All loaders of a process, and which micro-batches used their batches."""

    def __init__(self) -> None:
        self.loaders: list[WatchedLoader] = []  # those whose batches may still be used
        self.used: deque[UsedBatch] = deque(maxlen=MAX_USED_BATCHES)
        self.last: WatchedLoader | None = None  # the loader that was drawn from last
        self._count = 0
        self._number = -1
        self._micro_batch = 0
        self._micro: Micro = (0, 0, 0)
        self._rounds = 0  # micro-batches before which a batch was drawn
        self._open = False  # a forward ran, and neither a backward nor another draw since
        self.sees_forwards = False  # the model is known

    def loader(self, dataset: Any) -> WatchedLoader:
        """Creates the record of a loader."""
        self._count += 1
        return WatchedLoader(self._count - 1, dataset, self.used)

    def before_draw(self, loader: WatchedLoader) -> None:
        """A batch of a loader is requested."""
        for other in self.loaders:
            if other is loader or other.is_used_up():
                other.settle()

    def drawn(self, loader: WatchedLoader, send_index: int, samples: Any, tokens: tuple[Any, ...]) -> None:
        """A loader returned a batch."""
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
                    loader.recognize(self._micro, tensors)
            return
        self._open = True
        self._begin(number, at_ns, tensors)

    def backward(self, number: int, at_ns: int) -> None:
        """The micro-batch is complete. Until the model is known, this is the only sign of a micro-batch."""
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
