"""Hooks on communication between ranks: the rendezvous, and what FSDP waits for on the host."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from pyrometer.train.hooks.patching import Original, wrap
from pyrometer.train.steps import ring

if TYPE_CHECKING:
    from pyrometer.train.hooks.hook_installer import Hooks


class DistributedHooks:
    """The hooks on `torch.distributed`."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._in_rendezvous = False

    def install(self, torch: Any) -> None:
        """Hooks the rendezvous of all ranks."""
        if torch.distributed.is_available():
            for module in (torch.distributed.distributed_c10d, torch.distributed):
                wrap(module, "init_process_group", self._rendezvous)

    def install_fsdp(self, module: Any) -> None:
        """Hooks the waits of FSDP2 on the host. On a GPU only streams wait, which the host does not see.

        On a CPU `unshard` gathers the parameters and waits for them, and `post_backward` does so with the gradients.
        The other two functions wait for what was started ahead. Ranks meet several times in a step: a rank that is late
        in a phase makes the others wait in the same phase.
        """
        for name in ("unshard", "wait_for_unshard", "finalize_backward", "post_backward"):
            if hasattr(module.FSDPParamGroup, name):
                wrap(module.FSDPParamGroup, name, self._wait_hook())

    def forget(self) -> None:
        """Forgets a rendezvous that was interrupted."""
        self._in_rendezvous = False

    def _wait_hook(self) -> Original:
        from torch.compiler import is_dynamo_compiling as is_compiling

        hooks = self._hooks

        def wait(original: Original, *args: Any, **kwargs: Any) -> Any:
            rank = hooks.rank
            entered = rank is not None and not is_compiling() and rank.recorder.enter(ring.COMM)
            try:
                return original(*args, **kwargs)
            finally:
                if entered and rank is not None:
                    rank.recorder.leave()

        return wait

    def _rendezvous(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        hooks = self._hooks
        if self._in_rendezvous:  # one of the two functions calls the other
            return original(*args, **kwargs)
        self._in_rendezvous = True
        began_ns = perf_counter_ns()
        if hooks.rank is None:
            hooks.start_rank()
        try:
            result = original(*args, **kwargs)
        finally:
            self._in_rendezvous = False
        try:
            if hooks.rank is not None:
                hooks.rank.joined_group(perf_counter_ns() - began_ns)
        except Exception as error:
            hooks.disable(error)
        return result
