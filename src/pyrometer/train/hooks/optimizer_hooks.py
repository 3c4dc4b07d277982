"""Hooks on optimizers: where steps end, which models they train, and which of their steps do not count."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from pyrometer.train.hooks.gradients import LastGradients
from pyrometer.train.hooks.patching import Original, wrap
from pyrometer.train.steps.flops import COUNT_AT

if TYPE_CHECKING:
    from pyrometer.train.hooks.hook_installer import Hooks
    from pyrometer.train.hooks.model_hooks import ModelHooks
    from pyrometer.train.run.rank import TrainingRank

MAX_OPTIMIZERS = 16  # whose models are searched for, because a search looks at all objects of the process
SETTLED_STEPS = 4  # steps of an optimizer after which its model is known


class OptimizerHooks:
    """The hooks on all optimizers, and on the step of a loss scaler."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._settling: dict[int, int] = {}  # by optimizer: how many of its first steps are done
        self._ignores_steps = False
        self.gradients = LastGradients(hooks)

    def install(self, torch: Any, models: ModelHooks) -> None:
        """Hooks the base class of optimizers."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self.gradients.is_compiling = torch.compiler.is_dynamo_compiling
        register_optimizer_step_pre_hook(self._before_step_hook(torch))
        register_optimizer_step_post_hook(self._after_step_hook(torch, models))
        wrap(torch.optim.Optimizer, "__init__", self._new_optimizer)
        wrap(torch.amp.grad_scaler.GradScaler, "step", self._scaler_step_hook())

    def install_state_dict(self, module: Any) -> None:
        """Hooks a step with zeros, by which an optimizer gets a state that can be saved or loaded."""
        wrap(module, "_init_optim_state", self._ignore_steps)

    def forget(self) -> None:
        """Forgets all optimizers."""
        self._settling = {}
        self._ignores_steps = False
        self.gradients.forget()

    def _ignore_steps(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        before, self._ignores_steps = self._ignores_steps, True
        try:
            return original(*args, **kwargs)
        finally:
            self._ignores_steps = before

    def _new_optimizer(self, original: Original, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        hooks = self._hooks
        if hooks.rank is None:
            hooks.start_rank()
        if hooks.rank is not None:
            if not hooks.optimizer_steps:
                hooks.rank.recorder.adopt_thread()  # some frameworks train in another thread than the main one
            hooks.rank.recorder.expect(optimizer)
            self._settling[id(optimizer)] = 0
            hooks.lineage.sees_forwards = False  # the optimizer may be of another model
        return result

    def _before_step_hook(self, torch: Any) -> Original:
        hooks, is_compiling = self._hooks, torch.compiler.is_dynamo_compiling

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if is_compiling() or self._ignores_steps:
                return
            rank = hooks.rank or hooks.rank_after_fork()
            if rank is None:
                return
            hooks.optimizer_steps += 1
            if hooks.optimizer_steps == 1:
                rank.recorder.adopt_thread()
            if not rank.recorder.light:
                rank.recorder.enter_optimizer(optimizer)

        return before_step

    def _after_step_hook(self, torch: Any, models: ModelHooks) -> Original:
        hooks, is_compiling = self._hooks, torch.compiler.is_dynamo_compiling

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            rank = hooks.rank
            if is_compiling() or self._ignores_steps or rank is None:
                return
            recorder = rank.recorder
            if recorder.light:
                ends = recorder.ends
                ends.append(perf_counter_ns())
                recorder.count += 1
                if len(ends) >= recorder.every - 1 or recorder.marks:
                    recorder.passed()
                return
            counts = models.counting and recorder.count == COUNT_AT
            if not recorder.leave_optimizer(optimizer):
                return
            if counts:
                rank.windows.set_flops(models.counting.total)
            done = self._settling.get(id(optimizer), 0)
            if done < SETTLED_STEPS:  # a model is searched for when it is complete: wrapped, compiled, on its device
                self._settling[id(optimizer)] = done + 1
                try:
                    self._settle(rank, optimizer, models, first=not done)
                except Exception as error:
                    hooks.disable(error)
                recorder.include()

        return after_step

    def _settle(self, rank: TrainingRank, optimizer: Any, models: ModelHooks, *, first: bool) -> None:
        """Finds the model of an optimizer in its first steps."""
        roots = models.roots
        assert roots is not None  # noqa: S101 - set when torch is imported
        if first:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            if self._hooks.optimizer_steps == 1:
                rank.first_step_done(optimizer, parameters)
            if len(self._settling) <= MAX_OPTIMIZERS:
                roots.find(id(optimizer), parameters)
        else:
            roots.settle(id(optimizer))
        for module in roots.of_type("DistributedDataParallel"):
            self.gradients.watch(module)

    def _scaler_step_hook(self) -> Original:
        hooks = self._hooks

        def scaler_step(original: Original, *args: Any, **kwargs: Any) -> Any:
            before = hooks.optimizer_steps
            result = original(*args, **kwargs)
            rank, optimizer = hooks.rank, args[1] if len(args) > 1 else kwargs.get("optimizer")
            if rank is not None and hooks.optimizer_steps == before and rank.recorder.enter_optimizer(optimizer):
                rank.recorder.leave_optimizer(optimizer, skipped=True)
            return result

        return scaler_step
