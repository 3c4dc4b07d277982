"""Which module is the model: the outermost one that is called and contains what an optimizer updates.

Hooks on modules would be traced by `torch.compile` and pickled by `torch.save(model)`. So the class is watched instead.
Its `__call__` records calls of the model itself, passes on calls of all other objects of the class, and is invisible
while a graph is compiled. Models are referenced weakly, and a class without models gets its own `__call__` back.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

MAX_ROOTS = 64


class _ModuleTypes(dict[type, bool]):
    """Whether a class is a module, computed once per class, because there may be millions of objects."""

    def __init__(self, module_type: type) -> None:
        super().__init__()
        self._module_type = module_type

    def __missing__(self, cls: type) -> bool:
        self[cls] = found = issubclass(cls, self._module_type)
        return found


def _evaluated(module: Any) -> list[Any]:
    """The parts of a model that are called separately: a single rank evaluates what is inside of a
    DistributedDataParallel."""
    if type(module).__name__ != "DistributedDataParallel" or any(map(_is_compiled, module.modules())):
        return []
    return [module.module]


def _is_compiled(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


class Roots:
    """The modules whose calls are forwards."""

    def __init__(self, torch: Any, watched: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._torch = torch
        self._watched_call = watched  # makes the watching `__call__` of a class from its own
        self._watched: dict[type, Any] = {}  # the watching `__call__` of each class
        self.called: set[int] = set()  # IDs of modules that were called
        self.held: dict[int, weakref.ref[Any]] = {}  # by ID; weak, so that the program can free its models
        self._found: dict[int, list[int]] = {}  # IDs of modules by the optimizer they were found for
        self._parameters: set[int] = set()  # IDs of the parameters of all these modules

    @property
    def modules(self) -> dict[int, Any]:
        """The modules that still exist."""
        return {key: module for key, held in list(self.held.items()) if (module := held()) is not None}

    def find(self, owner: int, parameters: Iterable[Any]) -> None:
        """Finds the outermost modules that contain these parameters."""
        wanted = {id(parameter) for parameter in parameters}
        if wanted <= self._parameters:  # another optimizer of the same model
            self._found[owner] = list(self.held)
            return
        is_module = _ModuleTypes(self._torch.nn.Module)
        everything = [thing for thing in gc.get_objects() if is_module[type(thing)]]
        inner = {id(child) for module in everything for child in module.__dict__.get("_modules", {}).values()}
        outermost = [module for module in everything if id(module) not in inner]
        found = [m for m in outermost if any(id(parameter) in wanted for parameter in m.parameters())]
        self._watch(owner, found[:MAX_ROOTS])

    def settle(self, owner: int) -> None:
        """Replaces modules that were not called themselves (a LightningModule) with their children, after a step."""
        found = self._found.get(owner, [])
        if self.called.isdisjoint(found):
            modules = self.modules
            uncalled = [modules[key] for key in found if key in modules]
            for module in uncalled:
                self._forget(id(module))
            children = [child for module in uncalled for child in module.children()]
            self._watch(owner, [child for child in children if any(True for _ in child.parameters())][:MAX_ROOTS])

    def of_type(self, name: str) -> list[Any]:
        """The modules of a class in the roots, by class name, compiled or not."""
        roots = self.modules.values()
        return [module for root in roots for module in root.modules() if type(module).__name__ == name]

    def forget(self) -> None:
        """Forgets all models."""
        for key in list(self.held):
            self._forget(key)
        self._found.clear()

    def _watch(self, owner: int, modules: Iterable[Any]) -> None:
        found = self._found[owner] = []
        for module in [part for root in modules for part in (root, *_evaluated(root))]:
            key = id(module)
            found.append(key)
            self.held[key] = weakref.ref(module, lambda _, key=key: self._forget(key))  # type: ignore[misc]
            self._parameters.update(map(id, module.parameters()))
            if type(module) not in self._watched:
                self._watch_class(type(module))

    def _forget(self, key: int) -> None:
        self.held.pop(key, None)
        self.called.discard(key)
        self._parameters.clear()  # IDs may be reused, so the parameters are searched for again
        needed = {type(module) for module in self.modules.values()}
        for cls in [cls for cls in self._watched if cls not in needed]:
            call = self._watched.pop(cls)
            covered = cls.__dict__.get("__call__") is not call  # another package has replaced it since
            if covered:
                continue
            if call.was_own:
                cls.__call__ = call.__wrapped__  # type: ignore[method-assign]
            else:
                del cls.__call__

    def _watch_class(self, cls: type) -> None:
        original = cls.__call__
        call = self._watched_call(original)
        call.__wrapped__ = original  # type: ignore[attr-defined]
        call.was_own = "__call__" in vars(cls)  # type: ignore[attr-defined]
        cls.__call__ = call  # type: ignore[method-assign]
        self._watched[cls] = call
