"""Hooks on the model: its forward, the backward of its loss, and the operations of one step."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from pyrometer.train.hooks.model_roots import Roots
from pyrometer.train.hooks.optimizer_hooks import SETTLED_STEPS
from pyrometer.train.hooks.patching import Original, replace, wrap
from pyrometer.train.hooks.tensors import collect_tensors, local_loss
from pyrometer.train.steps import ring
from pyrometer.train.steps.flops import COUNT_AT, countable, counter

if TYPE_CHECKING:
    from pyrometer.train.hooks.hook_installer import Hooks
    from pyrometer.train.hooks.optimizer_hooks import OptimizerHooks
    from pyrometer.train.run.rank import TrainingRank


class ModelHooks:
    """The hooks on root modules, on `backward`, and on the scaling of a loss."""

    def __init__(self, hooks: Hooks, optimizers: OptimizerHooks) -> None:
        self._hooks = hooks
        self._gradients = optimizers.gradients
        self._tensor_type: type = object
        self._unscaled: tuple[Any, Any] | None = None  # the scaled loss and the loss, weakly
        self.roots: Roots | None = None
        self.counting: Any = None  # counts the operations of one step. False: it does not, or no longer

    def install(self, torch: Any) -> None:
        """Hooks `backward` and the loss scaler. Root modules are hooked when they are found."""
        self._tensor_type = torch.Tensor
        self.roots = Roots(torch, lambda original: self._forward_hook(torch, original))
        replace(torch.autograd, "backward", lambda original: self._backward_hook(torch, original))
        wrap(torch.amp.grad_scaler.GradScaler, "scale", self._scale_hook(torch))

    def forget(self) -> None:
        """Forgets the model."""
        self._unscaled = self.counting = None
        if self.roots is not None:
            self.roots.forget()

    def _forward_hook(self, torch: Any, original: Original) -> Original:
        """The replacement of a class's `__call__`, for the model itself and for all other objects of its class."""
        assert self.roots is not None  # noqa: S101 - set when torch is imported
        hooks, held, called = self._hooks, self.roots.held, self.roots.called
        grad_enabled, tensor_type = torch.is_grad_enabled, torch.Tensor
        compiler = sys.modules["torch.compiler"]
        is_compiling = torch.compiler.is_dynamo_compiling  # a constant while a graph is traced

        def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            rank = None if is_compiling() else hooks.rank
            if rank is None or id(module) not in held or compiler._is_compiling_flag:
                return original(module, *args, **kwargs)
            recorder = rank.recorder
            gradients = grad_enabled()
            if recorder.light and gradients:
                return original(module, *args, **kwargs)
            if recorder.inside and not (gradients and recorder.phase == ring.OPTIMIZER):
                # A part of something larger, like a recomputation in backward. The closure of an optimizer is not.
                return original(module, *args, **kwargs)
            if gradients:
                recorder.evaluating = False
                entered = recorder.enter(ring.FORWARD)
            else:
                entered = recorder.enter_evaluation()
            if entered:
                try:
                    called.add(id(module))
                    if len(args) == 1 and not kwargs and type(args[0]) is tensor_type:
                        tensors: Any = args
                    else:
                        tensors = []
                        collect_tensors(args, tensor_type, tensors)
                        if kwargs:
                            collect_tensors(kwargs, tensor_type, tensors)
                    if hooks.lineage.loaders:
                        hooks.lineage.forward(recorder.count, recorder.last_ns, tensors, gradients=gradients)
                    if not gradients:
                        recorder.work.evaluation(id(module))
                    elif tensors:
                        recorder.work.forward(id(module), tensors, training=module.training)
                except Exception as error:
                    hooks.disable(error)
            try:
                if entered and gradients and recorder.count == COUNT_AT:
                    return self._call_counted(rank, original, module, *args, **kwargs)
                return original(module, *args, **kwargs)
            finally:
                if entered:
                    recorder.leave()

        return call

    def _backward_hook(self, torch: Any, original: Original) -> Original:
        hooks, gradients = self._hooks, self._gradients
        is_compiling = torch.compiler.is_dynamo_compiling

        def backward(*args: Any, **kwargs: Any) -> Any:
            rank = hooks.rank
            if is_compiling() or rank is None or rank.recorder.light:
                return original(*args, **kwargs)
            recorder = rank.recorder
            in_closure = recorder.inside and recorder.phase == ring.OPTIMIZER
            entered = (not recorder.inside or in_closure) and recorder.enter(ring.BACKWARD)
            if entered:
                try:
                    if not in_closure:  # a closure may be called several times, on the same batch
                        recorder.work.backward()
                    if hooks.lineage.loaders:
                        hooks.lineage.backward(recorder.count, recorder.last_ns)
                    self._record_loss(rank, args[0] if args else kwargs.get("tensors"))
                    if hooks.optimizer_steps <= SETTLED_STEPS:
                        rank.progress.still_in_loop(sys._getframe())
                except Exception as error:
                    hooks.disable(error)
            try:
                if entered and self.counting and recorder.count == COUNT_AT:
                    return self._call_counted(rank, original, *args, **kwargs)
                return original(*args, **kwargs)
            finally:
                if entered:
                    recorder.leave()
                    if gradients.searching:
                        gradients.search()

        return backward

    def _record_loss(self, rank: TrainingRank, loss: Any) -> None:
        if type(loss) is not self._tensor_type:
            loss = local_loss(loss, self._tensor_type)
        if loss is None or loss.numel() != 1:
            return
        if self._unscaled is not None:
            scaled, before = self._unscaled
            self._unscaled = None
            if scaled() is loss:
                unscaled = before()
                loss = loss if unscaled is None else unscaled
        rank.metrics.backward(loss, rank.recorder.device)

    def _scale_hook(self, torch: Any) -> Original:
        hooks, tensor_type = self._hooks, torch.Tensor

        def scale(original: Original, *args: Any, **kwargs: Any) -> Any:
            scaled = original(*args, **kwargs)
            outputs = args[1] if len(args) > 1 else kwargs.get("outputs")
            if hooks.rank is not None and isinstance(outputs, tensor_type):
                self._unscaled = (weakref.ref(scaled), weakref.ref(outputs))
            return scaled

        return scale

    def _call_counted(self, rank: TrainingRank, original: Original, *args: Any, **kwargs: Any) -> Any:
        """Calls a forward or backward once, and counts its operations."""
        try:
            roots = list(self.roots.modules.values()) if self.roots is not None else []
            if self.counting is None:
                self.counting = counter() if not rank.windows.flops and countable(roots) else False
            counting = self.counting
        except Exception as error:
            self._hooks.disable(error)
            counting = False
        if not counting:
            return original(*args, **kwargs)
        with counting:
            return original(*args, **kwargs)
