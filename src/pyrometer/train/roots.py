"""Which module is the model: the outermost one that is called and holds what an optimizer updates.

Hooks on modules would be traced by `torch.compile` and pickled by `torch.save(model)`. So the class is watched instead:
its `__call__` takes the time when it is called for the model itself, steps aside for every other object of the class,
and is invisible while a graph is compiled.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

MOST_ROOTS = 64
MOST_LEVELS = 4  # down from modules that are never called themselves (a LightningModule)


class _Modules(dict[type, bool]):
    """Whether a class is a module, asked once for each: there may be millions of objects."""

    def __init__(self, module_type: type) -> None:
        super().__init__()
        self._module_type = module_type

    def __missing__(self, cls: type) -> bool:
        self[cls] = found = issubclass(cls, self._module_type)
        return found


class Roots:
    """The modules whose calls are forwards."""

    def __init__(self, torch: Any, forward: Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._torch = torch
        self._forward = forward
        self._watched: set[type] = set()
        self._called: set[int] = set()
        self.modules: dict[int, Any] = {}
        self._levels = 0

    def find(self, parameters: Iterable[Any]) -> None:
        """Looks for the modules that hold these parameters and are part of no other one."""
        wanted = {id(parameter) for parameter in parameters}
        is_module = _Modules(self._torch.nn.Module)
        everything = [thing for thing in gc.get_objects() if is_module[type(thing)]]
        inner = {id(child) for module in everything for child in module.__dict__.get("_modules", {}).values()}
        outermost = [module for module in everything if id(module) not in inner]
        found = [m for m in outermost if any(id(parameter) in wanted for parameter in m.parameters())]
        self._watch(found[:MOST_ROOTS])

    def settle(self) -> None:
        """After a step: modules that were not called themselves give way to the ones in them."""
        uncalled = [module for key, module in self.modules.items() if key not in self._called]
        if not uncalled or self._called or self._levels >= MOST_LEVELS:
            return
        self._levels += 1
        for module in uncalled:
            del self.modules[id(module)]
        children = [child for module in uncalled for child in module.children()]
        self._watch([child for child in children if any(True for _ in child.parameters())][:MOST_ROOTS])

    def of_type(self, name: str) -> list[Any]:
        """The roots of a class, by its name: DistributedDataParallel."""
        return [module for module in self.modules.values() if type(module).__name__ == name]

    def forget(self) -> None:
        """Nothing is the model any more."""
        self.modules.clear()

    def _watch(self, modules: Iterable[Any]) -> None:
        for module in modules:
            self.modules[id(module)] = module
            if type(module) not in self._watched:
                self._watched.add(type(module))
                self._watch_class(type(module))

    def _watch_class(self, cls: type) -> None:
        original = cls.__call__
        is_compiling = self._torch.compiler.is_compiling
        modules, called, forward = self.modules, self._called, self._forward

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or id(self) not in modules:
                return original(self, *args, **kwargs)
            called.add(id(self))
            return forward(original, self, args, kwargs)

        call.__wrapped__ = original  # type: ignore[attr-defined]
        cls.__call__ = call  # type: ignore[method-assign]
