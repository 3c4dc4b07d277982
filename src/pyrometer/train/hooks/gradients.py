"""Finds the last gradient of a distributed model: from then on, a rank only waits for the gradients of the others."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrometer.train.hooks.hook_installer import Hooks

MAX_LAST_PARAMETERS = 4  # candidates for the last gradient, where not all parameters are used in every step


class LastGradients:
    """Watches one backward of each model, and from then on only the parameters that come last in it."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self.searching: list[_GradientOrder] = []
        self.is_compiling: Callable[[], bool] = bool

    def forget(self) -> None:
        """Forgets all models."""
        self.searching = []
        self._known = weakref.WeakSet()

    def watch(self, module: Any) -> None:
        """Observes the next backward of this model, once."""
        if module not in self._known:
            self._known.add(module)
            self.searching.append(_GradientOrder(module, self._ready_hook()))

    def search(self) -> None:
        """After a backward: keeps the models that had no part in it."""
        try:
            self.searching = [order for order in self.searching if not order.is_found()]
        except Exception as error:
            self._hooks.disable(error)

    def _ready_hook(self) -> Callable[[Any], None]:
        hooks, is_compiling = self._hooks, self.is_compiling

        def ready(_: Any) -> None:
            rank = hooks.rank
            if rank is not None and not is_compiling():
                rank.recorder.ready()

        return ready


class _GradientOrder:
    """The order in which one model's gradients are computed."""

    def __init__(self, module: Any, ready: Callable[[Any], None]) -> None:
        self._ready = ready
        self._order: list[Any] = []
        self._last_count = MAX_LAST_PARAMETERS if getattr(module, "find_unused_parameters", False) else 1
        parameters = [p for p in module.parameters() if p.requires_grad and p.is_leaf]
        self._hooks = [p.register_post_accumulate_grad_hook(self._order.append) for p in parameters]

    def is_found(self) -> bool:
        """Whether the backward was one of this model. Then only its last parameters are watched."""
        if not self._order:
            return False
        for hook in self._hooks:
            hook.remove()
        for parameter in self._order[-self._last_count :]:
            parameter.register_post_accumulate_grad_hook(self._ready)
        return True
