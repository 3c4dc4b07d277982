"""How many samples and tokens a step trains on. A batch counts once, however many modules it passes through.

The forwards before a backward belong to one micro-batch, and the largest of them gives its size: two encoders side by
side, two views, and a cell that is called for every time step all work on the same samples. Micro-batches of one
optimizer add up if they pass through the same modules (gradient accumulation). If they pass through different modules
(a discriminator on real and on generated images), or if the same tensor comes again (SAM), they are the same samples.
Optimizers that step one after the other share the batch, so the largest amount of any of them is the step's.

On the hot path, calls are only written down. An optimizer's step makes sense of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from pyrometer.train.ring import SAMPLES, TOKENS

# A call of a root module with gradients: whether its input comes from outside of the models (an input with gradients is
# the output of another one), tokens, samples, module, whether that is in training mode. Where steps have several
# micro-batches, also the identity of the input.
Call = tuple[Any, ...]
# In the order of events: calls; root modules called without gradients, as ~module; None where a backward begins.
Log = list[Call | int | None]


class Work:
    """The work of the current step of one training thread."""

    __slots__ = ("_log", "_several", "reported")

    def __init__(self) -> None:
        self.reported: set[str] = set()  # "samples" or "tokens", where the program reports them itself
        self._log: Log = []  # since the last step of an optimizer
        self._several = False  # steps have several micro-batches, so that inputs are compared

    def forward(self, module: int, tensors: Sequence[Any], *, training: bool) -> None:
        """A root module is called with gradients. A number, like a time step, does not tell how large its batch is."""
        tensor = tensors[0]
        shape = tensor.shape
        if not shape:
            tensor = next((one for one in tensors if one.shape), None)
            if tensor is None:
                return
            shape = tensor.shape
        samples = shape[0]
        tokens = samples * shape[1] if len(shape) == 2 and not tensor.is_floating_point() else 0
        call = (not tensor.requires_grad, tokens, samples, module, training)
        self._log.append((*call, *_identity(tensor)) if self._several else call)

    def evaluation(self, module: int) -> None:
        """A root module is called without gradients, perhaps to make the input of another one."""
        if ~module not in self._log:
            self._log.append(~module)

    def backward(self) -> None:
        """A backward begins."""
        if self._log:
            self._log.append(None)

    def optimizer(self, row: list[int]) -> None:
        """An optimizer has stepped: what it trained on is added to the row of the step."""
        log = self._log
        if not log:
            return
        first = log[0]
        if len(log) == 2 and type(first) is tuple and log[1] is None:
            tokens, samples = first[1], first[2]
        else:
            tokens, samples = self._distinct()
        log.clear()
        if samples > row[SAMPLES] and "samples" not in self.reported:
            row[SAMPLES] = samples
        if tokens > row[TOKENS] and "tokens" not in self.reported:
            row[TOKENS] = tokens

    def _distinct(self) -> tuple[int, int]:
        """Tokens and samples of all micro-batches, without those that repeat the samples of others."""
        micro_batches = _micro_batches(self._log)
        self._several = self._several or len(micro_batches) > 1
        outside = any(call[0] for calls, _ in micro_batches for call in calls)
        totals: dict[frozenset[int], list[int]] = {}
        seen = set()
        unclaimed = 0  # forwards that may still get a backward of their own
        total, newest = [0, 0], (0, 0)
        for calls, evaluated in micro_batches:
            if calls:
                called = [call[3] for call in calls]
                modules = frozenset(called).union(module for module in evaluated if ~module not in called)
                unclaimed += min(called.count(module) for module in set(called)) - 1
                size = max(calls, key=lambda call: call[:3])
                content = (modules, *map(id, size[5:6]), *size[6:])  # a tensor that lives has one weak reference
                if size[0] != outside or (len(content) > 1 and content in seen):
                    continue
                seen.add(content)
                total, newest = totals.setdefault(modules, [0, 0]), size[1:3]
            elif unclaimed:  # several forwards first, then their backwards
                unclaimed -= 1
            else:
                continue
            total[0] += newest[0]
            total[1] += newest[1]
        tokens, samples = max(totals.values(), default=(0, 0))
        return tokens, samples


def _micro_batches(log: Log) -> list[tuple[list[Call], list[int]]]:
    """The log, cut where a backward begins: calls with gradients, and modules called without."""
    found: list[tuple[list[Call], list[int]]] = [([], [])]
    for entry in log:
        calls, evaluated = found[-1]
        if entry is None:
            found.append(([], []))
        elif isinstance(entry, int):
            evaluated.append(entry)
        else:
            calls.append(entry)
    found = [(_trained(calls), evaluated) for calls, evaluated in found]
    if not found[-1][0]:  # else there are calls whose backward was not seen, or was in a closure of the optimizer
        found.pop()
    return found


def _trained(calls: list[Call]) -> list[Call]:
    """Without calls of a module that evaluate it with gradients, before the batch that it is trained on."""
    in_training = {call[3] for call in calls if call[4]}
    return [call for call in calls if call[4] or call[3] not in in_training]


def _identity(tensor: Any) -> tuple[ref[Any], int | None]:
    """What tells a tensor and its content from others; weak, since the program frees its batches when it likes."""
    try:
        return ref(tensor), tensor._version
    except RuntimeError:  # inference tensors have no version
        return ref(tensor), None
