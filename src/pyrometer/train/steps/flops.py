"""The floating-point operations of a sample: one micro-batch is counted with PyTorch's own formulas.

Counting observes every operation of one forward and one backward, and changes none of them. A compiled model is not
counted, because observing would compile it again. Neither is a model whose parameters are distributed over ranks.
"""

from __future__ import annotations

from typing import Any

COUNT_AT = 3  # the step that is counted: it is warm, and the model has been found


def countable(modules: list[Any]) -> bool:
    """Whether the operations of these modules can be observed without side effects."""
    if not modules:
        return False
    for module in modules:
        for part in module.modules():
            if type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None:
                return False
        if any(type(parameter).__name__ == "DTensor" for parameter in module.parameters()):
            return False
    return True


def counter() -> Any:
    """A context manager that counts operations into its `total`."""
    from torch.utils import _python_dispatch
    from torch.utils.flop_counter import flop_registry

    mode: Any = _python_dispatch.TorchDispatchMode

    class Counting(mode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.total = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            formula = flop_registry.get(func._overloadpacket)
            if formula is not None:
                self.total += int(formula(*args, **(kwargs or {}), out_val=result))
            return result

    return Counting()
