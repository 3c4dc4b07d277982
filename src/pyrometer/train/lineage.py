"""Which data a step used: the indices as the sampler hands them out, paired with the forwards that consume them.

A loader's index sampler runs in the training process, whoever loads the data. What it hands out is kept by reference,
in the order in which batches are drawn; the k-th micro-batch takes the k-th batch, so loaders that fetch ahead stay
right. Where a tensor of the batch itself reaches the model, that decides. Where the counts disagree (a batch was drawn
and thrown away), the rest of the epoch is unknown. Names of samples are looked up later, off the hot path.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from typing import Any, NamedTuple

MOST_QUEUED = 64  # batches drawn and not used: a loader that runs further ahead is not paired
MOST_USED = 100_000  # micro-batches that wait to be handed on
HASHED_BYTES = 4_096  # of each tensor of a batch without indices

TRAINING, EVALUATING = 1, 2  # what a loader is for, once its first batch was used


class Loader:
    """One data loader through its epochs."""

    __slots__ = ("ahead", "astray", "dataset", "epoch", "held_by", "number", "queue", "role", "sent", "taken")

    def __init__(self, number: int, dataset: Any) -> None:
        self.number = number
        self.dataset = dataset
        self.epoch = -1
        self.role = 0
        self.held_by: tuple[Any, ...] = ()  # weak references to the program's loader and its iterator
        self.ahead: int | None = None  # how many batches it was ahead at the first forward of this epoch
        self.astray = False  # more were drawn than used
        self.sent: dict[int, Any] = {}  # asked for and not drawn yet, by number
        self.taken = 0  # batches drawn in this epoch
        self.queue: deque[Drawn] = deque()  # drawn and not used yet

    def begin_epoch(self) -> None:
        """Its iterator starts anew; what was drawn and not used is gone."""
        self.epoch += 1
        self.taken = 0
        self.sent = {}
        self.queue.clear()
        self.ahead = None
        self.astray = False

    def is_gone(self) -> bool:
        """Whether the program has let go of it."""
        return bool(self.held_by) and all(held() is None for held in self.held_by)

    def use(self, tensor: Any) -> Drawn:
        """Takes the batch that a forward consumes; `tensor` is what reached the model."""
        queue = self.queue
        if tensor is not None:
            for skipped, drawn in enumerate(queue):
                if drawn.token is not None and drawn.token() is tensor:
                    for _ in range(skipped + 1):
                        queue.popleft()
                    return drawn
        ahead = len(queue) - 1
        if self.ahead is None:
            self.ahead = ahead
        elif ahead > self.ahead:
            self.astray = True
        drawn = queue.popleft()
        return drawn._replace(samples=None) if self.astray else drawn


class Drawn(NamedTuple):
    """A batch that came out of a loader."""

    loader: Loader
    epoch: int
    send_index: int
    samples: Any  # as the sampler gave them; a content hash; None: unknown
    token: Any = None  # a weak reference to a tensor of the batch


class Used(NamedTuple):
    """A micro-batch that a step consumed."""

    number: int  # of the step, in this process
    micro_batch: int
    at_ns: int
    drawn: Drawn


class Lineage:
    """All loaders of a process, and what became of their batches."""

    def __init__(self) -> None:
        self.loaders: list[Loader] = []
        self.used: deque[Used] = deque(maxlen=MOST_USED)
        self.last: Loader | None = None  # the one that was drawn from last
        self._numbers = 0
        self._changing = threading.Lock()
        self._count = -1
        self._micro_batch = 0
        self._open = False  # a forward came, and neither a backward nor another batch since

    def loader(self, dataset: Any) -> Loader:
        """A loader that was not seen before."""
        with self._changing:
            found = Loader(self._numbers, dataset)
            self._numbers += 1
            self.loaders = [*self.loaders, found]
        return found

    def let_go(self) -> None:
        """Forgets loaders that are no more: a program may make one in every epoch, each with a data set of its own."""
        if any(loader.is_gone() for loader in self.loaders):
            with self._changing:
                self.loaders = [loader for loader in self.loaders if not loader.is_gone()]
            if self.last is not None and self.last.is_gone():
                self.last = None

    def drawn(self, loader: Loader, send_index: int, samples: Any, token: Any) -> None:
        """A batch came out of a loader."""
        queue = loader.queue
        queue.append(Drawn(loader, loader.epoch, send_index, samples, token))
        if len(queue) > MOST_QUEUED:
            queue.popleft()
        loader.taken += 1
        self.last = loader
        self._open = False

    def forward(self, count: int, at_ns: int, tensor: Any, *, gradients: bool) -> None:
        """A root module is called: the first call since the last backward or batch takes a batch of each loader."""
        if self._open:
            return
        self._open = True
        if not gradients:
            self._evaluated(tensor)
            return
        if count != self._count:
            self._count, self._micro_batch = count, 0
        for loader in self.loaders:
            if loader.queue and loader.role != EVALUATING:
                loader.role = TRAINING
                self.used.append(Used(count, self._micro_batch, at_ns, loader.use(tensor)))
        self._micro_batch += 1

    def backward(self) -> None:
        """The micro-batch is done."""
        self._open = False

    def _evaluated(self, tensor: Any) -> None:
        loader = self.last
        if loader is None or not loader.queue:
            return
        if loader.role != TRAINING:
            loader.role = EVALUATING
            loader.queue.popleft()
        elif tensor is not None and loader.queue[-1].token is not None and loader.queue[-1].token() is tensor:
            loader.queue.pop()  # one loader for both


def content_of(batch: Any) -> Any:
    """What identifies a batch that came without indices: its samples' keys if it has some, else a hash of content."""
    if isinstance(batch, dict):
        keys = batch.get("__key__")
        if keys is not None:
            return list(keys) if isinstance(keys, list | tuple) else [str(keys)]
    digest = _digest(batch, 0, 0)
    return None if digest == 0 else [f"hash:{digest:08x}"]


def _digest(value: Any, digest: int, depth: int) -> int:
    if depth > 3:
        return digest
    if isinstance(value, dict):
        for part in list(value.values())[:8]:
            digest = _digest(part, digest, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value[:8]:
            digest = _digest(part, digest, depth + 1)
    elif isinstance(value, str):
        digest = zlib.crc32(value[:HASHED_BYTES].encode("utf-8", "replace"), digest)
    elif isinstance(value, bytes):
        digest = zlib.crc32(value[:HASHED_BYTES], digest)
    elif hasattr(value, "data_ptr") and value.device.type == "cpu" and value.numel():
        flat = value.detach().reshape(-1)[: HASHED_BYTES // value.element_size()].contiguous()
        import torch

        digest = zlib.crc32(flat.view(torch.uint8).numpy(), digest)
    return digest


# -- names, off the hot path -------------------------------------------------------------------------------------------


def names_of(dataset: Any, samples: Any) -> list[int | str] | None:
    """The rows of the data set behind a batch: what subsets and shuffles stand for is looked up."""
    if samples is None:
        return None
    if not isinstance(samples, list | tuple):
        samples = [samples]
    names: list[int | str] = []
    for sample in samples:
        if isinstance(sample, str):
            names.append(sample)
        elif isinstance(sample, list | tuple):
            names.extend(_row(dataset, part) for part in sample)
        else:
            names.append(_row(dataset, sample))
    return names


def _row(dataset: Any, index: Any) -> int | str:
    for _ in range(8):  # subsets of subsets
        indices = getattr(dataset, "indices", None)  # torch.utils.data.Subset
        inner = getattr(dataset, "dataset", None)
        if indices is not None and inner is not None and hasattr(indices, "__getitem__"):
            index, dataset = indices[index], inner
            continue
        mapping = getattr(dataset, "_indices", None)  # a Hugging Face dataset that was shuffled or selected from
        if mapping is not None and hasattr(mapping, "column"):
            index = mapping.column(0)[int(index)].as_py()
        break
    if isinstance(index, int):
        return index
    item = getattr(index, "item", None)  # numpy's and torch's integers, on the host
    if item is not None and getattr(getattr(index, "device", None), "type", "cpu") == "cpu":
        try:
            index = item()
        except (ValueError, RuntimeError):
            return str(index)
    return index if isinstance(index, int) else str(index)


def name_of(dataset: Any) -> str:
    """What to call a data set: its class, and for Hugging Face's its name and fingerprint."""
    info = getattr(dataset, "info", None)
    fingerprint = getattr(dataset, "_fingerprint", None)
    if isinstance(fingerprint, str):
        title = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None) or "dataset"
        return f"{title}@{fingerprint}"
    inner = getattr(dataset, "dataset", None)
    if inner is not None and hasattr(dataset, "indices"):
        return name_of(inner)
    return type(dataset).__name__


class Namer:
    """Used micro-batches as messages. How a loader's rows are found is worked out once."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._plain: dict[int, bool] = {}  # its indices are rows already

    def batch(self, used: Used, step: int, wall_ns: int) -> dict[str, Any]:
        """One micro-batch: which samples, for which step."""
        drawn = used.drawn
        loader = drawn.loader
        number = loader.number
        if number not in self._names:
            dataset = loader.dataset
            self._names[number] = name_of(dataset)
            self._plain[number] = not hasattr(dataset, "indices") and getattr(dataset, "_indices", None) is None
        samples = drawn.samples
        if not (self._plain[number] and type(samples) is list and samples and type(samples[0]) in (int, str)):
            samples = names_of(loader.dataset, samples)
        message = {
            "time_ms": wall_ns // 1_000_000,
            "loader": number,
            "epoch": drawn.epoch,
            "send_index": drawn.send_index,
            "micro_batch": used.micro_batch,
            "step": step,
            "dataset": self._names[number],
        }
        return message if samples is None else {**message, "samples": samples}
