"""The number of samples and tokens of a step. A batch counts once, however many modules it passes through.

The forwards before a backward belong to one micro-batch, and the largest of them determines its size: two encoders, two
views, and a cell that is called for every time step all process the same samples. Micro-batches of one optimizer are
added if they pass through the same modules (gradient accumulation). If they pass through different modules (a
discriminator on real and on generated images), or if the same tensor is used again (SAM), they are the same samples.
Optimizers that step one after the other share the batch, so the step counts the largest of their amounts.

On the hot path, calls are only appended to a log, which the step of an optimizer evaluates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from pyrometer.train.steps.ring import SAMPLES, TOKENS

# A call of a root module with gradients: whether its input comes from outside of the models (an input with gradients is
# the output of another model), tokens, samples, module, and whether the module is in training mode. If steps have
# several micro-batches, also the identity of the input.
Call = tuple[Any, ...]
# In the order of events: calls; root modules called without gradients, as ~module; None where a backward begins.
Log = list[Call | int | None]


class Work:
    """The work of the current step of one training thread."""

    __slots__ = ("_log", "_several", "reported")

    def __init__(self) -> None:
        self.reported: set[str] = set()  # "samples" or "tokens", if the program reports them itself
        self._log: Log = []  # since the last step of an optimizer
        self._several = False  # steps have several micro-batches, so inputs are compared

    def forward(self, module: int, tensors: Sequence[Any], *, training: bool) -> None:
        """A root module is called with gradients. A scalar input, like a time step, does not tell the batch size."""
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
        """A root module is called without gradients, perhaps to compute the input of another module."""
        if ~module not in self._log:
            self._log.append(~module)

    def backward(self) -> None:
        """A backward begins."""
        if self._log:
            self._log.append(None)

    def optimizer(self, row: list[int]) -> None:
        """An optimizer has stepped: adds what it trained on to the row of the step."""
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
                # a tensor has the same weak reference while it exists
                content = (modules, *map(id, size[5:6]), *size[6:])
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
    """Splits the log where a backward begins: calls with gradients, and modules called without."""
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
    if not found[-1][0]:  # the last calls had a backward that was not seen, or that was in a closure of the optimizer
        found.pop()
    return found


def _trained(calls: list[Call]) -> list[Call]:
    """Removes calls that evaluate a module with gradients before the batch that it is trained on."""
    in_training = {call[3] for call in calls if call[4]}
    return [call for call in calls if call[4] or call[3] not in in_training]


def _identity(tensor: Any) -> tuple[ref[Any], int | None]:
    """The identity of a tensor and its content; weak, because the program may free its batches at any time."""
    try:
        return ref(tensor), tensor._version
    except RuntimeError:  # inference tensors have no version
        return ref(tensor), None
