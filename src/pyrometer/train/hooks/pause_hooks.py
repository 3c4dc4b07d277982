"""Hooks on what interrupts a step: compilation of a graph, and garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyrometer.train.hooks.patching import Original, wrap
from pyrometer.train.steps import ring

if TYPE_CHECKING:
    from pyrometer.train.hooks.hook_installer import Hooks

MIN_GENERATION = 2  # collections of younger generations are too short for a mark


class PauseHooks:
    """The hooks on Dynamo and on the garbage collector."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def install(self) -> None:
        """Hooks the garbage collector."""
        gc.callbacks.append(self._collection_hook())

    def install_dynamo(self, module: Any) -> None:
        """Hooks the begin and the end of a compilation."""
        hooks = self._hooks
        entered: list[bool] = []

        def begin(original: Original, *args: Any) -> Any:
            rank = hooks.rank
            entered.append(rank is not None and rank.recorder.enter(ring.COMPILE))
            return original(*args)

        def end(original: Original, *args: Any) -> Any:
            rank = hooks.rank
            if entered and entered.pop() and rank is not None:
                rank.recorder.leave()
                rank.compiled()
            return original(*args)

        # Not registered as Dynamo's own callbacks, because `torch._dynamo.reset` removes those.
        wrap(module.CompilationCallbackHandler, "run_start_callbacks", begin)
        wrap(module.CompilationCallbackHandler, "run_end_callbacks", end)

    def _collection_hook(self) -> Callable[[str, dict[str, int]], None]:
        hooks = self._hooks

        def collect(phase: str, info: dict[str, int]) -> None:
            rank = hooks.rank
            if rank is None or info["generation"] < MIN_GENERATION:
                return
            recorder = rank.recorder
            if phase == "start":
                recorder.enter(ring.GARBAGE)
            elif recorder.phase == ring.GARBAGE and recorder.inside:
                recorder.leave()

        return collect
