"""Which run of an experiment tracker the program has; and what this run is called, as that tracker is told.

Both ways of one join: the tracker's run gets tags that name this process (MLflow: by a plug-in of its own kind,
`mlflow.run_context_provider`; W&B: in the run's summary, since programs hand its config on to their models), and the
run here has an event that names the tracker's. Nothing here asks the tracker for anything, nothing waits for it, and
nothing that goes wrong is seen by the program.
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
    from pyrometer.train.hooks import Hooks

MLFLOW_RUN, WANDB_RUN = "mlflow_run", "wandb_run"  # kinds of events, as `model/events.py` has them
TAG = "pyrometer."
MAX_RUNS = 1_000  # of trackers, in one process: a program may have one for every evaluation
_USER = re.compile(r"//.*@")  # and a password, which may have any character in it
_TAGGED = ("run", "launch", "experiment", "host", "namespace", "pod_name", "pod_uid")


class Context:
    """MLflow's plug-in: what it has to say of a run that the program starts. Without the SDK it says nothing."""

    def in_context(self) -> bool:
        """Whether this process is watched."""
        from pyrometer.train import boot

        return boot.hooks() is not None

    def tags(self) -> dict[str, str]:
        """By which the run can be found here. MLflow takes an error for a warning, and goes on."""
        from pyrometer.train import boot

        found = boot.hooks()
        return names(found, boot.init_arguments()) if found is not None else {}


def names(hooks: Hooks, init_arguments: dict[str, Any]) -> dict[str, str]:
    """What this process is called here. Its run is the workload in Kubernetes, which only the server knows, and the
    first of its launches where a launcher begins again: then it has no name yet."""
    if hooks.rank is not None:
        known = dict(hooks.rank.identity)
    else:
        from pyrometer.train import identity  # not in every Python that is watched

        told = {name: init_arguments[name] for name in ("run", "experiment") if init_arguments.get(name)}
        known = {**identity.identify(launch=identity.next_launch()), **told}
    if known["rank"] != 0:  # the launch is what rank 0 calls it
        known.pop("launch")
    named = any(name in known for name in ("run", "pod_uid", "pod_name", "restart_of"))
    if "launch" in known and not named and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        known["run"] = known["launch"]
    return {TAG + name: str(known[name]) for name in _TAGGED if known.get(name)}


def record_run(hooks: Hooks, kind: str, named: str, words: str) -> None:
    """The program has this run of a tracker: told once, as soon as there is somebody to tell it."""
    if (kind, named) in hooks.tracked or len(hooks.tracked) >= MAX_RUNS:
        return
    hooks.tracked[kind, named] = words
    if hooks.rank is not None:
        hooks.rank.outbox.event(kind, reason=named, message=words)


def report_result(owner: Any, name: str, report: Callable[[Any], None], also: Sequence[str] = ()) -> None:
    """Calls `tell` with what a function gives back; also where packages have it under the same name already."""
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
        if package is not None and vars(package).get(name) is original:  # imported before anybody was to be told
            setattr(package, name, wrapper)


# -- MLflow ------------------------------------------------------------------------------------------------------------


def mlflow_registry(module: Any, hooks: Hooks) -> None:
    """Where MLflow keeps such plug-ins. Installed, it has found ours; under `pyrometer run` nothing is installed."""
    registry = module._run_context_provider_registry
    if not any(isinstance(one, Context) for one in registry):
        registry.register(Context)


def mlflow_runs(owner: Any, name: str, hooks: Hooks) -> None:
    """Runs that the program starts or goes on with, by a function that gives them back."""

    def report(run: Any) -> None:
        from mlflow.tracking import get_tracking_uri

        record_mlflow_run(hooks, run.info.run_id, get_tracking_uri(), run.info)

    report_result(owner, name, report, also=("mlflow", "mlflow.tracking"))


def record_mlflow_run(hooks: Hooks, run_id: str, uri: str, info: Any = None) -> None:
    """One of MLflow's runs."""
    if (MLFLOW_RUN, run_id) not in hooks.tracked:
        named = f"“{info.run_name}” in experiment {info.experiment_id} " if info is not None else ""
        record_run(hooks, MLFLOW_RUN, run_id, f"{named}at {without_secrets(str(uri))}")


def without_secrets(uri: str) -> str:
    """An address that may be shown."""
    return _USER.sub("//", uri).partition("?")[0]


# -- W&B ---------------------------------------------------------------------------------------------------------------


def wandb_runs(module: Any, hooks: Hooks) -> None:
    """Runs that `wandb.init` gives."""

    def report(run: Any) -> None:
        from pyrometer.train import boot

        if run is None or run.disabled:
            return
        path = "/".join(part for part in (run.entity, run.project, run.id) if part)
        place = f"offline in {run.settings.sync_dir}" if run.offline else f"at {without_secrets(str(run.url))}"
        is_new = (WANDB_RUN, path) not in hooks.tracked
        record_run(hooks, WANDB_RUN, path, f"“{run.name or run.id}” {place}")
        if is_new:
            run.summary.update(names(hooks, boot.init_arguments()))

    report_result(module, "init", report, also=("wandb", "wandb.sdk"))
