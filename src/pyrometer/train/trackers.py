"""Metrics that the program gives to somebody else: a tracker, or the framework that trains.

Each is listened to where all its ways come together: a door. What the program said goes on as it was said, and is heard
once it has succeeded. A framework hands the same values to its trackers: of what passes through other doors meanwhile,
only what has another name and another value is news.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyrometer.train import tracked

if TYPE_CHECKING:
    from pyrometer.train.hooks import Hooks

Values = Mapping[str, Any]
Heard = Callable[..., None]  # values, their step, and whether they are about the steps that were just trained
_SOURCES = {"torch": "tensorboard", "pytorch_lightning": "lightning"}  # what other packages are called here
MOST_NESTED = 4  # of dictionaries in dictionaries, as W&B takes them


class _Outer(threading.local):
    """The doors that this thread is in."""

    names: frozenset[str] = frozenset()
    numbers: frozenset[float] = frozenset()


_outer = _Outer()


def install(hooks: Hooks, name: str, module: Any) -> None:
    """A tracker was imported: listens to it."""
    listen = _LISTEN.get(name)
    if listen is None:
        return
    package = name.partition(".")[0]
    door = _SOURCES.get(package, package)

    def heard(values: Values, step: Any, of_training: bool | None = None) -> None:
        rank = hooks.rank
        if rank is not None and values:
            news = {
                key: value
                for key, value in values.items()
                if key not in _outer.names and not (isinstance(value, int | float) and value in _outer.numbers)
            }
            rank.hear(news, _whole(step), door, step is None if of_training is None else of_training)

    listen(module, heard, hooks)


def _whole(step: Any) -> int | None:
    """A step number as programs give it: numpy and torch have numbers of their own. None is read from a GPU."""
    if step is None or isinstance(step, str) or getattr(step, "is_cuda", False):
        return None
    with suppress(TypeError, ValueError, OverflowError, RuntimeError):
        return int(step)
    return None


def _after(owner: Any, name: str, tell: Callable[..., None], inner: Callable[..., Values] | None = None) -> None:
    """Calls `tell` with the same arguments, after what is there; what goes wrong in it is nobody's business.

    `inner` says which values are handed on to other doors while it runs.
    """
    original = vars(owner).get(name)
    if original is None:
        return

    @functools.wraps(original)
    def listening(*args: Any, **kwargs: Any) -> Any:
        before = _outer.names, _outer.numbers
        with suppress(Exception):
            if inner is not None:
                values = inner(*args, **kwargs)
                numbers = (value for value in values.values() if isinstance(value, int | float))
                _outer.names, _outer.numbers = before[0].union(values), before[1].union(map(float, numbers))
        try:
            result = original(*args, **kwargs)
        finally:
            _outer.names, _outer.numbers = before
        with suppress(Exception):  # the program's call has succeeded
            tell(*args, **kwargs)
        return result

    setattr(owner, name, listening)


def _flat(values: Values, before: str = "", depth: int = 0) -> dict[str, Any]:
    """Dictionaries in dictionaries, with the names that W&B gives them."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            if depth < MOST_NESTED:
                found |= _flat(value, f"{before}{name}.", depth + 1)
        else:
            found[f"{before}{name}"] = value
    return found


def _wandb(module: Any, heard: Heard, hooks: Hooks) -> None:
    def tell(run: Any, data: Values, step: int | None = None, *more: Any, **options: Any) -> None:
        heard(_flat(data), step)

    _after(module.Run, "log", tell)


def _mlflow(module: Any, heard: Heard, hooks: Hooks) -> None:
    def one(key: str, value: float, step: int | None = None, *more: Any, **options: Any) -> None:
        heard({key: value}, step)

    def several(metrics: Values, step: int | None = None, *more: Any, **options: Any) -> None:
        heard(metrics, step)

    tracked.mlflow_runs(module, "start_run", hooks)
    _after(module, "log_metric", one, lambda key, *more, **options: {key: None})
    _after(module, "log_metrics", several, lambda metrics, *more, **options: metrics)


def _mlflow_client(module: Any, heard: Heard, hooks: Hooks) -> None:
    def one(
        client: Any, run_id: str, key: str, value: float, timestamp: Any = None, step: int | None = None, **more: Any
    ) -> None:
        heard({key: value}, step)
        tracked.meet_mlflow(hooks, run_id, client.tracking_uri)

    def several(client: Any, run_id: str, metrics: Any = (), *more: Any, **options: Any) -> None:
        for metric in metrics:
            if not metric.key.startswith("system/"):  # of the machine, by a thread of MLflow
                heard({metric.key: metric.value}, metric.step)
        tracked.meet_mlflow(hooks, run_id, client.tracking_uri)

    tracked.mlflow_runs(module.MlflowClient, "create_run", hooks)
    _after(module.MlflowClient, "log_metric", one)
    _after(module.MlflowClient, "log_batch", several)


def _tensorboard(module: Any, heard: Heard, hooks: Hooks) -> None:
    def one(writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *more: Any, **options: Any) -> None:
        heard({tag: scalar_value}, global_step)

    def several(
        writer: Any, main_tag: str, tag_scalar_dict: Values, global_step: Any = None, *more: Any, **options: Any
    ) -> None:
        heard({f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}, global_step)

    _after(module.SummaryWriter, "add_scalar", one)
    _after(module.SummaryWriter, "add_scalars", several)


def _accelerate(module: Any, heard: Heard, hooks: Hooks) -> None:
    def logged(accelerator: Any, values: Values, step: int | None = None, *more: Any, **options: Any) -> None:
        if accelerator.is_main_process:
            heard(_flat(values), step)
        elif hooks.rank is not None:
            hooks.rank.metrics.told_elsewhere(_flat(values))

    def prepared(*args: Any, **options: Any) -> None:
        _within(hooks, "accelerate")

    _after(module.Accelerator, "log", logged, lambda accelerator, values, *more, **options: _flat(values))
    _after(module.Accelerator, "prepare", prepared)


def _transformers(module: Any, heard: Heard, hooks: Hooks) -> None:
    """The Trainer's own callbacks hear everything, whichever trackers it reports to."""

    def logged(handler: Any, args: Any, state: Any, control: Any, logs: Values, *more: Any, **options: Any) -> None:
        # With a learning rate, the loss is the Trainer's mean over the steps since it last logged one. Evaluations, the
        # summary at the end and what a program logs through the Trainer are not about those steps.
        heard(logs, state.global_step, "loss" in logs and "learning_rate" in logs)

    def handed_on(
        handler: Any, args: Any, state: Any, control: Any, logs: Values, *more: Any, **options: Any
    ) -> Values:
        return {**logs, "train/global_step": state.global_step}

    def began(handler: Any, args: Any, state: Any, control: Any, *more: Any, **options: Any) -> None:
        if hooks.rank is not None:
            hooks.rank.framework("transformers", state.global_step)

    def evaluated(handler: Any, *more: Any, **options: Any) -> None:
        if hooks.rank is not None:
            hooks.rank.recorder.evaluates(False)

    _after(module.CallbackHandler, "on_log", logged, handed_on)
    _after(module.CallbackHandler, "on_evaluate", evaluated)
    _after(module.CallbackHandler, "on_train_begin", began)


def _lightning(module: Any, heard: Heard, hooks: Hooks) -> None:
    """What `self.log` says comes together here, whichever loggers there are."""

    def logged(connector: Any, metrics: Values, step: int | None = None, *more: Any) -> None:
        trainer, values = connector.trainer, dict(metrics)
        if step is None:  # as the connector itself chooses it for the loggers
            own = values.pop("step", None)
            if own is None or (getattr(own, "is_cuda", False) and not trainer.loggers):  # reading it would wait
                step = trainer.fit_loop.epoch_loop._batches_that_stepped
            else:
                step = _whole(own)
        heard(values, step, trainer.training)

    def handed_on(connector: Any, metrics: Values, *more: Any, **options: Any) -> Values:
        return {**dict.fromkeys(metrics), "epoch": None}

    _after(module._LoggerConnector, "log_metrics", logged, handed_on)


def _lightning_fit(module: Any, heard: Heard, hooks: Hooks) -> None:
    def began(loop: Any, *more: Any) -> None:
        if hooks.rank is not None:
            hooks.rank.framework("lightning", loop.trainer.global_step)

    _after(module._FitLoop, "on_run_start", began)


def _torchtitan(module: Any, heard: Heard, hooks: Hooks) -> None:
    """Its metrics come together here, on all ranks, whether it writes them anywhere or only prints them."""
    speaking: weakref.WeakSet[Any] = weakref.WeakSet()

    def made(processor: Any, config: Any, *, parallel_dims: Any, pp_schedule: str = "1F1B", **options: Any) -> None:
        _within(hooks, "torchtitan")
        rank = module._get_metrics_rank(parallel_dims=parallel_dims, pp_schedule=pp_schedule)
        if module.torch.distributed.get_rank() == rank:  # with pipelines, others have no loss
            speaking.add(processor)

    def named(
        processor: Any,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: Values | None = None,
    ) -> Values:
        losses = {"loss_metrics/global_avg_loss": global_avg_loss, "loss_metrics/global_max_loss": global_max_loss}
        return {**losses, "grad_norm": grad_norm, **(extra_metrics or {})}

    def logged(processor: Any, step: int, *values: Any, **options: Any) -> None:
        said = named(processor, step, *values, **options)
        if processor in speaking:
            heard(said, step)
        elif hooks.rank is not None:
            hooks.rank.metrics.told_elsewhere(said)

    def validated(processor: Any, loss: float, step: int, extra_metrics: Values | None = None) -> None:
        if processor in speaking:
            heard({"validation_metrics/loss": loss, **(extra_metrics or {})}, step)

    _after(module.MetricsProcessor, "__init__", made)
    _after(module.MetricsProcessor, "log", logged, named)
    _after(module.MetricsProcessor, "log_validation", validated)


def _ray(module: Any, heard: Heard, hooks: Hooks) -> None:
    """What each worker reports."""

    def reported(worker: Any, metrics: Values, *more: Any, **options: Any) -> None:
        _within(hooks, "ray")
        heard(_flat(metrics), None)

    for name in ("DistributedTrainFnUtils", "LocalTrainFnUtils"):
        if hasattr(module, name):
            _after(getattr(module, name), "report", reported)


def _ray_worker(module: Any, heard: Heard, hooks: Hooks) -> None:
    """A worker trains in a thread, and is killed after it: with its function, the rank has ended."""
    original = module.ThreadRunner.run

    def watched(target: Callable[[], Any]) -> Any:
        try:
            result = target()
        except BaseException as error:
            with suppress(Exception):  # the program's own error is the one that counts
                if hooks.rank is not None:
                    hooks.rank.excepted(error)
            raise
        with suppress(Exception):  # the program has succeeded
            if hooks.rank is not None:
                hooks.rank.close("succeeded")
        return result

    @functools.wraps(original)
    def run(runner: Any, target: Callable[[], Any]) -> Any:
        return original(runner, functools.wraps(target)(functools.partial(watched, target)))

    module.ThreadRunner.run = run


def _within(hooks: Hooks, framework: str) -> None:
    """Frameworks use each other: the first that is seen names the run."""
    if hooks.rank is not None and "framework" not in hooks.rank.identity:
        hooks.rank.framework(framework, None)


def _mlflow_registry(module: Any, heard: Heard, hooks: Hooks) -> None:
    tracked.mlflow_registry(module, hooks)


def _wandb_init(module: Any, heard: Heard, hooks: Hooks) -> None:
    tracked.wandb_runs(module, hooks)


_LISTEN: dict[str, Callable[[Any, Heard, Hooks], None]] = {
    "wandb.sdk.wandb_run": _wandb,
    "wandb.sdk.wandb_init": _wandb_init,
    "mlflow.tracking.context.registry": _mlflow_registry,
    "mlflow.tracking.fluent": _mlflow,
    "mlflow.tracking.client": _mlflow_client,
    "torch.utils.tensorboard.writer": _tensorboard,
    "tensorboardX.writer": _tensorboard,
    "accelerate.accelerator": _accelerate,
    "transformers.trainer_callback": _transformers,
    "torchtitan.components.metrics": _torchtitan,
    "ray.train.v2._internal.execution.train_fn_utils": _ray,
    "ray.train.v2._internal.execution.worker_group.thread_runner": _ray_worker,
}
for _package in ("lightning.pytorch", "pytorch_lightning"):
    _LISTEN[f"{_package}.trainer.connectors.logger_connector.logger_connector"] = _lightning
    _LISTEN[f"{_package}.loops.fit_loop"] = _lightning_fit
WATCHED = frozenset(_LISTEN)
