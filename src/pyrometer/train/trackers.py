"""Metrics that the program gives to somebody else: W&B, MLflow, TensorBoard, the Hugging Face Trainer, Lightning.

Each is listened to where all its ways come together. What the program said goes on as it was said.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrometer.train.hooks import Hooks

Heard = Callable[[Mapping[str, Any], int | None], None]


def install(hooks: Hooks, name: str, module: Any) -> None:
    """A tracker was imported: listens to it."""
    listen = _LISTEN.get(name)
    if listen is None:
        return

    def heard(values: Mapping[str, Any], step: int | None) -> None:
        rank = hooks.rank
        if rank is not None and values:
            rank.log(dict(values), step, None)

    listen(module, heard, hooks)


def _after(owner: Any, name: str, tell: Callable[..., None]) -> None:
    """Calls `tell` with the same arguments, after what is there; what goes wrong in it is nobody's business."""
    original = vars(owner).get(name)
    if original is None:
        return

    @functools.wraps(original)
    def listening(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with suppress(Exception):  # the program's call has succeeded
            tell(*args, **kwargs)
        return result

    setattr(owner, name, listening)


def _wandb(module: Any, heard: Heard, hooks: Hooks) -> None:
    def tell(run: Any, data: Mapping[str, Any], step: int | None = None, *args: Any, **kwargs: Any) -> None:
        heard(data, step)

    _after(module.Run, "log", tell)


def _mlflow(module: Any, heard: Heard, hooks: Hooks) -> None:
    def one(key: str, value: float, step: int | None = None, *args: Any, **kwargs: Any) -> None:
        heard({key: value}, step)

    def several(metrics: Mapping[str, Any], step: int | None = None, *args: Any, **kwargs: Any) -> None:
        heard(metrics, step)

    _after(module, "log_metric", one)
    _after(module, "log_metrics", several)


def _tensorboard(module: Any, heard: Heard, hooks: Hooks) -> None:
    def one(writer: Any, tag: str, value: Any, global_step: int | None = None, *args: Any, **kwargs: Any) -> None:
        heard({tag: value}, global_step)

    def several(
        writer: Any, main_tag: str, values: Mapping[str, Any], global_step: int | None = None, *args: Any, **kwargs: Any
    ) -> None:
        heard({f"{main_tag}/{tag}": value for tag, value in values.items()}, global_step)

    _after(module.SummaryWriter, "add_scalar", one)
    _after(module.SummaryWriter, "add_scalars", several)


def _transformers(module: Any, heard: Heard, hooks: Hooks) -> None:
    """The Trainer's own callbacks hear everything, whichever trackers it reports to."""

    def logged(handler: Any, args: Any, state: Any, control: Any, logs: Mapping[str, Any], *more: Any) -> None:
        heard(logs, state.global_step)

    def began(handler: Any, args: Any, state: Any, control: Any, *more: Any) -> None:
        rank = hooks.rank
        if rank is not None:
            rank.framework("transformers", state.global_step)

    _after(module.CallbackHandler, "on_log", logged)
    _after(module.CallbackHandler, "on_train_begin", began)


def _lightning(module: Any, heard: Heard, hooks: Hooks) -> None:
    """What `self.log` says comes together here, whichever loggers there are."""

    def logged(connector: Any, metrics: Mapping[str, Any], step: int | None = None, *more: Any) -> None:
        heard(metrics, connector.trainer.global_step if step is None else step)

    _after(module._LoggerConnector, "log_metrics", logged)


_LIGHTNING = "pytorch.trainer.connectors.logger_connector.logger_connector"
_LISTEN: dict[str, Callable[[Any, Heard, Hooks], None]] = {
    "wandb.sdk.wandb_run": _wandb,
    "mlflow.tracking.fluent": _mlflow,
    "torch.utils.tensorboard.writer": _tensorboard,
    "tensorboardX.writer": _tensorboard,
    "transformers.trainer_callback": _transformers,
    f"lightning.{_LIGHTNING}": _lightning,
    f"pytorch_lightning.{_LIGHTNING.removeprefix('pytorch.')}": _lightning,
}
WATCHED = frozenset(_LISTEN)
