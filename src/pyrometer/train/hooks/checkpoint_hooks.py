"""Hooks on saves and loads: how long a checkpoint blocks training, and from which one a program resumes."""

from __future__ import annotations

import os
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrometer.train.hooks.patching import Original, wrap
from pyrometer.train.steps import ring

if TYPE_CHECKING:
    from pyrometer.train.hooks.hook_installer import Hooks

MAX_STATES = 4  # parameters whose state is searched for a step number
_STEP_KEYS = ("global_step", "step", "iter_num", "iteration", "iter", "num_updates", "steps", "current_step")


class _LoadedFile(NamedTuple):
    """The newest file that the program loaded."""

    path: str
    duration_ms: int
    step: int | None


class CheckpointHooks:
    """The hooks on `torch.save` and `torch.load`, their distributed forms, and the states of optimizers."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._loaded: _LoadedFile | None = None

    def install(self, torch: Any) -> None:
        """Hooks saves and loads of single files."""
        wrap(torch.optim.Optimizer, "load_state_dict", self._restore)
        for module in (torch.serialization, torch):
            wrap(module, "save", self._save)
            wrap(module, "load", self._load)

    def install_distributed(self, module: Any) -> None:
        """Hooks saves and loads by all ranks together."""
        for name in ("save", "async_save"):
            if hasattr(module, name):
                wrap(module, name, self._save)
        if hasattr(module, "load"):
            wrap(module, "load", self._load)

    def install_safetensors(self, module: Any) -> None:
        """Hooks saves of safetensors."""
        wrap(module, "save_file", self._save)

    def forget(self) -> None:
        """Forgets the newest file."""
        self._loaded = None

    def _save(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        rank = self._hooks.rank
        if rank is None:
            return original(*args, **kwargs)
        recorder = rank.recorder
        outermost = recorder.phase != ring.CHECKPOINT or not recorder.inside
        entered = outermost and recorder.enter(ring.CHECKPOINT)
        began_ns = perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            if entered:
                recorder.leave()
                try:
                    rank.checkpoints.saved(_path_in(args, kwargs), perf_counter_ns() - began_ns)
                except Exception as error:
                    self._hooks.disable(error)

    def _load(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        began_ns = perf_counter_ns()
        result = original(*args, **kwargs)
        try:
            state = result if result is not None else args[0] if args else kwargs.get("state_dict")  # loaded in place
            duration_ms = (perf_counter_ns() - began_ns) // 1_000_000
            self._loaded = _LoadedFile(_path_in(args, kwargs), duration_ms, _step_in(state))
        except Exception as error:
            self._hooks.disable(error)
        return result

    def _restore(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        rank = self._hooks.rank
        try:
            state = args[1] if len(args) > 1 else kwargs["state_dict"]
            if rank is not None and (state["state"] or self._loaded):  # plain SGD has no state
                loaded = self._loaded or _LoadedFile("", 0, None)
                steps = _steps_of_optimizer(state)
                rank.checkpoints.restored(loaded.path, loaded.duration_ms, loaded.step if steps is None else steps)
        except Exception as error:
            self._hooks.disable(error)
        return result


def _path_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The path in the arguments of a save or load. Empty where there is none."""
    for value in (*kwargs.values(), *args):
        if isinstance(value, str | os.PathLike):
            return os.fspath(value) if isinstance(os.fspath(value), str) else ""
        name = getattr(value, "name", None)
        if isinstance(name, str) and hasattr(value, "write"):
            return name
    return ""


def _step_in(state: Any) -> int | None:
    """The step number that a checkpoint contains."""
    if isinstance(state, dict):
        for key in _STEP_KEYS:
            if isinstance(state.get(key), int) and not isinstance(state[key], bool):
                return int(state[key])
    return None


def _steps_of_optimizer(state: dict[str, Any]) -> int | None:
    """How many steps an optimizer has done, according to its state. Values on a GPU are not read."""
    steps = None
    for of_parameter in list(state["state"].values())[:MAX_STATES]:
        value = of_parameter.get("step") if isinstance(of_parameter, dict) else None
        if value is not None and getattr(getattr(value, "device", None), "type", "cpu") == "cpu":
            steps = max(int(value), steps or 0)
    return steps
