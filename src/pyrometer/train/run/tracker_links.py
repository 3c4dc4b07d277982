"""Connects the program's runs in experiment trackers with this run, in both directions.

The tracker's run gets tags that name this process. For MLflow they come from its plug-in `mlflow.run_context_provider`.
For W&B they are in the run's summary, because programs pass its config to their models. This run gets an event that
names the tracker's run. Nothing here sends a request to the tracker or waits for it, and no error reaches the program.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrometer.train.hooks.hook_installer import Hooks

MLFLOW_RUN, WANDB_RUN = "mlflow_run", "wandb_run"  # kinds of events, as in `model/events.py`
TAG = "pyrometer."
MAX_RUNS = 1_000  # per process; a program may have one run for every evaluation
_USER = re.compile(r"//.*@")  # user name and password; the password may contain any character
_TAGGED = ("run", "launch", "experiment", "host", "namespace", "pod_name", "pod_uid")


class Context:
    """The plug-in for MLflow. It adds no tags if the SDK is not active."""

    def in_context(self) -> bool:
        """Whether this process is watched."""
        from pyrometer.train.run import boot

        return boot.hooks() is not None

    def tags(self) -> dict[str, str]:
        """The tags that identify the run here. MLflow shows an error as a warning, and continues."""
        from pyrometer.train.run import boot

        found = boot.hooks()
        return names(found, boot.init_arguments()) if found is not None else {}


def names(hooks: Hooks, init_arguments: dict[str, Any]) -> dict[str, str]:
    """How this process is named here. Its run is the workload in Kubernetes, which only the server knows, or the first
    launch of a restarting launcher. Then it has no name yet."""
    if hooks.rank is not None:
        known = dict(hooks.rank.identity)
    else:
        from pyrometer.train.run import identity  # not needed in every Python that is watched

        configured = {name: init_arguments[name] for name in ("run", "experiment") if init_arguments.get(name)}
        known = {**identity.identify(launch=identity.next_launch()), **configured}
    if known["rank"] != 0:  # rank 0 decides the name of the launch
        known.pop("launch")
    named = any(name in known for name in ("run", "pod_uid", "pod_name", "restart_of"))
    if "launch" in known and not named and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        known["run"] = known["launch"]
    return {TAG + name: str(known[name]) for name in _TAGGED if known.get(name)}


def record_run(hooks: Hooks, kind: str, named: str, words: str) -> None:
    """Reports a tracker's run that the program has, once, as soon as there is a rank."""
    if (kind, named) in hooks.tracked or len(hooks.tracked) >= MAX_RUNS:
        return
    hooks.tracked[kind, named] = words
    if hooks.rank is not None:
        hooks.rank.outbox.event(kind, reason=named, message=words)


def report_result(owner: Any, name: str, report: Callable[[Any], None], also: Sequence[str] = ()) -> None:
    """Calls `report` with the return value of a function, also where packages have imported the function already."""
    original = vars(owner).get(name)
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with suppress(Exception):  # the program's call has succeeded
            report(result)
        return result

    setattr(owner, name, wrapper)
    for package in map(sys.modules.get, also):
        if package is not None and vars(package).get(name) is original:  # imported before the function was wrapped
            setattr(package, name, wrapper)


# -- MLflow ------------------------------------------------------------------------------------------------------------


def mlflow_registry(module: Any, hooks: Hooks) -> None:
    """Registers the plug-in. An installed package registers it through its entry point, but under `pyrometer run`
    nothing is installed."""
    registry = module._run_context_provider_registry
    if not any(isinstance(one, Context) for one in registry):
        registry.register(Context)


def mlflow_runs(owner: Any, name: str, hooks: Hooks) -> None:
    """Reports runs that the program starts or resumes with a function that returns them."""

    def report(run: Any) -> None:
        from mlflow.tracking import get_tracking_uri

        record_mlflow_run(hooks, run.info.run_id, get_tracking_uri(), run.info)

    report_result(owner, name, report, also=("mlflow", "mlflow.tracking"))


def record_mlflow_run(hooks: Hooks, run_id: str, uri: str, info: Any = None) -> None:
    """Reports a run of MLflow."""
    if (MLFLOW_RUN, run_id) not in hooks.tracked:
        named = f"“{info.run_name}” in experiment {info.experiment_id} " if info is not None else ""
        record_run(hooks, MLFLOW_RUN, run_id, f"{named}at {without_secrets(str(uri))}")


def without_secrets(uri: str) -> str:
    """An address without user, password and query."""
    return _USER.sub("//", uri).partition("?")[0]


# -- W&B ---------------------------------------------------------------------------------------------------------------


def wandb_runs(module: Any, hooks: Hooks) -> None:
    """Reports runs that `wandb.init` returns."""

    def report(run: Any) -> None:
        from pyrometer.train.run import boot

        if run is None or run.disabled:
            return
        path = "/".join(part for part in (run.entity, run.project, run.id) if part)
        place = f"offline in {run.settings.sync_dir}" if run.offline else f"at {without_secrets(str(run.url))}"
        is_new = (WANDB_RUN, path) not in hooks.tracked
        record_run(hooks, WANDB_RUN, path, f"“{run.name or run.id}” {place}")
        if is_new:
            run.summary.update(names(hooks, boot.init_arguments()))

    report_result(module, "init", report, also=("wandb", "wandb.sdk"))
