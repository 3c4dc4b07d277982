"""How the SDK gets into a process: it waits until PyTorch is imported and begins to train.

`start` is called by `sitecustomize` under `pyrometer run`, by the `.pth` file if PYROMETER_ENDPOINT is set, by
Lightning's entry point, or by `pyrometer.init`. It puts a finder before Python's own, which only reports when one of a
few modules has been imported. The first optimizer or the first process group makes this process a rank.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyrometer.train.hooks.hook_installer import Hooks
    from pyrometer.train.run.rank import TrainingRank

_init_arguments: dict[str, Any] = {}
_hooks: Hooks | None = None
_exits_wrapped = False


def start(**init_arguments: Any) -> None:
    """Prepares this process to be watched if a target is configured. Repeated calls are fine, and it never raises."""
    global _hooks
    try:
        _init_arguments.update({name: value for name, value in init_arguments.items() if value is not None})
        if _hooks is None and _is_enabled():
            from pyrometer.train.hooks.hook_installer import Hooks

            _hooks = Hooks(_create_rank)
            _watch_imports(_hooks)
            os.register_at_fork(
                before=_hooks.before_fork, after_in_parent=_hooks.after_fork, after_in_child=_hooks.forked
            )
    except Exception as error:
        _log_error(error)


def rank() -> TrainingRank | None:
    """This process as a rank, if it trains."""
    return _hooks.rank if _hooks is not None else None


def hooks() -> Hooks | None:
    """The hooks of this process, if a target is configured."""
    return _hooks


def init_arguments() -> dict[str, Any]:
    """The arguments of `pyrometer.init`."""
    return _init_arguments


def become_rank() -> None:
    """Makes this process a rank before the first optimizer: the program called `pyrometer.init`."""
    if _hooks is not None and _hooks.rank is None and "torch" in sys.modules:
        try:
            _hooks.rank = _create_rank()
        except Exception as error:
            _hooks.disable(error)
            _log_error(error)


def _is_enabled() -> bool:
    environment = os.environ
    target = (
        _init_arguments.get("endpoint") or environment.get("PYROMETER_ENDPOINT") or environment.get("PYROMETER_SPOOL")
    )
    return bool(target) and environment.get("PYROMETER_DISABLED", "") in ("", "0")


def _create_rank() -> TrainingRank | None:
    """Creates the rank at the first sign of training: a ring, a thread, and a sender."""
    from pyrometer.train.run.sdk_settings import load_settings

    settings = load_settings(os.environ, _init_arguments)
    if settings is None or _hooks is None or _is_loader_worker():
        return None
    from pyrometer.train.run import exits
    from pyrometer.train.run.rank import TrainingRank

    try:
        rank = TrainingRank(_hooks, settings, sys.modules["torch"])
    except OSError as error:  # no space or no permission must not stop the program
        _log_error(error)
        return None
    _wrap_exits(_hooks)
    exits.record(rank.ring)
    return rank


def _is_loader_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


# -- Imports -----------------------------------------------------------------------------------------------------------


class _ImportFinder(MetaPathFinder):
    """Lets Python find a module as usual, and reports when it has been imported."""

    def __init__(self, names: frozenset[str], imported: Callable[[str, ModuleType], None]) -> None:
        self._names = names
        self._imported = imported
        self._looking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names or fullname in self._looking:
            return None
        self._looking.add(fullname)
        try:
            for finder in sys.meta_path:
                if finder is not self and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(fullname, path, target)
                    if spec is not None:
                        if spec.loader is not None:
                            spec.loader = _NotifyingLoader(spec.loader, self._imported)
                        return spec
            return None
        finally:
            self._looking.discard(fullname)


class _NotifyingLoader(Loader):
    """The module's own loader, followed by a notification."""

    def __init__(self, loader: Any, imported: Callable[[str, ModuleType], None]) -> None:
        self._loader = loader
        self._imported = imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            # from here on the module looks as if it was imported as usual
            spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._imported(module.__name__, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _watch_imports(hooks: Hooks) -> None:
    from pyrometer.train.hooks import hook_installer as hooks_module
    from pyrometer.train.run import logged_metrics

    def imported(name: str, module: ModuleType) -> None:
        try:
            hooks.install(name, module)
            logged_metrics.install(hooks, name, module)
        except Exception as error:
            _log_error(error)

    names = hooks_module.WATCHED | logged_metrics.WATCHED
    sys.meta_path.insert(0, _ImportFinder(names, imported))
    for name in names & set(sys.modules):
        imported(name, sys.modules[name])


# -- Exits -------------------------------------------------------------------------------------------------------------


def _wrap_exits(hooks: Hooks) -> None:
    """Wraps the two functions that take an exit code, once per process. The program keeps its `sys.excepthook`."""
    global _exits_wrapped
    if _exits_wrapped:  # a fork inherits it
        return
    _exits_wrapped = True
    from pyrometer.train.run import exits

    exit_normally, exit_at_once = sys.exit, os._exit

    @functools.wraps(exit_normally)
    def leaving(*code: Any) -> NoReturn:
        try:
            if hooks.rank is not None:
                hooks.rank.ending.exiting(code[0] if code else None, sys.exc_info()[1])
        except Exception as sdk_error:
            _log_error(sdk_error)
        exit_normally(*code)

    @functools.wraps(exit_at_once)
    def leaving_at_once(*args: Any, **kwargs: Any) -> NoReturn:
        try:
            status = args[0] if args else kwargs.get("status")
            if hooks.rank is not None:
                hooks.rank.exiting_at_once(status, sys.exc_info()[1])
            exits.exits_now(status)
        except Exception as sdk_error:
            _log_error(sdk_error)
        exit_at_once(*args, **kwargs)

    sys.exit, os._exit = leaving, leaving_at_once


def _log_error(error: BaseException) -> None:
    """Prints one line if PYROMETER_DEBUG is set. Otherwise the output belongs to the program alone."""
    if os.environ.get("PYROMETER_DEBUG"):
        sys.stderr.write(f"pyrometer: {type(error).__name__}: {error}\n")
