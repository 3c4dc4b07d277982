"""The hooks into PyTorch: which module gets which hooks, and the rank that all of them write to.

Rules for every hook. The function of the program is called exactly once, with the arguments it was given. Its result
and its exceptions pass through unchanged. An error of the SDK switches the SDK off and never reaches the program. No
hook synchronizes a device, draws a random number, or is visible while `torch.compile` traces.

Hooks that run in every step are closures over the objects they need: a bound method of a part would read the rank
through one more attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyrometer.train.hooks.checkpoint_hooks import CheckpointHooks
from pyrometer.train.hooks.data_loader_hooks import DataLoaderHooks
from pyrometer.train.hooks.distributed_hooks import DistributedHooks
from pyrometer.train.hooks.model_hooks import ModelHooks
from pyrometer.train.hooks.optimizer_hooks import OptimizerHooks
from pyrometer.train.hooks.pause_hooks import PauseHooks
from pyrometer.train.hooks.stack_timer import StackTimer
from pyrometer.train.steps.sample_lineage import Lineage

if TYPE_CHECKING:
    from pyrometer.train.run.rank import TrainingRank


class Hooks:
    """The hooks of one process. They do nothing before there is a rank, and nothing after it was detached."""

    def __init__(self, start: Callable[[], TrainingRank | None]) -> None:
        self.rank: TrainingRank | None = None
        self.lineage = Lineage()  # before there is a rank: a loader may be used before there is an optimizer
        self.tracked: dict[tuple[str, str], str] = {}  # runs of trackers: a message by kind and name
        self.optimizer_steps = 0
        self.observes_memory = False
        self.stack_timer = StackTimer()
        self.optimizers = OptimizerHooks(self)
        self.models = ModelHooks(self, self.optimizers)
        self.data_loaders = DataLoaderHooks(self)
        self.checkpoints = CheckpointHooks(self)
        self.distributed = DistributedHooks(self)
        self.pauses = PauseHooks(self)
        self._start = start
        self._installed: set[str] = set()
        self._is_fork = False

    # -- the rank -----------------------------------------------------------------------------------------------------

    def start_rank(self) -> None:
        """The program begins to train: makes this process a rank."""
        try:
            self.rank = self._start()
        except Exception as error:
            self.disable(error)

    def rank_after_fork(self) -> TrainingRank | None:
        """The rank of a forked process, which may train with an optimizer from before the fork."""
        if self._is_fork:
            self._is_fork = False
            self.start_rank()
        return self.rank

    def disable(self, error: BaseException) -> None:
        """An error of the SDK: from here on the program runs as if there were no SDK."""
        rank, self.rank = self.rank, None
        if rank is not None:
            rank.sdk_failed(error)

    def detach(self) -> None:
        """Forgets the rank and its objects: it has ended, or this process is a fork."""
        self.rank = None
        self.optimizer_steps = 0
        self._is_fork = False
        self.lineage = Lineage()
        for part in (self.optimizers, self.models, self.data_loaders, self.checkpoints, self.distributed):
            part.forget()

    # -- forks --------------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Prepares the process for a fork."""
        self.stack_timer.before_fork(armed=self.rank is not None)

    def after_fork(self) -> None:
        """Continues in the process that forked."""
        self.stack_timer.after_fork()

    def forked(self) -> None:
        """Continues in the copy of the process."""
        self.stack_timer.after_fork()
        self.detach()
        self._is_fork = True

    # -- installing ---------------------------------------------------------------------------------------------------

    def install(self, name: str, module: Any) -> None:
        """Puts the hooks into a module that was imported, once."""
        install = _INSTALL.get(name)
        if install is None or name in self._installed:
            return
        self._installed.add(name)
        try:
            install(self, module)
        except Exception as error:
            self.disable(error)

    def _install_torch(self, torch: Any) -> None:
        self.models.install(torch)
        self.optimizers.install(torch, self.models)
        self.checkpoints.install(torch)
        self.data_loaders.install(torch)
        self.distributed.install(torch)
        self.pauses.install()


_INSTALL: dict[str, Callable[[Hooks, Any], None]] = {
    "torch": Hooks._install_torch,
    "torch._dynamo.callback": lambda hooks, module: hooks.pauses.install_dynamo(module),
    "torch.distributed.checkpoint": lambda hooks, module: hooks.checkpoints.install_distributed(module),
    "torch.distributed.checkpoint.state_dict": lambda hooks, module: hooks.optimizers.install_state_dict(module),
    "safetensors.torch": lambda hooks, module: hooks.checkpoints.install_safetensors(module),
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": lambda hooks, module: hooks.distributed.install_fsdp(
        module
    ),
}
WATCHED = frozenset(_INSTALL)
