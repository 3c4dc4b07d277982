"""Metrics that the program logs to a tracker or to the framework that trains.

Each tracker is wrapped at the one function through which all of its values pass. The program's call runs first, and its
values are recorded after it has succeeded. A framework forwards the same values to its trackers: of the values that
another tracker receives during a call, only those with another name and another value are recorded.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyrometer.train.run import tracker_links

if TYPE_CHECKING:
    from pyrometer.train.hooks.hook_installer import Hooks

Values = Mapping[str, Any]
# called with values, their step, and whether they are about the steps that were just trained
Receive = Callable[..., None]
# the sources of packages that are called differently
_SOURCES = {"torch": "tensorboard", "pytorch_lightning": "lightning"}
MAX_NESTING = 4  # of dictionaries in dictionaries, as W&B accepts them


class _EnclosingCalls(threading.local):
    """What the calls that this thread is in forward to other trackers."""

    names: frozenset[str] = frozenset()
    numbers: frozenset[float] = frozenset()


_enclosing = _EnclosingCalls()


def install(hooks: Hooks, name: str, module: Any) -> None:
    """Wraps the functions of a tracker that was imported."""
    attach = _ATTACH.get(name)
    if attach is None:
        return
    package = name.partition(".")[0]
    source = _SOURCES.get(package, package)

    def receive(values: Values, step: Any, of_training: bool | None = None) -> None:
        rank = hooks.rank
        if rank is not None and values:
            new_values = {
                key: value
                for key, value in values.items()
                if key not in _enclosing.names and not (isinstance(value, int | float) and value in _enclosing.numbers)
            }
            rank.log_received(
                new_values, _step_number(step), source, step is None if of_training is None else of_training
            )

    attach(module, receive, hooks)


def _step_number(step: Any) -> int | None:
    """A step number as an int, also from NumPy and PyTorch; None for a tensor on a GPU, which is not read."""
    if step is None or isinstance(step, str) or getattr(step, "is_cuda", False):
        return None
    with suppress(TypeError, ValueError, OverflowError, RuntimeError):
        return int(step)
    return None


def _call_after(
    owner: Any, name: str, report: Callable[..., None], forwarded: Callable[..., Values] | None = None
) -> None:
    """Calls `report` with the same arguments after the function. Errors of `report` are ignored.

    `forwarded` returns the values that the function passes on to other trackers.
    """
    original = vars(owner).get(name)
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        before = _enclosing.names, _enclosing.numbers
        with suppress(Exception):
            if forwarded is not None:
                values = forwarded(*args, **kwargs)
                numbers = (value for value in values.values() if isinstance(value, int | float))
                _enclosing.names, _enclosing.numbers = before[0].union(values), before[1].union(map(float, numbers))
        try:
            result = original(*args, **kwargs)
        finally:
            _enclosing.names, _enclosing.numbers = before
        with suppress(Exception):  # the program's call has succeeded
            report(*args, **kwargs)
        return result

    setattr(owner, name, wrapper)


def _flat(values: Values, before: str = "", depth: int = 0) -> dict[str, Any]:
    """Flattens nested dictionaries, with the names that W&B uses."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            if depth < MAX_NESTING:
                found |= _flat(value, f"{before}{name}.", depth + 1)
        else:
            found[f"{before}{name}"] = value
    return found


def _wandb(module: Any, receive: Receive, hooks: Hooks) -> None:
    def report(run: Any, data: Values, step: int | None = None, *more: Any, **options: Any) -> None:
        receive(_flat(data), step)

    _call_after(module.Run, "log", report)


def _mlflow(module: Any, receive: Receive, hooks: Hooks) -> None:
    def one(key: str, value: float, step: int | None = None, *more: Any, **options: Any) -> None:
        receive({key: value}, step)

    def several(metrics: Values, step: int | None = None, *more: Any, **options: Any) -> None:
        receive(metrics, step)

    tracker_links.mlflow_runs(module, "start_run", hooks)
    _call_after(module, "log_metric", one, lambda key, *more, **options: {key: None})
    _call_after(module, "log_metrics", several, lambda metrics, *more, **options: metrics)


def _mlflow_client(module: Any, receive: Receive, hooks: Hooks) -> None:
    def one(
        client: Any, run_id: str, key: str, value: float, timestamp: Any = None, step: int | None = None, **more: Any
    ) -> None:
        receive({key: value}, step)
        tracker_links.record_mlflow_run(hooks, run_id, client.tracking_uri)

    def several(client: Any, run_id: str, metrics: Any = (), *more: Any, **options: Any) -> None:
        for metric in metrics:
            if not metric.key.startswith("system/"):  # metrics of the machine, from a thread of MLflow
                receive({metric.key: metric.value}, metric.step)
        tracker_links.record_mlflow_run(hooks, run_id, client.tracking_uri)

    tracker_links.mlflow_runs(module.MlflowClient, "create_run", hooks)
    _call_after(module.MlflowClient, "log_metric", one)
    _call_after(module.MlflowClient, "log_batch", several)


def _tensorboard(module: Any, receive: Receive, hooks: Hooks) -> None:
    def one(writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *more: Any, **options: Any) -> None:
        receive({tag: scalar_value}, global_step)

    def several(
        writer: Any, main_tag: str, tag_scalar_dict: Values, global_step: Any = None, *more: Any, **options: Any
    ) -> None:
        receive({f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}, global_step)

    _call_after(module.SummaryWriter, "add_scalar", one)
    _call_after(module.SummaryWriter, "add_scalars", several)


def _accelerate(module: Any, receive: Receive, hooks: Hooks) -> None:
    def logged(accelerator: Any, values: Values, step: int | None = None, *more: Any, **options: Any) -> None:
        if accelerator.is_main_process:
            receive(_flat(values), step)
        elif hooks.rank is not None:
            hooks.rank.metrics.logged_by_another_rank(_flat(values))

    def prepared(*args: Any, **options: Any) -> None:
        _name_framework(hooks, "accelerate")

    _call_after(module.Accelerator, "log", logged, lambda accelerator, values, *more, **options: _flat(values))
    _call_after(module.Accelerator, "prepare", prepared)


def _transformers(module: Any, receive: Receive, hooks: Hooks) -> None:
    """The Trainer's callback handler receives everything, whichever trackers are configured."""

    def logged(handler: Any, args: Any, state: Any, control: Any, logs: Values, *more: Any, **options: Any) -> None:
        # With a learning rate, the loss is the Trainer's mean over the steps since it last logged one. Evaluations, the
        # summary at the end and what a program logs through the Trainer are not about those steps.
        receive(logs, state.global_step, "loss" in logs and "learning_rate" in logs)

    def forwarded_values(
        handler: Any, args: Any, state: Any, control: Any, logs: Values, *more: Any, **options: Any
    ) -> Values:
        return {**logs, "train/global_step": state.global_step}

    def began(handler: Any, args: Any, state: Any, control: Any, *more: Any, **options: Any) -> None:
        if hooks.rank is not None:
            hooks.rank.framework_begins("transformers", state.global_step)

    def evaluated(handler: Any, *more: Any, **options: Any) -> None:
        if hooks.rank is not None:
            hooks.rank.recorder.evaluates(False)

    _call_after(module.CallbackHandler, "on_log", logged, forwarded_values)
    _call_after(module.CallbackHandler, "on_evaluate", evaluated)
    _call_after(module.CallbackHandler, "on_train_begin", began)


def _lightning(module: Any, receive: Receive, hooks: Hooks) -> None:
    """All values of `self.log` pass through this connector, whichever loggers are configured."""

    def logged(connector: Any, metrics: Values, step: int | None = None, *more: Any) -> None:
        trainer, values = connector.trainer, dict(metrics)
        if step is None:  # as the connector chooses it for the loggers
            own = values.pop("step", None)
            # reading it would wait for the GPU
            if own is None or (getattr(own, "is_cuda", False) and not trainer.loggers):
                step = trainer.fit_loop.epoch_loop._batches_that_stepped
            else:
                step = _step_number(own)
        receive(values, step, trainer.training)

    def forwarded_values(connector: Any, metrics: Values, *more: Any, **options: Any) -> Values:
        return {**dict.fromkeys(metrics), "epoch": None}

    _call_after(module._LoggerConnector, "log_metrics", logged, forwarded_values)


def _lightning_fit(module: Any, receive: Receive, hooks: Hooks) -> None:
    def began(loop: Any, *more: Any) -> None:
        if hooks.rank is not None:
            hooks.rank.framework_begins("lightning", loop.trainer.global_step)

    _call_after(module._FitLoop, "on_run_start", began)


def _torchtitan(module: Any, receive: Receive, hooks: Hooks) -> None:
    """All metrics pass through this class on all ranks, whether they are written somewhere or only printed."""
    reporting: weakref.WeakSet[Any] = weakref.WeakSet()

    def made(processor: Any, config: Any, *, parallel_dims: Any, pp_schedule: str = "1F1B", **options: Any) -> None:
        _name_framework(hooks, "torchtitan")
        rank = module._get_metrics_rank(parallel_dims=parallel_dims, pp_schedule=pp_schedule)
        if module.torch.distributed.get_rank() == rank:  # with pipeline parallelism, the other ranks have no loss
            reporting.add(processor)

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
        values_by_name = named(processor, step, *values, **options)
        if processor in reporting:
            receive(values_by_name, step)
        elif hooks.rank is not None:
            hooks.rank.metrics.logged_by_another_rank(values_by_name)

    def validated(processor: Any, loss: float, step: int, extra_metrics: Values | None = None) -> None:
        if processor in reporting:
            receive({"validation_metrics/loss": loss, **(extra_metrics or {})}, step)

    _call_after(module.MetricsProcessor, "__init__", made)
    _call_after(module.MetricsProcessor, "log", logged, named)
    _call_after(module.MetricsProcessor, "log_validation", validated)


def _ray(module: Any, receive: Receive, hooks: Hooks) -> None:
    """The values that each worker reports."""

    def reported(worker: Any, metrics: Values, *more: Any, **options: Any) -> None:
        _name_framework(hooks, "ray")
        receive(_flat(metrics), None)

    for name in ("DistributedTrainFnUtils", "LocalTrainFnUtils"):
        if hasattr(module, name):
            _call_after(getattr(module, name), "report", reported)


def _ray_worker(module: Any, receive: Receive, hooks: Hooks) -> None:
    """A worker trains in a thread and is killed afterwards, so the rank ends with the function of that thread."""
    original = module.ThreadRunner.run

    def watched(target: Callable[[], Any]) -> Any:
        try:
            result = target()
        except BaseException as error:
            with suppress(Exception):  # the program's own error must be raised
                if hooks.rank is not None:
                    hooks.rank.failed(error)
            raise
        with suppress(Exception):  # the program has succeeded
            if hooks.rank is not None:
                hooks.rank.close("succeeded")
        return result

    @functools.wraps(original)
    def run(runner: Any, target: Callable[[], Any]) -> Any:
        return original(runner, functools.wraps(target)(functools.partial(watched, target)))

    module.ThreadRunner.run = run


def _name_framework(hooks: Hooks, framework: str) -> None:
    """Names the framework of the run. Frameworks use each other: the first one counts."""
    if hooks.rank is not None and "framework" not in hooks.rank.identity:
        hooks.rank.framework_begins(framework, None)


def _mlflow_registry(module: Any, receive: Receive, hooks: Hooks) -> None:
    tracker_links.mlflow_registry(module, hooks)


def _wandb_init(module: Any, receive: Receive, hooks: Hooks) -> None:
    tracker_links.wandb_runs(module, hooks)


_ATTACH: dict[str, Callable[[Any, Receive, Hooks], None]] = {
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
    _ATTACH[f"{_package}.trainer.connectors.logger_connector.logger_connector"] = _lightning
    _ATTACH[f"{_package}.loops.fit_loop"] = _lightning_fit
WATCHED = frozenset(_ATTACH)
